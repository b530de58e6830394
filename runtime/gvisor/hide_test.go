package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestPromise2NamesThatAppearLater checks that a guest cannot see files in a workspace whose names match the patterns for
// secrets, even if they appear on the host while it is running, and that it can see such files if it has created them itself.
func TestPromise2NamesThatAppearLater(t *testing.T) {
	t.Parallel()
	r := open(t)
	host := t.TempDir()
	for _, dir := range []string{"src/deep", "moved", "listed"} {
		hostFile(t, filepath.Join(host, dir, "code"), "code\n", 1000, 1000, 0o644)
		chown(t, 1000, 1000, filepath.Join(host, dir))
	}
	chown(t, 1000, 1000, filepath.Join(host, "src"))
	w := newWorkspace(t, host, 1000, 1000)
	w.mount.Overlay.Hide = []string{".env", ".env.*", "*.pem", ".aws/credentials", ".ssh"}
	w.mount.Overlay.Show = []string{".env.example"}
	id, _ := inWorkspace(t, r, nil, w.mount)
	if out := sh(t, r, id, "cat src/deep/code; ls -A src/deep; cat .env 2>&1"); out != "code\ncode\ncat: .env: No such file or directory" {
		t.Fatalf("before: %q", out)
	}
	if out := sh(t, r, id, "mkdir -p own && echo mine > own/.env && cat own/.env && ls -A own"); out != "mine\n.env" {
		t.Errorf("the guest does not see what it has made: %q", out)
	}
	secret := func(name string) {
		hostFile(t, filepath.Join(host, name), "hunter2\n", 1000, 1000, 0o644)
	}
	for _, name := range []string{".env", "src/.env.local", "src/deep/tls.pem", ".aws/credentials", ".ssh/id_rsa", "listed/.env"} {
		secret(name)
	}
	for i := range 200 { // enough that a listing has several parts, of which one may contain only hidden names
		secret(fmt.Sprintf("listed/.env.%03d", i))
	}
	hostFile(t, filepath.Join(host, ".env.example"), "template\n", 1000, 1000, 0o644)
	hostFile(t, filepath.Join(host, "src", "later"), "later\n", 1000, 1000, 0o644)
	for _, c := range []struct{ script, want string }{
		{"cat .env.example src/later", "template\nlater"},
		{"ls -A listed", "code"},
		{"ls -A . | sort | tr '\\n' ' '", ".aws .env.example listed moved own src"},
		{"ls -A .aws src src/deep | tr '\\n' ' '", ".aws:  src: deep later  src/deep: code"},
		{"find . -name '.env*' | sort | tr '\\n' ' '", "./.env.example ./own/.env"},
	} {
		if out := sh(t, r, id, c.script); out != c.want {
			t.Errorf("%q says %.300q, want %q", c.script, out, c.want)
		}
	}
	for _, script := range []string{
		"cat .env", "cat ./src/../.env", "cat src/.env.local", "cat src/deep/tls.pem", "cat .aws/credentials", "cat .ssh/id_rsa", "ls .ssh",
		"ln -s .env link && cat link", "ln .env hard && cat hard", "mv .env moved/x && cat moved/x", "cp -a .ssh copy && cat copy/id_rsa",
		"ln -s ../.aws own/aws && cat own/aws/credentials", "(cd .ssh && cat id_rsa)", "exec 3<.env && cat <&3", "stat .env", "cat listed/.env.007",
		"head -c 7 < src/deep/tls.pem", "mv src gone && cat gone/.env.local", "cp -r src again && cat again/.env.local", "tar cf - . | grep -a hunter2",
		"grep -r hunter2 .", "python3 -c 'import os; print(open(os.open(\".\", os.O_RDONLY) and \".env\").read())'",
	} {
		if out := sh(t, r, id, script); strings.Contains(out, "hunter2") {
			t.Errorf("%q shows the secret: %.200q", script, out)
		}
	}
	// The same holds if the guest has created a file with the same name elsewhere, or creates and removes the file.
	if out := sh(t, r, id, "echo mine > src/deep/.env.x; rm src/deep/.env.x; cat .env 2>&1 | head -1"); strings.Contains(out, "hunter2") {
		t.Errorf("%q", out)
	}
	secret("src/deep/.env.x")
	if out := sh(t, r, id, "cat src/deep/.env.x 2>&1; cat own/.env"); strings.Contains(out, "hunter2") || !strings.HasSuffix(out, "mine") {
		t.Errorf("%q", out)
	}
	if data, err := os.ReadFile(filepath.Join(host, ".env")); err != nil || string(data) != "hunter2\n" {
		t.Errorf("the host's file is %q, %v", data, err)
	}
}

// BenchmarkWorkspaceFiles reads a tree of 2,000 files in a workspace with patterns for hidden names and in one without.
func BenchmarkWorkspaceFiles(b *testing.B) {
	for name, hide := range map[string][]string{"plain": nil, "hiding": {".env", ".env.*", "*.pem", ".aws/credentials", ".ssh"}} {
		b.Run(name, func(b *testing.B) {
			r := open(b)
			host := b.TempDir()
			for i := range 2000 {
				hostFile(b, filepath.Join(host, fmt.Sprint("d", i%20), fmt.Sprint("f", i)), "content\n", 1000, 1000, 0o644)
			}
			w := newWorkspace(b, host, 1000, 1000)
			w.mount.Overlay.Hide = hide
			id := caisson.NewID(caisson.SandboxPrefix)
			spec := newSpec(b, r, id)
			spec.Mounts = []caisson.RuntimeMount{w.mount}
			create(b, r, id, spec)
			for b.Loop() {
				run(b, r, id, "/bin/bash", "-c", "cat /workspace/*/* | wc -c")
			}
		})
	}
}
