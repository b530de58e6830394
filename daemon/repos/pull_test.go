package repos_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// again adds the repository anew, with something about it changed.
func (w *world) again(change func(*caisson.Repo)) {
	w.t.Helper()
	w.must(w.api.RemoveRepo(w.ctx(), "app"))
	r := caisson.Repo{Name: "app", URL: w.remote.RepoURL("app.git")}
	change(&r)
	_, err := w.api.AddRepo(w.ctx(), r)
	w.must(err)
}

// TestPullBody: the text of a pull request is made by the repository's template, of what the agent said and has done; what the
// agent says is no template.
func TestPullBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "one {{.Run}}", Body: " Done {{.Title}}.\u202e ", Agent: "caisson"})
	if want := "Done {{.Title}}.\n\n---\nCaisson run " + string(d.Run) + ", delivery " + string(d.ID); d.Body != want || d.Title != "one {{.Run}}" {
		t.Errorf("%q, %q, want %q", d.Title, d.Body, want)
	}
	w.again(func(r *caisson.Repo) {
		r.PullBody = "# {{.Title}}\n{{.Agent}} {{.Base}} {{.Branch}} {{.Run}} {{.Delivery}}\n{{range .Commits}}- {{.}}\n{{end}}\n{{.Answer}}"
	})
	id, dir, g := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt; git add .; git commit -qm one; echo c > c.txt; git add .; git commit -qm two; git push -q")
	d = w.deliver(caisson.DeliveryRequest{Sandbox: id, Body: "{{.Run}}", Agent: "caisson", Repo: caisson.RepoRequest{Title: "T"}})
	if want := "# T\ncaisson main " + g.Branch + " " + string(d.Run) + " " + string(d.ID) + "\n- one\n- two\n\n{{.Run}}"; d.Body != want {
		t.Errorf("%q, want %q", d.Body, want)
	}
	w.must(w.api.RemoveRepo(w.ctx(), "app"))
	for tmpl, want := range map[string]string{
		"a\n{{.Nothing}}": "line 2: there is no field .Nothing", `{{printf "%99999d" 1}}`: "no function printf", strings.Repeat("x", 17<<10): "has more than",
	} {
		_, err := w.api.AddRepo(w.ctx(), caisson.Repo{Name: "app", URL: w.remote.RepoURL("app.git"), PullBody: tmpl})
		w.wants(err, caisson.Invalid, want)
		if w.exists() {
			t.Error("it was added")
		}
	}
}

// TestAllowSecrets: if the repository allows false positives, a commit with a possible secret is accepted and its delivery held,
// never sent without a word; elsewhere it is refused.
func TestAllowSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.again(func(r *caisson.Repo) { r.AllowSecrets = []string{"testdata/**"} })
	id, dir, g := w.grant(caisson.RepoRequest{}, "")
	const secret = "ghp_" + "wJ7aB3xK9mQ2vR5tY8uP1nL4cD6eF0gH2iS7"
	w.does(id, dir, "mkdir testdata; echo 'token = "+secret+"' > testdata/x; git add .; git commit -qm x; git push -q")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id})
	if d.State != caisson.DeliveryHeld || len(d.Findings) != 1 || !strings.Contains(d.Findings[0].Message, "testdata/x") || w.at(g.Branch) != "" {
		t.Fatalf("the delivery is %+v", d)
	}
	if _, err := w.api.RetryDelivery(w.ctx(), d.ID); err != nil {
		t.Fatal(err)
	}
	w.waitFor(func() bool { return w.at(g.Branch) == d.Commit })
	for name, do := range map[string]string{
		"elsewhere":    "mkdir src; echo 'token = " + secret + "' > src/x; git add .; git commit -qm y; git push -q",
		"in a message": "echo z > testdata/z; git add .; git commit -qm 'token = " + secret + "'; git push -q",
	} {
		if out, ok := w.in(id, dir, "git reset -q --hard origin/"+g.Branch+"; "+do); ok || !strings.Contains(out, "looks like a secret") {
			t.Errorf("%s it is taken: %s", name, out)
		}
	}
	_, err := w.api.AddRepo(w.ctx(), caisson.Repo{Name: "bad", URL: w.remote.RepoURL("app.git"), AllowSecrets: []string{"["}})
	w.wants(err, caisson.Invalid, "")
}

// TestPullNeedsToken: a pull request is refused before anything is done if there is no credential to open it.
func TestPullNeedsToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, r := range map[string]caisson.Repo{
		"known":   {URL: "https://github.com/o/r", Forge: caisson.ForgeGitHub},
		"unknown": {URL: "https://git.example.org/o/r", Forge: caisson.ForgeGitea, Credential: "TOKEN"},
	} {
		r.Account, r.Name, r.Head, r.Authors = "local", name, "main", caisson.AuthorSet
		w.must(w.store.Repos().Insert(t.Context(), &r))
	}
	ask := func(name string) error {
		return w.core.CheckRepo(t.Context(), "local", caisson.RepoRequest{Name: name, Pull: true})
	}
	w.wants(ask("known"), caisson.Unauthed, "need a credential")
	w.wants(ask("unknown"), caisson.NotFound, "credential")
	w.secrets["GITHUB_TOKEN"], w.secrets["TOKEN"] = "x", "y"
	w.must(ask("known"))
	w.must(ask("unknown"))
	id, _ := w.sandbox("local")
	delete(w.secrets, "GITHUB_TOKEN")
	_, err := w.api.DeliverRepo(w.ctx(), string(id), caisson.RepoRequest{Name: "known", Pull: true}, "")
	w.wants(err, caisson.Unauthed, "need a credential")
	_, err = w.api.DeliverRepo(w.ctx(), string(id), caisson.RepoRequest{Name: "app", Pull: true}, "")
	w.wants(err, caisson.Invalid, "no forge")
}
