package repos

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/remoteurl"
	"github.com/caisson-dev/caisson/job/worker"
)

// relayURL is the URL of the relay in sandboxes. The name of a repository is appended to it.
const relayURL = "http://git.caisson.internal/"

// access grants sandboxes the use of repositories.
type access struct {
	repos      caisson.Table[caisson.Repo]
	deliveries deliveries     // deliveries in the store
	jobs       worker.Starter // starts worker jobs
	dirs       *directories   // directories of repositories
	remotes    *remotes       // connects to remotes and forges
	mirrors    *mirrors       // creates and fetches mirrors
	grants     *grants        // grants of all repositories
	keeper     *keeper        // removes unused files, and limits space
	inSandbox  *sandboxGit    // clones repositories into sandboxes
	events     caisson.Publisher
}

// check implements [caisson.Relay.CheckRepo]. In addition it returns the repository that the request names.
func (a *access) check(ctx context.Context, account string, req caisson.RepoRequest) (*caisson.Repo, error) {
	r, err := a.repos.Get(ctx, caisson.In(account), req.Name)
	if err != nil {
		return nil, err
	}
	for _, b := range append([]string{req.Base, req.Branch}, req.Read...) {
		if b != "" && !refname.Valid(b) {
			return nil, caisson.Invalidf("repo", "%.100q is not a valid name of a branch", b)
		}
	}
	if req.Branch != "" {
		if why := protectedBranch(r, req.Branch, cmp.Or(req.Base, r.Head)); why != "" {
			return nil, caisson.Invalidf("repo.branch", "%s; choose another branch", why)
		}
	}
	if req.Pull && r.Forge == caisson.ForgeNone {
		return nil, caisson.Invalidf("repo.pull", "the remote of %s is no forge that pull requests can be opened at; leave --pr out, or remove the repository and add it with caisson repo add --forge", r.Name)
	}
	at, err := locate(r)
	if err != nil || !req.Pull {
		return r, err
	}
	if at.url.Scheme == remoteurl.SSH {
		return nil, caisson.Invalidf("repo.pull", "%s is opened with an SSH key, which opens no pull requests; add it by its https address, with a token", r.Name)
	}
	secret, err := a.remotes.storedCredential(ctx, r, at)
	if err == nil && secret.IsZero() {
		err = errNoToken(r)
	}
	return r, err
}

// protectedBranch returns the reason why no commits may be pushed to branch, "" if it is not protected. base is the branch that
// the work of the sandbox starts from.
func protectedBranch(r *caisson.Repo, branch, base string) string {
	switch {
	case branch == base:
		return fmt.Sprintf("%.100q is the branch that work starts from", branch)
	case branch == r.Head || branch == "main" || branch == "master":
		return fmt.Sprintf("%.100q is protected", branch)
	}
	for _, p := range r.Protected {
		if check.MatchPath(p, branch) || check.MatchPath(strings.ToLower(p), strings.ToLower(branch)) || check.ValidPattern(p) != nil {
			return fmt.Sprintf("%.100q is protected by %.100q", branch, p)
		}
	}
	return ""
}

// grant implements [caisson.Relay.Grant].
func (a *access) grant(ctx context.Context, req caisson.RepoAccess) (*caisson.RepoGrant, error) {
	r, err := a.check(ctx, req.Account, req.Repo)
	if err != nil {
		return nil, err
	}
	if g := a.grants.get(req.Sandbox, r.Name); g != nil {
		return a.renew(g, req)
	}
	if r, err = a.mirrors.freshen(ctx, r, req.Warn); err != nil {
		return nil, err
	}
	g, start, err := a.create(ctx, r, req)
	if err != nil {
		return nil, err
	}
	if req.Dir != "" {
		err := a.inSandbox.clone(ctx, r, g, req.Dir, start)
		if err == nil {
			_, err = a.grants.change(g, func(g *grant) { g.Cloning = false })
		}
		if err != nil {
			return nil, errors.Join(err, a.grants.remove(g))
		}
	}
	return repoGrant(g, start), nil
}

// create creates a grant, with its view and store. start is the branch to check out.
func (a *access) create(ctx context.Context, r *caisson.Repo, req caisson.RepoAccess) (g *grant, start string, err error) {
	release, err := a.dirs.lock(ctx, r.Account, r.Name)
	if err != nil {
		return nil, "", err
	}
	defer release()
	if err := a.keeper.room(ctx, r.Account); err != nil {
		return nil, "", err
	}
	if g, start, err = a.resolve(ctx, r, req); err != nil {
		return nil, "", err
	}
	if err := a.makeView(ctx, g); err != nil {
		return nil, "", err
	}
	view, err := a.dirs.open(g.Account, g.Repo, viewsDir, g.View)
	if err != nil {
		return nil, "", err
	}
	defer view.Close()
	err = a.dirs.fill(ctx, g.Account, g.Repo, func(store *os.File) error {
		return relay.Store(ctx, a.jobs, store, view, g.Refs, headsPrefix+start)
	}, storesDir, string(g.Sandbox))
	if err != nil {
		return nil, "", err
	}
	if err := a.grants.store(g); err != nil { // the new git store is removed, so that a later grant can create one
		return nil, "", errors.Join(err, os.RemoveAll(a.dirs.path(g.Account, g.Repo, storesDir, string(g.Sandbox))))
	}
	a.events.Publish(asAccount(ctx, g.Account), g.Account, "repo.granted", g.Repo, map[string]string{
		"sandbox": string(g.Sandbox), "run": string(g.Run), "base": g.Base, "branch": g.Branch, "commit": g.From,
	})
	return g, start, nil
}

