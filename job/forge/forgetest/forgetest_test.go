package forgetest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
)

var kinds = []caisson.Forge{caisson.ForgeGitHub, caisson.ForgeGitLab, caisson.ForgeGitea}

// with returns the address to clone from with a user and password in it, a form that only tests use.
func (f *Forge) with(user, password string) string {
	return strings.Replace(f.URL, "://", "://"+user+":"+password+"@", 1)
}

// work clones f and commits once to a branch there.
func work(t *testing.T, f *Forge, branch string) (dir, commit string) {
	t.Helper()
	dir = t.TempDir()
	gitserver.Git(t, dir, "clone", "-q", f.with("oauth2", f.o.Token), ".")
	gitserver.Git(t, dir, "checkout", "-q", "-b", branch)
	return dir, gitserver.Commit(t, dir, "work", map[string]string{"a": "b\n"})
}

func TestGit(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			f := New(t, Options{Kind: kind})
			dir, commit := work(t, f, "x/1")
			gitserver.Git(t, dir, "push", "-q", "origin", "x/1")
			if f.Branches()["x/1"] != commit || len(f.Branches()) != 2 {
				t.Errorf("%v", f.Branches())
			}
			for _, wrong := range []string{f.URL, f.with("oauth2", "wrong"), f.with(f.o.Token, "wrong")} {
				if out, err := gitserver.TryGit(t, dir, "ls-remote", wrong); err == nil {
					t.Errorf("%s: %s", wrong, out)
				}
			}
			if out, err := gitserver.TryGit(t, dir, "ls-remote", f.with(f.o.Token, "x-oauth-basic")); (err == nil) != (kind == caisson.ForgeGitea) {
				t.Errorf("%v, %s", err, out)
			}
			if out, err := gitserver.TryGit(t, dir, "ls-remote", strings.Replace(f.with("u", f.o.Token), "/app", "/other", 1)); err == nil {
				t.Errorf("%s", out)
			}
			gitserver.Git(t, dir, "ls-remote", strings.TrimSuffix(f.with("u", f.o.Token), ".git"))
			seen := f.Requests()
			if seen[0].User != "" || seen[0].Status != http.StatusUnauthorized || seen[1].User != "oauth2" || seen[1].Status != http.StatusOK {
				t.Errorf("%+v", seen)
			}
		})
	}
}

func TestPushesFail(t *testing.T) {
	f := New(t, Options{FailPushes: 1, LosePushes: 1})
	dir, commit := work(t, f, "x")
	out, err := gitserver.TryGit(t, dir, "push", "-q", "origin", "x")
	if err == nil || !strings.Contains(out, "503") || f.Branches()["x"] != "" {
		t.Errorf("%v, %s", err, out)
	}
	if out, err := gitserver.TryGit(t, dir, "push", "-q", "origin", "x"); err == nil || f.Branches()["x"] != commit {
		t.Errorf("%v, %s", err, out)
	}
	gitserver.Git(t, dir, "push", "-q", "origin", "x")
	f.Set(func(o *Options) { o.RejectPush = "error: GH006: Protected branch update failed for refs/heads/y." })
	if out, err := gitserver.TryGit(t, dir, "push", "origin", "x:y"); err == nil || !strings.Contains(out, "remote: error: GH006") || f.Branches()["y"] != "" {
		t.Errorf("%v, %s", err, out)
	}
	f.Set(func(o *Options) { o.RejectPush = "" })
	gitserver.Git(t, dir, "push", "-q", "origin", "x:y")
}

// ask makes one call of an API.
func (f *Forge) ask(t *testing.T, method, path string, in any) (*http.Response, map[string]any) {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, f.API+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+f.o.Token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if json.Unmarshal(body, &out) != nil {
		var list []any
		if err := json.Unmarshal(body, &list); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		out["list"] = list
	}
	return resp, out
}

// TestAPI: status codes and messages match the documentation of each forge.
func TestAPI(t *testing.T) {
	for _, tt := range []struct {
		kind       caisson.Forge
		path       string
		head, base string // names of the fields
		same       int    // status for head = base
		missing    int    // status for a branch that does not exist
		twice      int
		words      string // error message for a second pull request
		per        string
	}{
		{caisson.ForgeGitHub, "/repos/acme/app/pulls", "head", "base", 422, 422, 422, "A pull request already exists for acme:x.", "per_page"},
		{caisson.ForgeGitLab, "/projects/acme%2Fapp/merge_requests", "source_branch", "target_branch", 422, 422, 409, "Another open merge request already exists for this source branch: !1", "per_page"},
		{caisson.ForgeGitea, "/repos/acme/app/pulls", "head", "base", 422, 404, 409, "pull request already exists for these targets", "limit"},
	} {
		t.Run(string(tt.kind), func(t *testing.T) {
			f := New(t, Options{Kind: tt.kind})
			f.Branch("x")
			create := func(head, base string) (int, string) {
				resp, body := f.ask(t, http.MethodPost, tt.path, map[string]string{"title": "t", tt.head: head, tt.base: base})
				text, err := json.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, string(text)
			}
			if n, body := create("main", "main"); n != tt.same {
				t.Errorf("%d %s", n, body)
			}
			if n, body := create("nowhere", "main"); n != tt.missing {
				t.Errorf("%d %s", n, body)
			}
			if n, body := create("x", "main"); n != http.StatusCreated {
				t.Errorf("%d %s", n, body)
			}
			if n, body := create("x", "main"); n != tt.twice || !strings.Contains(body, tt.words) {
				t.Errorf("%d %s", n, body)
			}
			f.AddPull("x", "y", "open", true)
			resp, body := f.ask(t, http.MethodGet, tt.path+"?"+tt.per+"=1", nil)
			if list, _ := body["list"].([]any); len(list) != 1 || !strings.Contains(resp.Header.Get("Link"), `page=2>; rel="next"`) && !strings.Contains(resp.Header.Get("Link"), "page=2&") {
				t.Errorf("%v %v", resp.Header, body)
			}
			if resp, _ := f.ask(t, http.MethodGet, tt.path+"?"+tt.per+"=1&page=2", nil); resp.Header.Get("Link") != "" {
				t.Errorf("%v", resp.Header)
			}
		})
	}
}
