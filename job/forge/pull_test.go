package forge

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/forge/forgetest"
)

const testToken = "ghp_0123456789abcdefSECRET"

var kinds = []caisson.Forge{caisson.ForgeGitHub, caisson.ForgeGitLab, caisson.ForgeGitea}

// bench is a forge and a Tool for it.
type bench struct {
	*forgetest.Forge
	t      *testing.T
	tool   *Tool
	server Server
}

func newBench(t *testing.T, o forgetest.Options) *bench {
	t.Helper()
	if o.Token == "" {
		o.Token = testToken
	}
	b := &bench{t: t, tool: NewTool(workertest.Runner(t)), Forge: forgetest.New(t, o)}
	s, err := Locate(b.URL, o.Kind, "")
	if err != nil {
		t.Fatal(err)
	}
	if s.API != b.API {
		t.Fatalf("the API is at %s, not %s", b.API, s.API)
	}
	s.Token, s.Local, s.Roots = caisson.NewSecret(o.Token), true, b.Roots
	b.server = s
	return b
}

// pull opens the pull request of branch caisson/1.
func (b *bench) pull(change func(*PullRequest)) (*Pull, error) {
	b.t.Helper()
	p := PullRequest{Head: "caisson/1", Base: "main", Title: "Fix it", Body: "Because.\n"}
	if change != nil {
		change(&p)
	}
	pull, err := b.tool.Pull(b.t.Context(), b.server, p)
	if err != nil && strings.Contains(err.Error(), b.server.Token.Reveal()) {
		b.t.Errorf("the error shows the token: %v", err)
	}
	return pull, err
}

func (b *bench) mustPull(change func(*PullRequest)) *Pull {
	b.t.Helper()
	p, err := b.pull(change)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

func wantKind(t *testing.T, err error, kind caisson.Kind, words ...string) {
	t.Helper()
	if caisson.KindOf(err) != kind || err == nil {
		t.Fatalf("%v, want %s", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(caisson.MessageOf(err), w) {
			t.Errorf("%q does not say %q", caisson.MessageOf(err), w)
		}
	}
}

func each(t *testing.T, test func(t *testing.T, kind caisson.Forge)) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) { test(t, kind) })
	}
}

func ready(p *PullRequest)  { p.Ready = true }
func update(p *PullRequest) { p.Update, p.Title, p.Body = true, "Better", "Now.\n/merge\n" }

func TestPull(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind})
		b.Branch("caisson/1")
		got := b.mustPull(nil)
		want := Pull{Number: 1, URL: b.Pulls()[0].URL, Draft: true, State: "open"}
		if *got != want {
			t.Errorf("%+v, want %+v", *got, want)
		}
		made := b.Pulls()[0]
		title := map[caisson.Forge]string{caisson.ForgeGitHub: "Fix it", caisson.ForgeGitLab: "Draft: Fix it", caisson.ForgeGitea: "WIP: Fix it"}[kind]
		if made.Title != title || made.Body != "Because.\n" || made.Head != "caisson/1" || made.Base != "main" {
			t.Errorf("%+v", made)
		}
		// Again, with Ready: the existing pull request stays a draft.
		if again := b.mustPull(ready); *again != want || len(b.Pulls()) != 1 || b.Pulls()[0] != made {
			t.Errorf("%+v, %+v", again, b.Pulls())
		}
		if again := b.mustPull(update); *again != want {
			t.Errorf("%+v", again)
		}
		updated := b.Pulls()[0]
		body := "Now.\n/merge\n"
		if kind == caisson.ForgeGitLab {
			body = "Now.\n\\/merge\n"
		}
		if len(b.Pulls()) != 1 || updated.Title != strings.Replace(title, "Fix it", "Better", 1) || updated.Body != body || !updated.Draft {
			t.Errorf("%+v", b.Pulls())
		}
	})
}

func TestPullReady(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind})
		b.Branch("caisson/1")
		if p := b.mustPull(ready); p.Draft || b.Pulls()[0].Draft || b.Pulls()[0].Title != "Fix it" {
			t.Errorf("%+v, %+v", p, b.Pulls())
		}
		// A draft is requested, but a user may have marked this one as ready.
		if p := b.mustPull(update); p.Draft || b.Pulls()[0].Draft || b.Pulls()[0].Title != "Better" {
			t.Errorf("%+v, %+v", p, b.Pulls())
		}
	})
}

