package wire

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/relay/front"
)

// gitJobs serves the repositories of a directory like the engine's jobs.
func gitJobs(t testing.TB, dir string) func(context.Context, json.RawMessage) (*os.File, <-chan struct{}, error) {
	return func(ctx context.Context, in json.RawMessage) (*os.File, <-chan struct{}, error) {
		var req front.Request
		if err := json.Unmarshal(in, &req); err != nil {
			return nil, nil, err
		}
		near, conn := streamPair(t)
		args := []string{req.Service, "--stateless-rpc"}
		if req.Advertise {
			args = append(args, "--http-backend-info-refs")
			if req.Protocol != "version=2" {
				io.WriteString(conn, map[string]string{"upload-pack": "001e", "receive-pack": "001f"}[req.Service]+"# service=git-"+req.Service+"\n0000")
			}
		}
		far, err := conn.File()
		conn.Close()
		if err != nil {
			return nil, nil, err
		}
		cmd := exec.CommandContext(ctx, "git", append(args, filepath.Join(dir, req.Repo))...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_PROTOCOL=" + req.Protocol}
		cmd.Stdin, cmd.Stdout = far, far
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer far.Close()
			if err := cmd.Run(); err != nil {
				t.Log(args, err)
			}
		}()
		return near, done, nil
	}
}

// TestGitOverWire clones and pushes with git from a sandbox's namespace through the confined process.
func TestGitOverWire(t *testing.T) {
	t.Parallel()
	needWire(t)
	if _, err := exec.LookPath("git"); err != nil {
		testneed.Skip(t, "git", err.Error())
	}
	dir := t.TempDir()
	w := newWorld(t, func(c *setup) { c.Stream = gitJobs(t, dir) })
	_, ns := w.attach(t)
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "http.curloptResolve=git." + Domain + ":80:" + net.ParseIP(GatewayIPv4).String()}, args...)...)
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "HOME=/nonexistent",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@localhost", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@localhost",
		}
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := inside(t, ns, cmd.Run); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out.String())
		}
		return out.String()
	}
	git("init", "-q", "--bare", "-b", "main", "lib")
	git("clone", "-q", "http://git."+Domain+"/lib", "a")
	big := make([]byte, 8<<20) // more than the sockets on the path can buffer
	for i, x := 0, uint64(1); i < len(big); i++ {
		x = x*6364136223846793005 + 1442695040888963407
		big[i] = byte(x >> 56)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "file"), big, 0o600); err != nil {
		t.Fatal(err)
	}
	git("-C", "a", "add", ".")
	git("-C", "a", "commit", "-q", "-m", "one")
	git("-C", "a", "push", "-q", "origin", "HEAD:refs/heads/main")
	git("clone", "-q", "http://git."+Domain+"/lib.git", "b")
	if got, want := git("-C", "b", "rev-parse", "HEAD"), git("-C", "a", "rev-parse", "HEAD"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
