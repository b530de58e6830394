// Package forgetest is a forge for tests: git over HTTP with authentication, and the calls of the REST APIs of GitHub, GitLab and
// Gitea that pull requests are made of, with their status codes, fields, rules and ways to fail. It shares no code with what it
// tests.
package forgetest

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
)

// Options configure a Forge. What counts failures can be changed while it runs, see [Forge.Set].
type Options struct {
	Kind  caisson.Forge // default GitHub
	Token string        // that may do everything; default "forge-test-token"
	Owner string        // default "acme"; at GitLab it may have slashes
	Repo  string        // default "app"
	TLS   bool          // https, with an authority of its own: see Forge.Roots
	// FailPushes is how many pushes are answered with 503, and take no effect.
	FailPushes int
	// CutPush is how many pushes take effect and lose their connection before the answer.
	CutPush int
	// RejectPush makes a hook refuse each push with this line, as that of a protected branch.
	RejectPush string
	// FailPulls is how many API calls are answered with 503.
	FailPulls int
	// RateLimitPulls is how many API calls are answered as by a forge that was asked too often.
	RateLimitPulls int
	// LosePullAnswers is how many pull requests are made without the answer getting through.
	LosePullAnswers int
	// GitHubApp makes an App known that is installed for the repository; see Forge.AppCredential. Its tokens are good for an hour.
	GitHubApp bool
	// NoDrafts is a plan of GitHub's without draft pull requests.
	NoDrafts bool
	// RootURL is where the forge believes to be, if it is wrong about that; it begins the addresses of pages.
	RootURL string
}

// A Request is one that was made, whether it was let in or not.
type Request struct {
	Method string
	Path   string // escaped, with the query
	// User is whom it was made as: the user of Basic, or "Bearer", "token" or "PRIVATE-TOKEN"; "" for nobody.
	User   string
	Status int
}

// A Forge has one repository, with a commit on main. Its methods are safe for concurrent use.
type Forge struct {
	URL   string // to clone from
	API   string // base URL
	Dir   string // the bare repository
	Roots string // with TLS: its authority, as PEM

	t   testing.TB
	git *gitserver.Server
	srv *httptest.Server
	app app

	mu       sync.Mutex
	o        Options              // guarded by mu
	pulls    []*Pull              // guarded by mu
	requests []Request            // guarded by mu
	minted   map[string]time.Time // tokens of the App and when they expire; guarded by mu
}

// New returns a running forge; it ends with the test.
func New(t testing.TB, o Options) *Forge {
	t.Helper()
	for _, d := range []struct {
		field *string
		value string
	}{{(*string)(&o.Kind), string(caisson.ForgeGitHub)}, {&o.Token, "forge-test-token"}, {&o.Owner, "acme"}, {&o.Repo, "app"}} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	f := &Forge{t: t, o: o, minted: map[string]time.Time{}}
	f.git = gitserver.New(t, gitserver.Options{FailPushes: o.FailPushes, LosePushes: o.CutPush, Reject: o.RejectPush})
	f.Dir = f.git.Create(filepath.Join(o.Owner, o.Repo) + ".git")
	gitserver.Seed(t, f.Dir, map[string]string{"README.md": "# " + o.Repo + "\n"})
	if o.GitHubApp {
		f.app = newApp(t)
	}
	f.srv = httptest.NewUnstartedServer(f)
	if o.TLS {
		f.srv.EnableHTTP2 = true
		f.srv.StartTLS()
		f.Roots = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.srv.Certificate().Raw}))
	} else {
		f.srv.Start()
	}
	t.Cleanup(func() {
		f.srv.CloseClientConnections()
		f.srv.Close()
	})
	f.URL = f.srv.URL + "/" + f.project() + ".git"
	f.API = f.srv.URL + map[caisson.Forge]string{caisson.ForgeGitHub: "/api/v3", caisson.ForgeGitLab: "/api/v4", caisson.ForgeGitea: "/api/v1"}[o.Kind]
	return f
}

// Set changes the options. Those of pushes take effect on the next one.
func (f *Forge) Set(change func(*Options)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.o)
	o := f.o
	f.git.Set(func(g *gitserver.Options) {
		g.FailPushes, g.LosePushes, g.Reject = o.FailPushes, o.CutPush, o.RejectPush
	})
}

