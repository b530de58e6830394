package test_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/forge/forgetest"
)

// TestRelayText tests that the text of a pull request comes from the repository's template, that changes after the
// agent's last push are included, that a false alarm is held, and that an unusable repository is not added.
func TestRelayText(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	tmpl, bad := filepath.Join(h.dir, "pull.md"), filepath.Join(h.dir, "bad.md")
	for file, text := range map[string]string{
		tmpl: "by {{.Agent}}, {{.Run}}\n{{range .Commits}}- {{.}}\n{{end}}\n{{.Answer}}", bad: "{{.Answer}}\n{{.Nothing}}",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := forgetest.New(t, forgetest.Options{Kind: caisson.ForgeGitHub, Token: forgeToken})
	h.addForge(f, "--pull-template", tmpl, "--allow-secrets", "testdata/**")
	h.fails(2, "line 2: there is no field .Nothing", "repo", "add", "bad", f.URL, "--pull-template", bad)
	r := h.succeeds("--repo", "app", "--pr", "--title", "T", "shell", `set -e
cd /workspace; echo a > a.txt; git add .; git commit -q -m one; git push -q 2>&1; echo b > b.txt; echo '{{.Title}} done'`)
	d := r.Result.Delivery
	if d == nil || d.State != caisson.DeliveryDelivered || d.Left != "" {
		t.Fatalf("the delivery is %+v", d)
	}
	pulls := f.Pulls()
	if want := "by shell, " + string(r.ID) + "\n- one\n- T\n\n"; len(pulls) != 1 || !strings.HasPrefix(pulls[0].Body, want) || !strings.Contains(pulls[0].Body, "{{.Title}} done") {
		t.Errorf("the pull requests are %+v, want %q", pulls, want)
	}
	if files := gitOut(t, f.Dir, "ls-tree", "--name-only", d.Branch); files != "README.md\na.txt\nb.txt" {
		t.Errorf("the branch has %q", files)
	}
	// A rejected commit stays in the sandbox, and pushed ones are delivered.
	r = h.succeeds("--repo", "app", "shell", `set -e
cd /workspace; echo a > a.txt; git add .; git commit -q -m one; git push -q 2>&1; mkdir -p .github/workflows; echo 'on: push' > .github/workflows/ci.yml; echo done`)
	d = r.Result.Delivery
	if d == nil || d.State != caisson.DeliveryDelivered || !strings.Contains(d.Left, "ci.yml") {
		t.Fatalf("the delivery is %+v", d)
	}
	if sb := h.show(string(r.Result.Sandbox)); sb.State != caisson.Stopped {
		t.Errorf("the sandbox with what was not taken is %s", sb.State)
	}
	if files := gitOut(t, f.Dir, "ls-tree", "-r", "--name-only", d.Branch); files != "README.md\na.txt" {
		t.Errorf("the branch has %q", files)
	}
	r = h.succeeds("--repo", "app", "shell", `cd /workspace; mkdir testdata; echo 'token = "ghp_016C7e5dIuwN8kVbXo3RZqLmTyHs4A2PfJc9"' > testdata/x; echo done`)
	if d = r.Result.Delivery; d == nil || d.State != caisson.DeliveryHeld || f.Branches()[d.Branch] != "" {
		t.Errorf("the delivery with a false alarm is %+v", d)
	}
}