// TestPullLost: the forge has created the pull request, but its answer was lost.
func TestPullLost(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind, LosePullAnswers: 1})
		b.Branch("caisson/1")
		_, err := b.pull(nil)
		wantKind(t, err, caisson.Unavailable, "broke off")
		if p := b.mustPull(nil); p.Number != 1 || len(b.Pulls()) != 1 {
			t.Errorf("%+v, %+v", p, b.Pulls())
		}
	})
}

// TestPullOthers: similar pull requests are not mistaken for the requested one.
func TestPullOthers(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind})
		b.Branch("caisson/1")
		b.Branch("release")
		b.AddPull("caisson/1", "main", "open", true)
		b.AddPull("caisson/1", "release", "open", false)
		b.AddPull("caisson/11", "main", "open", false)
		b.AddPull("caisson/1", "main", "closed", false)
		b.AddPull("caisson/1", "main", "merged", false)
		if p := b.mustPull(nil); p.Number != 6 {
			t.Errorf("%+v", p)
		}
		if p := b.mustPull(nil); p.Number != 6 || len(b.Pulls()) != 6 {
			t.Errorf("%+v", p)
		}
	})
}

// TestPullHidden: find misses the pull request, create reports that it exists, and it is on a later page.
func TestPullHidden(t *testing.T) {
	b := newBench(t, forgetest.Options{Kind: caisson.ForgeGitea})
	b.Branch("caisson/1")
	b.AddPull("caisson/1", "main", "closed", false) // the one that Gitea returns
	b.AddPull("caisson/1", "main", "open", false)
	for i := range 25 {
		b.AddPull(fmt.Sprintf("x/%d", i), "main", "open", i%2 == 0)
	}
	if p := b.mustPull(nil); p.Number != 2 {
		t.Errorf("%+v", p)
	}
}

// TestSearchEnds: the search is bounded although the forge returns pages without end.
func TestSearchEnds(t *testing.T) {
	var pages atomic.Int32
	tool, s := against(t, caisson.ForgeGitea, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusConflict)
		case r.URL.Query().Has("page"):
			pages.Add(1)
			fmt.Fprint(w, `[{"number":1,"state":"open"}]`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	_, err := tool.Pull(t.Context(), s, somePull)
	wantKind(t, err, caisson.Conflict, "already")
	if n := pages.Load(); n != maxPages {
		t.Errorf("%d pages", n)
	}
}

func TestPullNoDrafts(t *testing.T) {
	b := newBench(t, forgetest.Options{Kind: caisson.ForgeGitHub, NoDrafts: true})
	b.Branch("caisson/1")
	if p := b.mustPull(nil); p.Draft || p.Number != 1 {
		t.Errorf("%+v", p)
	}
}

func TestPullRefused(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind})
		missing := caisson.Invalid
		if kind == caisson.ForgeGitea {
			missing = caisson.NotFound
		}
		_, err := b.pull(nil) // the branch does not exist
		wantKind(t, err, missing)
		b.Branch("caisson/1")
		_, err = b.pull(func(p *PullRequest) { p.Base = "nowhere" })
		wantKind(t, err, missing)
		_, err = b.pull(func(p *PullRequest) { p.Base = p.Head })
		wantKind(t, err, caisson.Invalid)
		for _, name := range []string{"", "-x", "a..b", "a b", "refs/../x", "a\nb", "x.lock", "a//b", "@{1}", "a:b"} {
			_, err = b.pull(func(p *PullRequest) { p.Head = name })
			wantKind(t, err, caisson.Invalid, "valid names")
		}
		s := b.server
		b.server.Project = "acme/other"
		_, err = b.pull(nil)
		wantKind(t, err, caisson.NotFound)
		b.server = s
		b.server.Token = caisson.NewSecret("wrong-token")
		_, err = b.pull(nil)
		wantKind(t, err, caisson.Unauthed)
		b.server.Token = caisson.NewSecret("two words\n")
		_, err = b.pull(nil)
		wantKind(t, err, caisson.Unauthed)
		b.server.Token = caisson.Secret{}
		if _, err := b.tool.Pull(t.Context(), b.server, PullRequest{Head: "a", Base: "b"}); caisson.KindOf(err) != caisson.Unauthed {
			t.Error(err)
		}
		if n := len(b.Pulls()); n != 0 {
			t.Errorf("%d pull requests", n)
		}
	})
}

