package drive

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestChanges(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{
		"same": "x", "edited.go": "one\ntwo\nthree\n", "gone/old.txt": "bye\n", "binary": "a\x00b", "mode.sh": "#!/bin/sh\n", "touched": "y",
		"big": strings.Repeat("b", maxText+1), "no newline": "a", ".git/objects/aa/bb": "x", ".git/HEAD": "a\n", "becomes/link": "x",
	})
	must(t, os.Symlink("same", filepath.Join(dir, "link")))
	tr := newTracker(&task.Task{Track: dir, Workdir: dir})

	put(t, dir, map[string]string{
		"edited.go": "one\n2\nthree\n", "new/file.txt": "hello\n", "binary": "a\x00c", "touched": "y", "big": strings.Repeat("c", maxText+1),
		"no newline": "b", ".git/objects/cc/dd": "x", ".git/HEAD": "b\n", ".caisson/rules.md": "x\n", "odd\nname": "x",
	})
	must(t, os.RemoveAll(filepath.Join(dir, "gone")))
	must(t, os.Chmod(filepath.Join(dir, "mode.sh"), 0o755))
	must(t, os.Remove(filepath.Join(dir, "link")))
	must(t, os.Symlink("big", filepath.Join(dir, "link")))
	must(t, os.Remove(filepath.Join(dir, "becomes/link")))
	must(t, os.Symlink("../same", filepath.Join(dir, "becomes/link")))
	must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))

	l, ok := tr.changes()
	want := []caisson.FileChange{
		{Path: ".caisson/rules.md", Kind: "added", Added: 1}, // a file of the project
		{Path: ".git/HEAD", Kind: "modified", Added: 1, Removed: 1},
		{Path: "becomes/link", Kind: "modified"},
		{Path: "big", Kind: "modified"},
		{Path: "binary", Kind: "modified"},
		{Path: "edited.go", Kind: "modified", Added: 1, Removed: 1},
		{Path: "gone/old.txt", Kind: "removed", Removed: 1},
		{Path: "link", Kind: "modified"},
		{Path: "mode.sh", Kind: "modified"},
		{Path: "new/file.txt", Kind: "added", Added: 1},
		{Path: "no newline", Kind: "modified", Added: 1, Removed: 1},
		{Path: "odd\ufffdname", Kind: "added", Added: 1},
	}
	if d := cmp.Diff(want, l.Changes); !ok || d != "" {
		t.Error(d)
	}
	for _, part := range []string{
		"diff --git a/edited.go b/edited.go\n--- a/edited.go\n+++ b/edited.go\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n",
		"diff --git a/gone/old.txt b/gone/old.txt\ndeleted file mode 100644\n--- a/gone/old.txt\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-bye\n",
		"diff --git a/mode.sh b/mode.sh\nold mode 100644\nnew mode 100755\n",
		"new file mode 100644\n--- /dev/null\n+++ b/new/file.txt\n@@ -0,0 +1,1 @@\n+hello\n",
	} {
		if !strings.Contains(l.Patch, part) {
			t.Errorf("the patch lacks\n%s", part)
		}
	}
	if t.Failed() {
		t.Logf("patch:\n%s", l.Patch)
	}
	var b strings.Builder
	if _, err := task.NewWriter(&b).Write(l); err != nil {
		t.Error(err)
	}
	if _, ok := (*tracker)(nil).changes(); ok {
		t.Error("nothing is tracked, but has changed")
	}
}

// TestManyChanges: changes beyond the limits are left out, and a note reports it.
func TestManyChanges(t *testing.T) {
	dir := t.TempDir()
	tr := newTracker(&task.Task{Track: dir, Workdir: "/"})
	files := map[string]string{}
	for i := range task.MaxChanges + 50 {
		files[fmt.Sprintf("f%04d", i)] = strings.Repeat("line\n", 200)
	}
	for i := range maxModules + 10 {
		files[fmt.Sprintf("node_modules/a/%d", i)] = ""
	}
	put(t, dir, files)
	l, _ := tr.changes()
	if len(l.Changes) != task.MaxChanges || len(l.Patch) > task.MaxPatch {
		t.Errorf("%d changes, %d bytes of patch", len(l.Changes), len(l.Patch))
	}
	if head, _, _ := strings.Cut(l.Patch, "\n"); !strings.HasPrefix(head, "# not shown: more changes, most of node_modules, ") {
		t.Errorf("%q", head)
	}
}

// TestSameTick: a change soon after a scan is detected, even if size and time stay the same.
func TestSameTick(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{"a": "one"})
	info, err := os.Stat(filepath.Join(dir, "a"))
	must(t, err)
	tr := newTracker(&task.Task{Track: dir, Workdir: dir})
	put(t, dir, map[string]string{"a": "two"})
	must(t, os.Chtimes(filepath.Join(dir, "a"), time.Time{}, info.ModTime()))
	if l, _ := tr.changes(); len(l.Changes) != 1 {
		t.Errorf("changes %+v", l.Changes)
	}
}

func TestTrackThroughLink(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	link := filepath.Join(dir, "link")
	tr := newTracker(&task.Task{Track: link, Workdir: link})
	put(t, link, map[string]string{"a": "x"})
	if l, _ := tr.changes(); len(l.Changes) != 1 || l.Changes[0].Path != "a" {
		t.Errorf("changes %+v", l.Changes)
	}
}
