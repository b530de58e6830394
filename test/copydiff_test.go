package test_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDiffOfCopy tests that the changes of a run that worked on a copy of a directory can be looked at and applied with git.
func TestDiffOfCopy(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir := h.userDir("project", map[string]string{"a.txt": "1\n"})
	r := h.run("run", "shell", "-C", dir, "--workspace-kind", "copy", "echo 2 >> a.txt")
	id := h.ok("runs", "ls", "-q")
	if r.code != 0 || !strings.Contains(r.stderr, "look at the changes with: caisson diff "+id) {
		t.Fatal(r)
	}
	d := h.run("diff", id)
	if d.code != 0 || !strings.Contains(d.stdout, "\n+2\n") || !strings.Contains(d.stderr, "caisson diff "+id+" | git apply") {
		t.Fatal(d)
	}
	apply := exec.Command("git", "apply", "--unsafe-paths")
	apply.Dir, apply.Stdin = dir, strings.NewReader(d.stdout)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := os.ReadFile(filepath.Join(dir, "a.txt")); err != nil || string(out) != "1\n2\n" {
		t.Errorf("%q, %v", out, err)
	}
	h.fails(3, "there is no workspace", "diff", "--stat", id)
}