func TestPullUnavailable(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind, FailPulls: 1, RateLimitPulls: 1})
		b.Branch("caisson/1")
		_, err := b.pull(nil)
		wantKind(t, err, caisson.Unavailable, "status 503")
		if d := RetryAfter(err); d != 0 {
			t.Errorf("to be left alone for %v", d)
		}
		_, err = b.pull(nil)
		wantKind(t, err, caisson.Unavailable, "limits the rate")
		if d := RetryAfter(err); d != time.Second {
			t.Errorf("to be left alone for %v", d)
		}
		b.mustPull(nil)
		b.server.API = "http://127.0.0.1:1"
		_, err = b.pull(nil)
		wantKind(t, err, caisson.Unavailable, "127.0.0.1:1 cannot be reached")
	})
}

func TestPullTLS(t *testing.T) {
	b := newBench(t, forgetest.Options{Kind: caisson.ForgeGitHub, TLS: true})
	b.Branch("caisson/1")
	if p := b.mustPull(nil); !strings.HasPrefix(p.URL, "https://127.0.0.1:") {
		t.Errorf("%+v", p)
	}
	b.server.Roots = ""
	_, err := b.pull(nil)
	wantKind(t, err, caisson.Unavailable, "cannot be trusted")
	b.server.Roots = "x"
	_, err = b.pull(nil)
	wantKind(t, err, caisson.Invalid, "PEM")
}

// TestPullWrongRoot: if the forge reports wrong addresses of its pages, the pull request's URL is still right.
func TestPullWrongRoot(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind, RootURL: "http://evil.example.org"})
		b.Branch("caisson/1")
		want := b.server.Web + map[caisson.Forge]string{caisson.ForgeGitHub: "/pull/1", caisson.ForgeGitLab: "/-/merge_requests/1", caisson.ForgeGitea: "/pulls/1"}[kind]
		if p := b.mustPull(nil); p.URL != want {
			t.Errorf("%q, want %q", p.URL, want)
		}
		b.server.Web = ""
		if p := b.mustPull(nil); p.URL != "" {
			t.Errorf("%q", p.URL)
		}
	})
}

// TestPullAtOnce: of many concurrent callers, one creates the pull request and all get it.
func TestPullAtOnce(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind})
		b.Branch("caisson/1")
		errs := make(chan error)
		for range 4 {
			go func() {
				p, err := b.tool.Pull(t.Context(), b.server, PullRequest{Head: "caisson/1", Base: "main"})
				if err == nil && p.Number != 1 {
					err = fmt.Errorf("%+v", p)
				}
				errs <- err
			}()
		}
		for range 4 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if len(b.Pulls()) != 1 || !strings.HasSuffix(b.Pulls()[0].Title, "caisson/1") {
			t.Errorf("%+v", b.Pulls())
		}
	})
}

// TestPullSlashes: branch names with slashes need escaping in paths and filters of APIs.
func TestPullSlashes(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind})
		for _, head := range []string{"caisson/1", "a#b%2Fc", "ä/ö"} {
			b.Branch(head)
		}
		gitserver.Git(t, b.Dir, "branch", "release/1.0", "main")
		b.AddPull("caisson/1", "release/1.0", "closed", false)
		for i, head := range []string{"caisson/1", "a#b%2Fc", "ä/ö"} {
			for range 2 {
				p := b.mustPull(func(p *PullRequest) { p.Head, p.Base = head, "release/1.0" })
				if p.Number != int64(i+2) {
					t.Errorf("%s: %+v", head, p)
				}
			}
		}
	})
}

// TestPullWithPassword: a credential may be user:password, as for git.
func TestPullWithPassword(t *testing.T) {
	each(t, func(t *testing.T, kind caisson.Forge) {
		b := newBench(t, forgetest.Options{Kind: kind})
		b.Branch("caisson/1")
		b.server.Token = caisson.NewSecret("ada:" + testToken)
		b.mustPull(nil)
		want := map[caisson.Forge]string{caisson.ForgeGitHub: "Bearer", caisson.ForgeGitLab: "Bearer", caisson.ForgeGitea: "ada"}[kind]
		for _, r := range b.Requests() {
			if r.User != want {
				t.Errorf("%+v", r)
			}
		}
	})
}

// TestPullSubgroup: projects of GitLab may be below any number of groups.
func TestPullSubgroup(t *testing.T) {
	b := newBench(t, forgetest.Options{Kind: caisson.ForgeGitLab, Owner: "acme/team/x"})
	b.Branch("caisson/1")
	if p := b.mustPull(nil); !strings.HasSuffix(p.URL, "/acme/team/x/app/-/merge_requests/1") {
		t.Errorf("%+v", p)
	}
}
