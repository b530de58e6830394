package coretest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/relay/front"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
	"github.com/caisson-dev/caisson/job/relay/transport"
)

// remotes are the remotes of all repositories, and the HTTP server through which sandboxes use the relay. Every remote exists and
// has the branches main and feature with a file README, except that URLs with "unreachable" cannot be connected to. Remotes
// reject pushes to branches whose names begin with "refused".
type remotes struct {
	*transport.Tool
	dir    string       // the directory of the remotes
	server *http.Server // serves the relay to git in sandboxes
	base   string       // URL of the server
	wires  *wires       // pass requests for the relay to the engine

	mu sync.Mutex // held while a remote is created
}

// newRemotes returns remotes in the directory dir, and starts the HTTP server.
func newRemotes(dir string, tool *transport.Tool, wires *wires) (*remotes, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &remotes{Tool: tool, dir: dir, wires: wires, base: "http://" + l.Addr().String()}
	r.server = &http.Server{Handler: r.relayHandler()}
	go r.server.Serve(l)
	return r, nil
}

func (r *remotes) close() error { return r.server.Close() }

// relayURL returns the URL of the relay for a sandbox.
func (r *remotes) relayURL(sandbox caisson.ID) string { return r.base + "/" + string(sandbox) + "/" }

// relayHandler returns the handler that serves the relay to git in sandboxes. The first part of a path is the sandbox's id.
func (r *remotes) relayHandler() http.Handler {
	h := front.Handler(func(ctx context.Context, in json.RawMessage) (net.Conn, error) {
		// The stream to the git job outlives the HTTP request: it lasts until the caller closes the returned connection.
		f, _, err := r.wires.serving().Stream(context.WithoutCancel(ctx), in)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return net.FileConn(f)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		sandbox, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
		req = req.WithContext(r.wires.guest(req.Context(), caisson.ID(sandbox)))
		http.StripPrefix("/"+sandbox, h).ServeHTTP(w, req)
	})
}

// Run implements repos.Transport: it serves conn with the remote of req.URL, which is in a directory instead of on the network.
func (r *remotes) Run(ctx context.Context, conn *os.File, req transport.Request) error {
	dir, err := r.remote(req.URL)
	if err != nil {
		return err
	}
	u, err := remoteurl.ParseURL(req.URL)
	if err != nil {
		return err
	}
	if u.Scheme == remoteurl.SSH { // With SSH the peer uses git's own protocol instead of HTTP.
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		return r.RunLocal(ctx, conn, f, req.Push)
	}
	c, err := net.FileConn(conn)
	if err != nil {
		return err
	}
	defer c.Close()
	git := &gitserver.Server{Dir: filepath.Dir(dir)}
	return transport.Serve(ctx, c, http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		if strings.Contains(req.URL, "unreachable") {
			w.Header().Set(remote.LinkKind, string(caisson.Unavailable))
			w.Header().Set(remote.LinkMessage, "the remote cannot be reached")
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		hr.URL.Path = "/" + filepath.Base(dir) + strings.TrimPrefix(hr.URL.Path, u.Path)
		git.ServeHTTP(w, hr)
	}))
}

// remote returns the directory of the remote whose URL is of, and creates the remote if it does not exist.
func (r *remotes) remote(of string) (string, error) {
	sum := sha256.Sum256([]byte(of))
	dir := filepath.Join(r.dir, hex.EncodeToString(sum[:8]))
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, seed(dir)
}

// stream is the input of git fast-import that creates the content of a remote.
const stream = `blob
mark :1
data 7
cloned

commit refs/heads/main
mark :2
committer Ada <ada@example.com> 1700000000 +0000
data 5
first
M 100644 :1 README

reset refs/heads/feature
from :2

`

// hook is the script of the update hook of each remote.
const hook = "#!/bin/sh\ncase $1 in refs/heads/refused*) printf 'the remote refuses\\033[2J\\n' >&2; exit 1;; esac\n"

// seed creates a remote, a bare repository with its first content, in dir.
func seed(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	for _, step := range []struct {
		in   string
		args []string
	}{
		{"", []string{"init", "-q", "--bare", "-b", "main", "--template=", dir}},
		{"", []string{"-C", dir, "config", "http.receivepack", "true"}},
		{stream, []string{"-C", dir, "fast-import", "--quiet"}},
	} {
		cmd := exec.Command("git", step.args...)
		cmd.Env, cmd.Stdin = gitEnv(), strings.NewReader(step.in)
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "hooks"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "hooks/update"), []byte(hook), 0o755)
}

// gitEnv is the environment of git, which excludes the host's configuration.
func gitEnv() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
	}
}

// Pull implements repos.Forges. It opens no pull request, and returns one that always has the same number and URL.
func (r *remotes) Pull(_ context.Context, s forge.Server, req forge.PullRequest) (*forge.Pull, error) {
	return &forge.Pull{Number: 7, URL: "https://forge.example/pull/7", Draft: !req.Ready, State: "open"}, nil
}

// Token implements repos.Forges. The token is the word "token", and expires in an hour.
func (r *remotes) Token(context.Context, forge.App, forge.Server) (caisson.Secret, time.Time, error) {
	return caisson.NewSecret("token"), time.Now().Add(time.Hour), nil
}
