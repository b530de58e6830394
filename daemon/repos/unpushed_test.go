package repos_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
)

// TestUnpushed: commits and changes after an agent's last push are delivered with the pushed commits if they descend from them, and
// never replace them; a warning names those that are not delivered.
func TestUnpushed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const pushed = "echo b > b.txt; git add .; git commit -qm b; git push -q; "
	for name, tt := range map[string]struct {
		script string
		log    string
		left   string
	}{
		"nothing":              {pushed, "b", ""},
		"not committed":        {pushed + "echo c > c.txt; rm a.txt", "more b", ""},
		"not pushed":           {pushed + "echo c > c.txt; git add .; git commit -qm c", "c b", ""},
		"both":                 {pushed + "echo c > c.txt; git add .; git commit -qm c; echo d >> b.txt", "more c b", ""},
		"ignored":              {pushed + "echo junk > .git/info/exclude; touch junk", "b", ""},
		"elsewhere, nothing":   {pushed + "git checkout -q origin/main", "b", ""},
		"elsewhere, something": {pushed + "git checkout -q origin/main; echo c > c.txt", "b", "does not follow"},
		"another history":      {pushed + "git reset -q --hard origin/main; echo c > c.txt; git add .; git commit -qm c", "b", "does not follow"},
		"taken back":           {pushed + "git reset -q --hard HEAD~", "b", ""},
		"a merge": {pushed + "git checkout -q -b side HEAD~; echo x > b.txt; git add .; git commit -qm x; git checkout -q -; git merge -q side || true",
			"b", "a merge is not finished"},
		"denied":         {pushed + "mkdir -p .github/workflows; echo 'on: push' > .github/workflows/ci.yml", "b", "ci.yml"},
		"another branch": {"echo b > b.txt; git add .; git commit -qm b; git push -q origin HEAD:refs/heads/other; echo c > c.txt", "more b", ""},
		"no clone":       {pushed + "rm -rf .git", "b", "could not be fetched"},
	} {
		t.Run(name, func(t *testing.T) {
			id, dir, g := w.grant(caisson.RepoRequest{}, "")
			w.does(id, dir, tt.script)
			var left error
			d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "more", OnIncomplete: func(why error) { left = why }})
			if d.State != caisson.DeliveryDelivered || (left != nil) != (tt.left != "") || left != nil && !strings.Contains(caisson.MessageOf(left), tt.left) {
				t.Fatalf("the delivery is %s (%s), and left was: %v", d.State, d.Error, left)
			}
			if log := strings.Fields(gitserver.Git(t, w.bare, "log", "--format=%s", "main.."+g.Branch)); strings.Join(log, " ") != tt.log {
				t.Errorf("the branch has %q, want %q", log, tt.log)
			}
		})
	}
	// DeliverRepo returns the error instead of delivering the rest.
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, pushed+"git checkout -q origin/main; echo c > c.txt")
	_, err := w.api.DeliverRepo(w.ctx(), string(id), caisson.RepoRequest{Name: "app"}, dir)
	w.wants(err, caisson.Denied, "does not follow")
	if d, err := w.api.DeliverRepo(w.ctx(), string(id), caisson.RepoRequest{Name: "app"}, ""); err != nil || w.ended(d.ID).State != caisson.DeliveryDelivered {
		t.Errorf("what was pushed: %+v, %v", d, err)
	}
}

// TestDeliverByHand tests that commits which a sandbox without a run has delivered, or has waiting, are not delivered again, and that a
// denial says what to do about the commit.
func TestDeliverByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir := w.sandbox("local")
	_, err := w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id, Repo: caisson.RepoRequest{Name: "app"}, Dir: dir})
	w.must(err)
	w.does(id, dir, "echo n > n.txt")
	app := caisson.RepoRequest{Name: "app"}
	d, err := w.api.DeliverRepo(w.ctx(), string(id), app, dir)
	w.must(err)
	if d = w.ended(d.ID); d.State != caisson.DeliveryDelivered {
		t.Fatalf("%+v", d)
	}
	_, err = w.api.DeliverRepo(w.ctx(), string(id), app, dir)
	w.wants(err, caisson.NotFound, "its commits are in delivery "+string(d.ID)+", which is delivered")
	_, err = w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id, Repo: caisson.RepoRequest{Name: "app", Branch: "other"}, Dir: dir})
	w.wants(err, caisson.Conflict, "use another sandbox")
	w.does(id, dir, "mkdir -p .github/workflows; echo 'on: push' > .github/workflows/ci.yml")
	_, err = w.api.DeliverRepo(w.ctx(), string(id), app, dir)
	w.wants(err, caisson.Denied, "caisson repo add --allow")
	w.wants(err, caisson.Denied, "git reset --soft")
	if text := caisson.MessageOf(err); strings.Contains(text, "remote:") || strings.Contains(text, "its last output") {
		t.Errorf("the message has git's own: %s", text)
	}
	w.does(id, dir, "git reset -q --soft HEAD~; git rm -rqf --cached .github; rm -r .github; echo b > b.txt")
	d, err = w.api.DeliverRepo(w.ctx(), string(id), app, dir)
	w.must(err)
	if d = w.ended(d.ID); d.State != caisson.DeliveryDelivered {
		t.Errorf("%+v", d)
	}
}
