package repos

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate/check"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/relay/git"
	"github.com/caisson-dev/caisson/relay/remoteurl"
)

// host is where sandboxes find repositories.
const host = "http://git.caisson.internal/"

// A grant is what one sandbox may do with one repository.
type grant struct {
	Account string     `json:"account"`
	Repo    string     `json:"repo"`
	Sandbox caisson.ID `json:"sandbox"`
	Run     caisson.ID `json:"run,omitempty"` // that pushes are charged to now
	Session caisson.ID `json:"session,omitempty"`
	Base    string     `json:"base"`
	Branch  string     `json:"branch"`
	From    string     `json:"from"` // commit of the base branch
	View    string     `json:"view"`
	Refs    []git.Ref  `json:"refs"` // what may be read
	// Pushed is what the run under way has pushed, the latest last.
	Pushed []pushed  `json:"pushed,omitempty"`
	At     time.Time `json:"at"`
	// Cloning is whether the sandbox does not have its clone yet. What a daemon has left so is no grant.
	Cloning bool `json:"cloning,omitempty"`
}

// pushed is one branch as a sandbox has left it.
type pushed struct {
	Name   string `json:"name"` // full
	Commit string `json:"commit"`
}

// CheckRepo implements [caisson.Relay].
func (c *Core) CheckRepo(ctx context.Context, account string, req caisson.RepoRequest) error {
	r, err := c.Store.Repos().Get(ctx, caisson.In(account), req.Name)
	if err != nil {
		return err
	}
	for _, b := range append([]string{req.Base, req.Branch}, req.Read...) {
		if b != "" && !refname.Valid(b) {
			return caisson.Invalidf("repo", "%.100q is no name of a branch", b)
		}
	}
	if req.Branch != "" {
		if why := protectedBranch(r, req.Branch, cmp.Or(req.Base, r.Head)); why != "" {
			return caisson.Invalidf("repo.branch", "%s; choose another branch", why)
		}
	}
	if req.Pull && r.Forge == caisson.ForgeNone {
		return caisson.Invalidf("repo.pull", "the remote of %s is no forge that pull requests can be opened at; say which one with caisson repo add --forge", r.Name)
	}
	at, err := locate(r)
	if err != nil || !req.Pull {
		return err
	}
	if at.url.Scheme == remoteurl.SSH {
		return caisson.Invalidf("repo.pull", "%s is opened with an SSH key, which opens no pull requests; add it by its https address, with a token", r.Name)
	}
	secret, err := c.mirrors.stored(ctx, r, at)
	if err == nil && secret.IsZero() {
		err = errNoToken(r)
	}
	return err
}

// protectedBranch says why nothing is pushed to a branch, "" if it may be.
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

// Grant implements [caisson.Relay].
func (c *Core) Grant(ctx context.Context, a caisson.RepoAccess) (*caisson.RepoGrant, error) {
	if err := c.CheckRepo(ctx, a.Account, a.Repo); err != nil {
		return nil, err
	}
	r, err := c.Store.Repos().Get(ctx, caisson.In(a.Account), a.Repo.Name)
	if err != nil {
		return nil, err
	}
	if g := c.grants.granted(a.Sandbox, r.Name); g != nil {
		return c.grants.again(g, a)
	}
	if r, err = c.mirrors.freshen(ctx, r, a.Warn); err != nil {
		return nil, err
	}
	g, start, err := c.grants.make(ctx, r, a)
	if err != nil {
		return nil, err
	}
	if a.Dir != "" {
		err := c.grants.clone(ctx, r, g, a.Dir, start)
		if err == nil {
			_, err = c.grants.change(g, func(g *grant) { g.Cloning = false })
		}
		if err != nil {
			return nil, errors.Join(err, c.grants.forget(g))
		}
	}
	out := tell(g)
	out.Start = start
	return out, nil
}

