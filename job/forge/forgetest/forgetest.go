// Package forgetest is a forge for tests: git over HTTP with authentication, and the calls of the REST APIs of GitHub, GitLab
// and Gitea that pull requests need, with their status codes, fields, rules and failures. It shares no code with the packages
// under test.
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

// Options configure a Forge. The counts of failures can be changed while it runs, see [Forge.Set].
type Options struct {
	Kind  caisson.Forge // default GitHub
	Token string        // token with all rights; default "forge-test-token"
	Owner string        // default "acme"; may have slashes on GitLab
	Repo  string        // default "app"
	TLS   bool          // use https, with the certificate in Forge.Roots
	// FailPushes is the number of pushes that are answered with 503 and take no effect.
	FailPushes int
	// LosePushes is the number of pushes that take effect, but whose connection is closed before the answer.
	LosePushes int
	// RejectPush makes a hook reject each push with this line, like the hook of a protected branch.
	RejectPush string
	// FailPulls is the number of calls of the REST API, for pull requests or others, that are answered with 503.
	FailPulls int
	// RateLimitPulls is the number of calls of the REST API, for pull requests or others, that are answered as over a rate limit.
	RateLimitPulls int
	// LosePullAnswers is the number of pull requests that are created, but whose answer is lost.
	LosePullAnswers int
	// GitHubApp adds a GitHub App that is installed for the repository; see Forge.AppCredential. Its tokens are valid for an hour.
	GitHubApp bool
	// NoDrafts simulates a plan of GitHub without draft pull requests.
	NoDrafts bool
	// RootURL is the beginning of the URLs of pull requests' pages in answers; "" means the URL of the server. It simulates a
	// forge that is configured with a wrong URL of its own.
	RootURL string
}

// A Request is a request that a Forge has received, whether it was authorized or not.
type Request struct {
	Method string
	Path   string // escaped, with the query
	// User is the user of Basic authentication, or "Bearer", "token" or "PRIVATE-TOKEN"; "" without authentication.
	User   string
	Status int // HTTP status of the answer
}

// A Forge has one repository, with a commit on main. Its methods are safe for concurrent use.
type Forge struct {
	URL   string // URL to clone from
	API   string // base URL of the REST API
	Dir   string // the bare repository
	Roots string // the certificate of the server as PEM; "" without TLS

	t   testing.TB
	git *gitserver.Server // serves the repository
	srv *httptest.Server  // serves git and the API
	app app               // the GitHub App, if there is one

	mu       sync.Mutex
	o        Options              // current options; guarded by mu
	pulls    []*Pull              // guarded by mu
	requests []Request            // guarded by mu
	minted   map[string]time.Time // tokens of the App and their expiry times; guarded by mu
}

// New returns a running forge, which is stopped at the end of the test.
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
	f.git = gitserver.New(t, gitserver.Options{FailPushes: o.FailPushes, LosePushes: o.LosePushes, Reject: o.RejectPush})
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

// Set changes the options. Changes to the options of pushes apply from the next push on.
func (f *Forge) Set(change func(*Options)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.o)
	o := f.o
	f.git.Set(func(g *gitserver.Options) {
		g.FailPushes, g.LosePushes, g.Reject = o.FailPushes, o.LosePushes, o.RejectPush
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

// Requests returns the requests so far.
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

// ServeHTTP records a request and answers it: a request of git, or a call of the API.
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

// serveGit passes requests with valid credentials to git.
func (f *Forge) serveGit(w http.ResponseWriter, r *http.Request) {
	if !f.authorizedForGit(r) {
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
	defer func() { // also runs when the connection is cut
		f.mu.Lock()
		defer f.mu.Unlock()
		f.git.Set(func(g *gitserver.Options) { f.o.FailPushes, f.o.LosePushes = g.FailPushes, g.LosePushes })
	}()
	f.git.ServeHTTP(w, r)
}

// authorizedForGit reports whether the git credentials are valid for the kind of forge.
func (f *Forge) authorizedForGit(r *http.Request) bool {
	user, password, ok := r.BasicAuth()
	if !ok {
		return false
	}
	switch f.kind() {
	case caisson.ForgeGitHub: // any user is accepted with a valid token
		return user != "" && f.validToken(password)
	case caisson.ForgeGitea: // the token is the user without a password, or the password of any user
		if password == "" || password == "x-oauth-basic" {
			return f.validToken(user)
		}
	}
	return user != "" && f.validToken(password)
}

// validToken reports whether a token is valid.
func (f *Forge) validToken(token string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if token == f.o.Token {
		return true
	}
	expires, ok := f.minted[token]
	return ok && time.Now().Before(expires)
}

// kind returns the current Options.Kind.
func (f *Forge) kind() caisson.Forge {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.o.Kind
}

func (f *Forge) project() string { return f.o.Owner + "/" + f.o.Repo } // without a lock, because Owner and Repo never change

// pageURL returns the URL of the project on the web site of the forge, with which the URLs of pull requests begin.
func (f *Forge) pageURL() string {
	if f.o.RootURL != "" {
		return f.o.RootURL + "/" + f.project()
	}
	return f.srv.URL + "/" + f.project()
}

// A recorder is a ResponseWriter that records the status of the answer.
type recorder struct {
	http.ResponseWriter
	status int // HTTP status of the answer
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the wrapped ResponseWriter, for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// credentials returns the user or authentication scheme of a request, and its token or password.
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
