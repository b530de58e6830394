// Package gitserver is a git server for tests: git http-backend behind net/http, with simulated failures. Requests that
// are not git's are passed to another handler, so that the same server can also simulate the API of a forge.
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

// Options configure a Server. They can be changed while it runs, see [Server.Set].
type Options struct {
	// User and Password are required in the Authorization header of every git request; an empty Password disables
	// authentication. Password is also accepted as a bearer token, and with any user if User is empty.
	User, Password string
	// FailPushes is the number of pushes that are answered with 503 before git receives them.
	FailPushes int
	// CutPushes is the number of pushes whose connection is closed in the middle of the pack; git does not receive them.
	CutPushes int
	// LosePushes is the number of pushes that take effect and whose connection is closed before the response.
	LosePushes int
	// Reject makes the update hook reject each push with this line.
	Reject string
	// ReadOnly answers pushes with 403, as forges do for users with read access only.
	ReadOnly bool
	// Handler handles requests that are not git's; nil answers 404.
	Handler http.Handler
	// TLS makes the server an https server with a certificate of httptest.
	TLS bool
}

// A Server serves the bare repositories of one directory below its URL.
type Server struct {
	*httptest.Server
	Dir string // The directory that contains the repositories.

	t        testing.TB
	mu       sync.Mutex
	o        Options  // the current options; guarded by mu
	requests []string // Methods and paths of the requests, for example "POST /x/git-upload-pack"; guarded by mu.
}

// New returns a running server without repositories. It is closed when the test ends.
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

// Dir returns a new temporary directory of the test. It skips the test if git is not installed.
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

// Requests returns the methods and paths of all git requests so far.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

// Create creates an empty bare repository that accepts pushes, and returns its directory. name may contain slashes and
// may end in ".git"; the URL of the repository is that of the server, a slash and name.
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

// RepoURL returns the URL of a repository.
func (s *Server) RepoURL(name string) string { return s.URL + "/" + name }

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	service := gitService(r)
	s.mu.Lock()
	o := s.o
	if service != "" {
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
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

// gitService returns the git program that a request is for, or "" if the request is not git's.
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

// admits reports whether the Authorization header of r has the user and the password that o requires.
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

// probe is the body that git sends before a large push to check that it is authorized.
const probe = "0000"

// push handles a POST to git-receive-pack, and simulates the failures that o requests.
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
		abortResponse(w)
	case lose:
		r.Body = io.NopCloser(body)
		s.backend(httptest.NewRecorder(), r, o)
		abortResponse(w)
	default:
		r.Body = io.NopCloser(body)
		s.backend(w, r, o)
	}
}

// abortResponse closes the connection in the middle of a response. If it were closed earlier, the client's HTTP library would
// retry the request.
func abortResponse(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/x-git-receive-pack-result")
	w.WriteHeader(http.StatusOK)
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// backend passes r to git http-backend.
func (s *Server) backend(w http.ResponseWriter, r *http.Request, o Options) {
	if r.ContentLength < 0 { // CGI requires the length of the body.
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