// make makes the store of a sandbox that is let into a repository. start is the branch that work starts from.
func (c grants) make(ctx context.Context, r *caisson.Repo, a caisson.RepoAccess) (g *grant, start string, err error) {
	release, err := c.lock(ctx, r.Account, r.Name)
	if err != nil {
		return nil, "", err
	}
	defer release()
	if err := c.keeper.room(ctx, r.Account); err != nil {
		return nil, "", err
	}
	if g, start, err = c.plan(ctx, r, a); err != nil {
		return nil, "", err
	}
	if err := c.fillView(ctx, g); err != nil {
		return nil, "", err
	}
	view, err := c.open(g.Account, g.Repo, viewsDir, g.View)
	if err != nil {
		return nil, "", err
	}
	defer view.Close()
	err = c.place(ctx, g.Account, g.Repo, func(store *os.File) error {
		return c.Git.Store(ctx, store, view, g.Refs, heads+start)
	}, storesDir, string(g.Sandbox))
	if err != nil {
		return nil, "", err
	}
	if err := c.keep(g); err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(c.dir(g.Account, g.Repo, storesDir, string(g.Sandbox)))) // it would be in the next one's way
	}
	c.Events.Publish(as(ctx, g.Account), g.Account, "repo.granted", g.Repo, map[string]string{
		"sandbox": string(g.Sandbox), "run": string(g.Run), "base": g.Base, "branch": g.Branch, "commit": g.From,
	})
	return g, start, nil
}

// tell is what a run is told of its grant.
func tell(g *grant) *caisson.RepoGrant {
	return &caisson.RepoGrant{URL: host + g.Repo, Start: g.Base, Branch: g.Branch, From: g.From}
}

func author(r *caisson.Repo) (name, email string) {
	return cmp.Or(r.AuthorName, "Caisson"), cmp.Or(r.AuthorEmail, "caisson@localhost")
}

// again begins another run of a sandbox that has been let in.
func (c grants) again(g *grant, a caisson.RepoAccess) (*caisson.RepoGrant, error) {
	if g.Cloning {
		return nil, caisson.Errorf(caisson.Conflict, "repository %s is being cloned into sandbox %s; try again in a moment", g.Repo, g.Sandbox)
	}
	if a.Repo.Base != "" && a.Repo.Base != g.Base || a.Repo.Branch != "" && a.Repo.Branch != g.Branch {
		return nil, caisson.Errorf(caisson.Conflict, "this session works on branch %s from %s; leave --branch and --base out, or begin another session", g.Branch, g.Base)
	}
	next, err := c.change(g, func(g *grant) { g.Run, g.Session, g.Pushed = a.Run, a.Session, nil })
	if err != nil {
		return nil, err
	}
	if next == nil {
		return nil, caisson.Errorf(caisson.NotFound, "repository %s was removed", g.Repo)
	}
	return tell(next), nil
}

const heads = "refs/heads/"

// plan settles what a sandbox is granted. start is the branch to check out: the base, or the branch itself if Caisson has delivered it before.
func (c grants) plan(ctx context.Context, r *caisson.Repo, a caisson.RepoAccess) (g *grant, start string, err error) {
	have, err := c.mirrors.mirrored(ctx, r)
	if err != nil {
		return nil, "", err
	}
	commits := map[string]string{}
	for _, ref := range have.Refs {
		commits[ref.Name] = ref.Commit
	}
	g = &grant{
		Account: r.Account, Repo: r.Name, Sandbox: a.Sandbox, Run: a.Run, Session: a.Session, At: now(), Cloning: a.Dir != "",
		Base: cmp.Or(a.Repo.Base, r.Head), Branch: a.Repo.Branch,
	}
	if g.Base == "" {
		return nil, "", caisson.Errorf(caisson.Invalid, "the remote of %s has no default branch; say which with --base, or push a first commit to it", r.Name)
	}
	if g.From = commits[heads+g.Base]; g.From == "" {
		return nil, "", caisson.Invalidf("repo.base", "the remote of %s has no branch %.100q; see caisson repo branches %s", r.Name, g.Base, r.Name)
	}
	last, err := c.lastOf(ctx, r, a, g.Branch)
	if err != nil {
		return nil, "", err
	}
	if g.Branch == "" {
		g.Branch = "caisson/" + string(cmp.Or(a.Run, a.Sandbox))
		if last != nil {
			g.Branch = last.Branch
		}
	}
	start = g.Base
	if at := commits[heads+g.Branch]; at != "" {
		if last == nil || last.Branch != g.Branch || last.Sent != at {
			return nil, "", caisson.Errorf(caisson.Conflict, "branch %s of %s was made, or changed, by somebody else; choose another with --branch", g.Branch, r.Name)
		}
		start, g.From = g.Branch, last.From
	}
	for _, b := range append([]string{g.Base, start}, a.Repo.Read...) {
		commit := commits[heads+b]
		if commit == "" {
			return nil, "", caisson.Invalidf("repo.read", "the remote of %s has no branch %.100q; see caisson repo branches %s", r.Name, b, r.Name)
		}
		if ref := (git.Ref{Name: heads + b, Commit: commit}); !slices.Contains(g.Refs, ref) {
			g.Refs = append(g.Refs, ref)
		}
	}
	slices.SortFunc(g.Refs, func(a, b git.Ref) int { return strings.Compare(a.Name, b.Name) })
	g.View = viewKey(g.Refs)
	return g, start, nil
}

