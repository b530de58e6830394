// Package gitserver is a real git server for tests: git http-backend behind net/http, with the ways to fail that real servers have.
// What it does not know as git it leaves to another handler, so that a forge's API can be put beside it.
package gitserver

import (
	"bytes"
	"crypto/subtle"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson/internal/testneed"
)

// Options configure a Server. All of them can be changed while it runs, see [Server.Set].
type Options struct {
	// User and Password must be in the Authorization header of every request for git; nothing is asked where Password is empty.
	// It is accepted as a bearer's token, too, and with any user if User is empty.
	User, Password string
	// FailPushes is how many pushes are answered with 503 before git sees them.
	FailPushes int
	// CutPushes is how many pushes lose their connection in the middle of the pack; git does not see them.
	CutPushes int
	// LosePushes is how many pushes take effect and lose their connection before the answer.
	LosePushes int
	// Reject makes the update hook refuse each push with this line.
	Reject string
	// ReadOnly answers pushes with 403, as forges do for who may only read.
	ReadOnly bool
	// Handler gets what is not git; nil answers 404.
	Handler http.Handler
	// TLS makes it an https server, with a certificate of httptest.
	TLS bool
}

// A Server serves the bare repositories of one directory below its URL.
type Server struct {
	*httptest.Server
	Dir string // holds the repositories

	t  testing.TB
	mu sync.Mutex
	o  Options  // guarded by mu
	in []string // "POST /x/git-upload-pack", guarded by mu
}

// New returns a running server without repositories; it ends with the test.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{Dir: Dir(t), t: t, o: o}
	s.Server = httptest.NewUnstartedServer(s)
	if o.TLS {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Dir returns a new directory of the test's; git is needed.
func Dir(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		testneed.Skip(t, "git", err.Error())
	}
	return t.TempDir()
}

// Set changes the options.
func (s *Server) Set(change func(*Options)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.o)
}

// Requests returns methods and paths of what was asked so far.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.in...)
}

// Create makes an empty bare repository, which may be pushed to, and returns its directory. name may have slashes and ends in ".git"
// or not: its URL is that of the server, a slash and the name.
func (s *Server) Create(name string) string {
	s.t.Helper()
	dir := filepath.Join(s.Dir, filepath.FromSlash(name))
	Git(s.t, s.Dir, "init", "-q", "--bare", "-b", "main", dir)
	Git(s.t, dir, "config", "http.receivepack", "true")
	Git(s.t, dir, "config", "uploadpack.allowFilter", "true")
	hook := "#!/bin/sh\nif [ -n \"$REJECT\" ]; then echo \"$REJECT\" >&2; exit 1; fi\n"
	if err := os.WriteFile(filepath.Join(dir, "hooks", "update"), []byte(hook), 0o755); err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// RepoURL is the URL of a repository.
func (s *Server) RepoURL(name string) string { return s.URL + "/" + name }

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	service := gitService(r)
	s.mu.Lock()
	o := s.o
	if service != "" {
		s.in = append(s.in, r.Method+" "+r.URL.Path)
	}
	s.mu.Unlock()
	switch {
	case service == "" && o.Handler != nil:
		o.Handler.ServeHTTP(w, r)
	case service == "":
		http.NotFound(w, r)
	case !o.admits(r):
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
	case service == "git-receive-pack" && o.ReadOnly:
		http.Error(w, "you may only read this", http.StatusForbidden)
	case service == "git-receive-pack" && r.Method == http.MethodPost:
		s.push(w, r, o)
	default:
		s.backend(w, r, o)
	}
}

// gitService returns which program a request is for, or "" if it is none of git's.
func gitService(r *http.Request) string {
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/info/refs"):
		return r.URL.Query().Get("service")
	case strings.HasSuffix(path, "/git-upload-pack"):
		return "git-upload-pack"
	case strings.HasSuffix(path, "/git-receive-pack"):
		return "git-receive-pack"
	}
	return ""
}

func (o *Options) admits(r *http.Request) bool {
	if o.Password == "" {
		return true
	}
	user, password, ok := r.BasicAuth()
	if token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); bearer {
		user, password, ok = o.User, token, true
	}
	return ok && (o.User == "" || user == o.User) && subtle.ConstantTimeCompare([]byte(password), []byte(o.Password)) == 1
}

// probe is what git sends before a large push, to see whether it is let in.
const probe = "0000"

// push is a POST to git-receive-pack, with the failures that were asked for.
func (s *Server) push(w http.ResponseWriter, r *http.Request, o Options) {
	head := make([]byte, len(probe)+1)
	n, err := io.ReadFull(r.Body, head)
	body := io.MultiReader(bytes.NewReader(head[:n]), r.Body)
	if err != nil && string(head[:n]) == probe {
		r.Body = io.NopCloser(body)
		s.backend(w, r, o)
		return
	}
	var fail, cut, lose bool
	s.Set(func(o *Options) {
		switch {
		case o.FailPushes > 0:
			o.FailPushes, fail = o.FailPushes-1, true
		case o.CutPushes > 0:
			o.CutPushes, cut = o.CutPushes-1, true
		case o.LosePushes > 0:
			o.LosePushes, lose = o.LosePushes-1, true
		}
	})
	switch {
	case fail:
		http.Error(w, "come back later", http.StatusServiceUnavailable)
	case cut:
		io.CopyN(io.Discard, body, 64)
		hangUp(w)
	case lose:
		r.Body = io.NopCloser(body)
		s.backend(httptest.NewRecorder(), r, o)
		hangUp(w)
	default:
		r.Body = io.NopCloser(body)
		s.backend(w, r, o)
	}
}

// hangUp ends the connection in the middle of an answer: what ends before it would be tried again by the client's HTTP library.
func hangUp(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/x-git-receive-pack-result")
	w.WriteHeader(http.StatusOK)
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func (s *Server) backend(w http.ResponseWriter, r *http.Request, o Options) {
	if r.ContentLength < 0 { // CGI wants to know how long it is
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r = r.Clone(r.Context())
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	}
	git, err := exec.LookPath("git")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := cgi.Handler{
		Path: git,
		Args: []string{"http-backend"},
		Dir:  s.Dir,
		Env: append(environ(), "GIT_PROJECT_ROOT="+s.Dir, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=somebody", "REJECT="+o.Reject,
			"PATH="+os.Getenv("PATH")),
		Stderr: io.Discard,
	}
	h.ServeHTTP(w, r)
}
