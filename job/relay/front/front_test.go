package front

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// pair returns the two ends of a stream.
func pair(t testing.TB) (near *net.UnixConn, far *os.File) {
	t.Helper()
	f, far, err := socketpair.New()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn), far
}

// An engine opens streams to git programs that run on repositories in a directory.
type engine struct {
	t    testing.TB
	dir  string
	jobs sync.WaitGroup
	dies atomic.Bool // whether jobs that receive a push exit without an answer

	mu    sync.Mutex
	asked []Request // guarded by mu
}

func newEngine(t testing.TB) (*engine, *httptest.Server) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		testneed.Skip(t, "git", err.Error())
	}
	e := &engine{t: t, dir: t.TempDir()}
	s := httptest.NewServer(Handler(e.open))
	t.Cleanup(func() { s.Close(); e.jobs.Wait() })
	return e, s
}

func (e *engine) open(_ context.Context, in json.RawMessage) (net.Conn, error) {
	var req Request
	if err := json.Unmarshal(in, &req); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.asked = append(e.asked, req)
	e.mu.Unlock()
	switch req.Repo {
	case "absent":
		return nil, caisson.Errorf(caisson.NotFound, "there is no repository %q", req.Repo)
	case "denied":
		return nil, caisson.Errorf(caisson.Denied, "the run may not push\x1b[31m")
	case "busy":
		return nil, caisson.Errorf(caisson.Exhausted, "too many streams at once")
	case "down":
		return nil, caisson.Errorf(caisson.Unavailable, "the relay is starting")
	case "broken":
		return nil, io.ErrNoProgress
	}
	near, far := pair(e.t)
	e.jobs.Go(func() {
		defer far.Close()
		e.serve(req, far)
	})
	return near, nil
}

// serve runs the job.
func (e *engine) serve(req Request, conn *os.File) {
	args := []string{req.Service, "--stateless-rpc"}
	if req.Advertise {
		args = append(args, "--http-backend-info-refs")
		if req.Protocol != "version=2" || req.Service == receivePack {
			io.WriteString(conn, map[string]string{uploadPack: "001e", receivePack: "001f"}[req.Service]+"# service=git-"+req.Service+"\n0000")
		}
	}
	if req.Service == receivePack && !req.Advertise && e.dies.Load() {
		io.Copy(io.Discard, conn)
		return
	}
	cmd := exec.Command("git", append(args, filepath.Join(e.dir, req.Repo))...)
	cmd.Env = append(gitEnv(), "GIT_PROTOCOL="+req.Protocol)
	cmd.Stdin, cmd.Stdout = conn, conn
	if out, err := errOf(cmd); err != nil {
		e.t.Logf("%v: %v %s", args, err, out)
	}
}

func errOf(cmd *exec.Cmd) ([]byte, error) {
	var b bytes.Buffer
	cmd.Stderr = &b
	err := cmd.Run()
	return b.Bytes(), err
}

func gitEnv() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@localhost", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@localhost",
	}
}