// lastOf returns the delivery that put a branch where it is: of the name, or of the session's; nil if there is none.
func (c grants) lastOf(ctx context.Context, r *caisson.Repo, a caisson.RepoAccess, branch string) (*caisson.Delivery, error) {
	f := caisson.DeliveryFilter{Repo: r.Name, Limit: 1000}
	for {
		page, more, err := c.Store.Deliveries().List(ctx, caisson.In(r.Account), f)
		if err != nil {
			return nil, err
		}
		for _, d := range page {
			f.Before = d.ID
			if d.Sent != "" && (branch != "" && d.Branch == branch || branch == "" && a.Session != "" && d.Session == a.Session) {
				return d, nil
			}
		}
		if !more {
			return nil, nil
		}
	}
}

// viewKey names the view of some refs.
func viewKey(refs []git.Ref) string {
	h := sha256.New()
	for _, r := range refs {
		fmt.Fprintf(h, "%s %s\n", r.Commit, r.Name)
	}
	return hex.EncodeToString(h.Sum(nil))[:40]
}

// fillView makes the view of a grant unless it is there. Whoever calls it has the lock.
func (c grants) fillView(ctx context.Context, g *grant) error {
	if _, err := os.Lstat(c.dir(g.Account, g.Repo, viewsDir, g.View)); err == nil {
		return nil
	}
	mirror, err := c.open(g.Account, g.Repo, mirrorDir)
	if err != nil {
		return err
	}
	defer mirror.Close()
	return c.place(ctx, g.Account, g.Repo, func(view *os.File) error {
		return c.Git.View(ctx, mirror, view, g.Refs)
	}, viewsDir, g.View)
}

// granted returns what a sandbox may do with a repository; nil: nothing. What it points to is never changed.
func (c grants) granted(sandbox caisson.ID, repo string) *grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.have[sandbox][repo]
}

// change stores what f makes of a grant: a push of the run before may be recorded while the next one begins. nil if it has gone.
func (c grants) change(g *grant, f func(*grant)) (*grant, error) {
	c.changes.Lock()
	defer c.changes.Unlock()
	now := c.granted(g.Sandbox, g.Repo)
	if now == nil {
		return nil, nil
	}
	next := *now
	next.Pushed = slices.Clone(now.Pushed)
	f(&next)
	return &next, c.keep(&next)
}

// keep stores a grant.
func (c grants) keep(g *grant) error {
	if err := writeJSON(c.dir(g.Account, g.Repo, storesDir, string(g.Sandbox)+".json"), g); err != nil {
		return err
	}
	c.know(g)
	return nil
}

func (c grants) know(g *grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have[g.Sandbox] == nil {
		c.have[g.Sandbox] = map[string]*grant{}
	}
	c.have[g.Sandbox][g.Repo] = g
}

// forget removes a grant and its store. It may be called twice: the sweep and Leave may both have found the grant before either had the lock.
func (c grants) forget(g *grant) error {
	store := c.dir(g.Account, g.Repo, storesDir, string(g.Sandbox))
	c.changes.Lock() // a push that is recorded just now must not store the grant again
	c.mu.Lock()
	delete(c.have[g.Sandbox], g.Repo)
	if len(c.have[g.Sandbox]) == 0 {
		delete(c.have, g.Sandbox)
	}
	c.mu.Unlock()
	err := os.Remove(store + ".json")
	c.changes.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(store))
}

// readGrant reads a stored grant.
func readGrant(path string) (*grant, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var g grant
	return &g, json.Unmarshal(data, &g)
}