// repoGrant returns g in the form of the API. start is the branch that the work of the sandbox starts from.
func repoGrant(g *grant, start string) *caisson.RepoGrant {
	return &caisson.RepoGrant{URL: relayURL + g.Repo, Start: start, Branch: g.Branch, From: g.From}
}

// author returns the author of the commits that are sent to a repository's remote.
func author(r *caisson.Repo) (name, email string) {
	return cmp.Or(r.AuthorName, "Caisson"), cmp.Or(r.AuthorEmail, "caisson@localhost")
}

// renew makes g the grant of another run in the same sandbox, and returns it in the form of the API. Returns Conflict if the
// request names another base or branch than g, or if the repository is still being cloned.
func (a *access) renew(g *grant, req caisson.RepoAccess) (*caisson.RepoGrant, error) {
	if g.Cloning {
		return nil, caisson.Errorf(caisson.Conflict, "repository %s is being cloned into sandbox %s; try again in a moment", g.Repo, g.Sandbox)
	}
	if req.Repo.Base != "" && req.Repo.Base != g.Base || req.Repo.Branch != "" && req.Repo.Branch != g.Branch {
		if g.Run == "" {
			return nil, caisson.Errorf(caisson.Conflict, "sandbox %s has been granted branch %s from %s; leave --branch and --base out, or use another sandbox", g.Sandbox, g.Branch, g.Base)
		}
		return nil, caisson.Errorf(caisson.Conflict, "this session works on branch %s from %s; leave --branch and --base out, or begin another session", g.Branch, g.Base)
	}
	next, err := a.grants.change(g, func(g *grant) { g.Run, g.Session, g.Pushed = req.Run, req.Session, nil })
	if err != nil {
		return nil, err
	}
	if next == nil {
		return nil, errRemoved(g)
	}
	return repoGrant(next, next.Base), nil
}

const headsPrefix = "refs/heads/" // prefix of the full names of branches

// resolve returns a new grant for a request, which is not stored yet. start is the branch to check out: the branch of the grant,
// if Caisson has delivered it before and the remote still has it, else the base.
func (a *access) resolve(ctx context.Context, r *caisson.Repo, req caisson.RepoAccess) (g *grant, start string, err error) {
	have, err := a.mirrors.refs(ctx, r)
	if err != nil {
		return nil, "", err
	}
	commits := map[string]string{}
	for _, ref := range have.Refs {
		commits[ref.Name] = ref.Commit
	}
	g = &grant{
		Account: r.Account, Repo: r.Name, Sandbox: req.Sandbox, Run: req.Run, Session: req.Session, Cloning: req.Dir != "",
		Base: cmp.Or(req.Repo.Base, r.Head), Branch: req.Repo.Branch,
	}
	if g.Base == "" {
		return nil, "", caisson.Errorf(caisson.Invalid, "the remote of %s has no default branch; name a branch with --base, or push a first commit to it", r.Name)
	}
	if g.From = commits[headsPrefix+g.Base]; g.From == "" {
		return nil, "", caisson.Invalidf("repo.base", "the remote of %s has no branch %.100q; see caisson repo branches %s", r.Name, g.Base, r.Name)
	}
	last, err := a.deliveries.last(ctx, r.Account, r.Name, func(d *caisson.Delivery) bool {
		return d.Sent != "" && (d.Branch == g.Branch || g.Branch == "" && req.Session != "" && d.Session == req.Session)
	})
	if err != nil {
		return nil, "", err
	}
	if g.Branch == "" {
		g.Branch = "caisson/" + string(cmp.Or(req.Run, req.Sandbox))
		if last != nil {
			g.Branch = last.Branch
		}
	}
	start = g.Base
	if at := commits[headsPrefix+g.Branch]; at != "" {
		if last == nil || last.Branch != g.Branch || last.Sent != at {
			return nil, "", caisson.Errorf(caisson.Conflict, "branch %s of %s was created or changed by another client; choose another with --branch", g.Branch, r.Name)
		}
		start, g.From = g.Branch, last.From
	}
	for _, b := range append([]string{g.Base, start}, req.Repo.Read...) {
		commit := commits[headsPrefix+b]
		if commit == "" {
			return nil, "", caisson.Invalidf("repo.read", "the remote of %s has no branch %.100q; see caisson repo branches %s", r.Name, b, r.Name)
		}
		if ref := (git.Ref{Name: headsPrefix + b, Commit: commit}); !slices.Contains(g.Refs, ref) {
			g.Refs = append(g.Refs, ref)
		}
	}
	slices.SortFunc(g.Refs, func(a, b git.Ref) int { return strings.Compare(a.Name, b.Name) })
	g.View = viewKey(g.Refs)
	return g, start, nil
}

// viewKey returns the name of the view that has refs and no others. It is a hash, so that grants of the same refs share one view.
func viewKey(refs []git.Ref) string {
	h := sha256.New()
	for _, r := range refs {
		fmt.Fprintf(h, "%s %s\n", r.Commit, r.Name)
	}
	return hex.EncodeToString(h.Sum(nil))[:40]
}

// makeView makes the view of a grant unless it exists. The caller must hold the repository's lock.
func (a *access) makeView(ctx context.Context, g *grant) error {
	if _, err := os.Lstat(a.dirs.path(g.Account, g.Repo, viewsDir, g.View)); err == nil {
		return nil
	}
	mirror, err := a.dirs.open(g.Account, g.Repo, mirrorDir)
	if err != nil {
		return err
	}
	defer mirror.Close()
	return a.dirs.fill(ctx, g.Account, g.Repo, func(view *os.File) error {
		return relay.View(ctx, a.jobs, mirror, view, g.Refs)
	}, viewsDir, g.View)
}
