package repos_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestClone looks at the clone that a sandbox is given as git does: it is whole, has what was granted and no more, and works like
// one that git has made.
func TestClone(t *testing.T) {
	w := newWorld(t)
	id, dir, g := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, `
		git fsck --full --strict
		test -z "$(git status --porcelain)"
		test "$(git rev-parse HEAD)" = `+g.From+`
		test "$(git rev-parse origin/HEAD)" = `+g.From+`
		test "$(git branch --show-current)" = `+g.Branch+`
		test -z "$(ls .git/objects/pack | grep -v '^pack-[0-9a-f]*\.\(pack\|idx\|rev\)$')"
		git fetch -q origin
		git clone -q http://git.caisson.internal/app ../other
		test "$(git rev-list --objects --all | sort)" = "$(git -C ../other rev-list --objects --all | sort)"
		echo more >more.txt
		git add more.txt
		git commit -qm more
		git push -q
	`)
	if d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Repo: caisson.RepoRequest{}}); d.State != caisson.DeliveryDelivered || w.at(g.Branch) == "" {
		t.Errorf("%+v", d)
	}
}

// TestCloneIntoWhatIsThere clones where an agent's files are, and where a clone has been before.
func TestCloneIntoWhatIsThere(t *testing.T) {
	w := newWorld(t)
	id, dir := w.sandbox("local")
	access := caisson.RepoAccess{Account: "local", Sandbox: id, Repo: caisson.RepoRequest{Name: "app"}, Dir: dir}
	w.does(id, "/", "mkdir -p "+dir+"; cd "+dir+"; echo mine >AGENTS.local; git init -q; git config remote.origin.url http://nowhere.invalid/")
	g, err := w.core.Grant(t.Context(), access)
	w.must(err)
	w.does(id, dir, `
		test "$(git rev-parse HEAD)" = `+g.From+`
		test "$(cat AGENTS.local)" = mine
		test -z "$(git status --porcelain)"
		git fetch -q origin
	`)
}

// TestCloneFails: the error of a failed clone has the output of git in the sandbox, and the grant is removed.
func TestCloneFails(t *testing.T) {
	for name, prepare := range map[string]string{
		"a file is in the way": "mkdir -p DIR; echo x >DIR/.git",
		"it looks like a push": `mkdir -p DIR; printf 'gitdir: /nowhere/x\nremote: no\n' >DIR/.git`,
		"packs cannot be made": "mkdir -p DIR/.git/objects; echo x >DIR/.git/objects/pack",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id, dir := w.sandbox("local")
			w.does(id, "/", strings.ReplaceAll(prepare, "DIR", dir))
			_, err := w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id, Repo: caisson.RepoRequest{Name: "app"}, Dir: dir})
			w.wants(err, caisson.Unavailable, "could not be cloned: git in the sandbox exited")
			if w.exists("stores", string(id)) {
				t.Error("the sandbox has the repository all the same")
			}
		})
	}
}