// Pulls returns copies of all pull requests, from old to new.
func (f *Forge) Pulls() []Pull {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Pull
	for _, p := range f.pulls {
		all = append(all, *p)
	}
	return all
}

// Requests returns what was asked so far.
func (f *Forge) Requests() []Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// Branches returns the commits of the branches by name.
func (f *Forge) Branches() map[string]string {
	out, err := gitserver.TryGit(f.t, f.Dir, "for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads/")
	if err != nil {
		f.t.Errorf("branches: %v: %s", err, out)
	}
	all := map[string]string{}
	for line := range strings.Lines(out) {
		if name, commit, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			all[name] = commit
		}
	}
	return all
}

// Branch makes a branch with one commit more than main, without a push, and returns the commit.
func (f *Forge) Branch(name string) string {
	f.t.Helper()
	work := f.t.TempDir()
	gitserver.Git(f.t, work, "clone", "-q", f.Dir, ".")
	gitserver.Git(f.t, work, "checkout", "-q", "-b", name)
	commit := gitserver.Commit(f.t, work, "work on "+name, map[string]string{"work.txt": name + "\n"})
	gitserver.Git(f.t, work, "push", "-q", "origin", name)
	return commit
}

// ServeHTTP implements [http.Handler].
func (f *Forge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := &recorder{ResponseWriter: w, status: http.StatusOK}
	user, token := credentials(r)
	f.mu.Lock()
	i := len(f.requests)
	f.requests = append(f.requests, Request{Method: r.Method, Path: r.URL.RequestURI(), User: user})
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.requests[i].Status = seen.status
	}()
	if strings.HasPrefix(r.URL.Path, "/api/") {
		f.serveAPI(seen, r, user, token)
		return
	}
	f.serveGit(seen, r)
}

// serveGit lets in who has a token, as the kind of forge wants it, and leaves the rest to git.
func (f *Forge) serveGit(w http.ResponseWriter, r *http.Request) {
	if !f.gitUser(r) {
		w.Header().Set("WWW-Authenticate", `Basic realm="Git"`)
		http.Error(w, "Authentication failed", http.StatusUnauthorized)
		return
	}
	name := "/" + f.project()
	rest, ok := strings.CutPrefix(r.URL.Path, name+"/")
	if !ok {
		rest, ok = strings.CutPrefix(r.URL.Path, name+".git/")
	}
	if !ok {
		http.Error(w, "Repository not found.", http.StatusNotFound)
		return
	}
	r = r.Clone(r.Context())
	r.URL.Path, r.URL.RawPath = name+".git/"+rest, ""
	defer func() { // which also runs when the connection is cut
		f.mu.Lock()
		defer f.mu.Unlock()
		f.git.Set(func(g *gitserver.Options) { f.o.FailPushes, f.o.CutPush = g.FailPushes, g.LosePushes })
	}()
	f.git.ServeHTTP(w, r)
}

// gitUser reports whether the credentials for git are those that the kind of forge takes.
func (f *Forge) gitUser(r *http.Request) bool {
	user, password, ok := r.BasicAuth()
	if !ok {
		return false
	}
	switch f.kind() {
	case caisson.ForgeGitHub: // any user will do for a personal token, this one for all
		return user != "" && f.knows(password)
	case caisson.ForgeGitea: // the token is the user without a password, or the password of anybody
		if password == "" || password == "x-oauth-basic" {
			return f.knows(user)
		}
	}
	return user != "" && f.knows(password)
}

// knows reports whether a token is one that lets in.
func (f *Forge) knows(token string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if token == f.o.Token {
		return true
	}
	expires, ok := f.minted[token]
	return ok && time.Now().Before(expires)
}

func (f *Forge) kind() caisson.Forge {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.o.Kind
}

func (f *Forge) project() string { return f.o.Owner + "/" + f.o.Repo } // never changed

// page begins the addresses of pages.
func (f *Forge) page() string {
	if f.o.RootURL != "" {
		return f.o.RootURL + "/" + f.project()
	}
	return f.srv.URL + "/" + f.project()
}

// recorder remembers the status.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// credentials returns how a request says who it is from, and with what.
func credentials(r *http.Request) (user, token string) {
	if user, password, ok := r.BasicAuth(); ok {
		return user, password
	}
	if t := r.Header.Get("PRIVATE-TOKEN"); t != "" {
		return "PRIVATE-TOKEN", t
	}
	if scheme, t, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok {
		return scheme, t
	}
	return "", ""
}