// git runs git and returns its output.
func git(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = dir, gitEnv()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustGit(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := git(t, dir, args...)
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return out
}

// repo creates a bare repository with one commit.
func (e *engine) repo(t testing.TB, name string) {
	t.Helper()
	work := t.TempDir()
	mustGit(t, work, "init", "-q", "-b", "main")
	write(t, filepath.Join(work, "file"), 1000)
	mustGit(t, work, "add", ".")
	mustGit(t, work, "commit", "-q", "-m", "one")
	mustGit(t, work, "clone", "-q", "--bare", ".", filepath.Join(e.dir, name))
}

// write creates a file whose content cannot be compressed.
func write(t testing.TB, name string, size int) {
	t.Helper()
	b := make([]byte, size)
	seed := uint64(size)*2862933555777941757 + 3037000493
	for i := range b {
		seed ^= seed << 13
		seed ^= seed >> 7
		seed ^= seed << 17
		b[i] = byte(seed)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestGit clones, fetches and pushes small and large commits with git in each protocol version.
func TestGit(t *testing.T) {
	for _, version := range []string{"0", "1", "2"} {
		t.Run("version"+version, func(t *testing.T) {
			e, s := newEngine(t)
			e.repo(t, "lib.x_1-y")
			url := s.URL + "/lib.x_1-y"
			a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
			v := "protocol.version=" + version
			mustGit(t, ".", "-c", v, "clone", "-q", url, a)
			mustGit(t, ".", "-c", v, "clone", "-q", url+".git", b)
			for i, size := range []int{10, 5 << 20} { // the second push is chunked, after a probe request
				write(t, filepath.Join(a, "file"), size)
				mustGit(t, a, "commit", "-q", "-a", "-m", "more")
				mustGit(t, a, "-c", v, "push", "-q", "origin", "HEAD:refs/heads/work")
				mustGit(t, b, "-c", v, "fetch", "-q", "origin", "work")
				if got, want := mustGit(t, b, "rev-parse", "FETCH_HEAD"), mustGit(t, a, "rev-parse", "HEAD"); got != want {
					t.Errorf("push %d: %s, want %s", i, got, want)
				}
			}
			for i := range 200 { // so that a fetch request is long and is compressed
				mustGit(t, b, "commit", "-q", "--allow-empty", "-m", "n"+strings.Repeat("x", i))
			}
			write(t, filepath.Join(a, "file"), 20)
			mustGit(t, a, "commit", "-q", "-a", "-m", "again")
			mustGit(t, a, "-c", v, "push", "-q", "origin", "HEAD:refs/heads/work")
			mustGit(t, b, "-c", v, "fetch", "-q", "origin", "work")
			mustGit(t, ".", "-c", v, "clone", "-q", "--depth", "1", url, filepath.Join(t.TempDir(), "c"))
			mustGit(t, a, "-c", v, "push", "-q", "origin", ":refs/heads/work")
			for _, req := range e.asked {
				want := "version=" + version
				if version == "0" {
					want = ""
				}
				if req.Repo != "lib.x_1-y" || req.Protocol != want && req.Service == uploadPack {
					t.Errorf("asked for %+v", req)
				}
			}
		})
	}
}

// TestGitShowsErrors checks that git shows the engine's error messages.
func TestGitShowsErrors(t *testing.T) {
	_, s := newEngine(t)
	for _, row := range []struct{ repo, want string }{
		{"absent", `remote: caisson: there is no repository "absent"`},
		{"denied", `remote: caisson: the run may not push\x1b[31m`},
		{"busy", "remote: caisson: too many streams at once"},
		{"down", "remote: caisson: the relay is starting"},
		{"broken", "remote: caisson: internal error"},
		{"NoName", "remote: caisson: there is nothing here but git repositories"},
	} {
		out, err := git(t, t.TempDir(), "clone", s.URL+"/"+row.repo)
		if err == nil || !strings.Contains(out, row.want) || strings.Contains(out, "Username") {
			t.Errorf("%s: %v\n%s", row.repo, err, out)
		}
	}
}

// TestGitHook checks that git shows the output of a job while it runs, and reports a refused push.
func TestGitHook(t *testing.T) {
	e, s := newEngine(t)
	e.repo(t, "lib")
	hook := "#!/bin/sh\necho line of a check >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(e.dir, "lib", "hooks", "pre-receive"), []byte(hook), 0o700); err != nil {
		t.Fatal(err)
	}
	a := filepath.Join(t.TempDir(), "a")
	mustGit(t, ".", "clone", "-q", s.URL+"/lib", a)
	write(t, filepath.Join(a, "file"), 3<<20)
	mustGit(t, a, "commit", "-q", "-a", "-m", "more")
	out, err := git(t, a, "push", "origin", "HEAD:refs/heads/work")
	if err == nil || !strings.Contains(out, "remote: line of a check") || !strings.Contains(out, "pre-receive hook declined") {
		t.Errorf("%v\n%s", err, out)
	}
	e.dies.Store(true)
	if out, err := git(t, a, "push", "origin", "HEAD:refs/heads/work"); err == nil || !strings.Contains(out, "503") {
		t.Errorf("a job that dies: %v\n%s", err, out)
	}
}

// A late stream returns from CloseWrite only after the end of the other direction was read.
type late struct {
	*net.UnixConn
	read chan struct{} // closed at the end of the answer
	once sync.Once
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.UnixConn.Read(p)
	if err != nil {
		l.once.Do(func() { close(l.read) })
	}
	return n, err
}

func (l *late) CloseWrite() error {
	err := l.UnixConn.CloseWrite()
	<-l.read
	return err
}

// TestSilentJob checks that a missing answer is reported even if the end of the answer is read before CloseWrite returns.
func TestSilentJob(t *testing.T) {
	s := httptest.NewServer(Handler(func(context.Context, json.RawMessage) (net.Conn, error) {
		near, far := pair(t)
		go func() {
			io.Copy(io.Discard, far)
			far.Close()
		}()
		return &late{UnixConn: near, read: make(chan struct{})}, nil
	}))
	defer s.Close()
	for range 50 {
		if got := raw(t, s, "GET /lib/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 503") {
			t.Fatalf("%q", got)
		}
	}
}
