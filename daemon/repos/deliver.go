package repos

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/prepare"
	"github.com/caisson-dev/caisson/job/worker"
)

// Maximum sizes of parts of a delivery.
const (
	maxTitle    = 256      // bytes of the title of a pull request, and of the name of an agent
	maxAnswer   = 32 << 10 // bytes of the agent's answer
	maxFindings = 100      // findings of one delivery that are stored
)

// planner creates deliveries: it collects the commits of a sandbox, and prepares from them the commits that are sent.
type planner struct {
	repos      caisson.Table[caisson.Repo]
	deliveries deliveries     // deliveries in the store
	jobs       worker.Starter // starts worker jobs
	dirs       *directories   // directories of repositories
	grants     *grants        // grants of all repositories
	remotes    *remotes       // connects to remotes and forges
	inSandbox  *sandboxGit    // commits and pushes changes in sandboxes
	queue      *queue         // sends deliveries when they are due
	rules      check.Rules    // rules that the commits to send are checked by
}

// deliver implements [caisson.Relay.Deliver].
func (p *planner) deliver(ctx context.Context, h caisson.DeliveryRequest) (*caisson.Delivery, error) {
	g := p.grants.get(h.Sandbox, h.Repo.Name)
	if g == nil {
		return nil, caisson.Errorf(caisson.NotFound, "sandbox %s has no grant for repository %.64q", h.Sandbox, h.Repo.Name)
	}
	g, tip, err := p.collect(ctx, g, h)
	if err != nil {
		return nil, err
	}
	if tip == nil || tip.Commit == g.From {
		return nil, nil
	}
	if g.Run != "" { // an earlier daemon may have stored the delivery, but not its id in the run
		d, err := p.find(ctx, g, func(d *caisson.Delivery) bool { return d.Run == g.Run && d.Pushed == tip.Commit })
		if err != nil || d != nil {
			return d, err
		}
	}
	if g.Run == "" {
		d, err := p.find(ctx, g, func(d *caisson.Delivery) bool { return delivers(d, g, tip.Commit, h.Repo.Pull) })
		if err != nil {
			return nil, err
		}
		if d != nil {
			return nil, caisson.Errorf(caisson.NotFound, "there is nothing new in %s of sandbox %s; its commits are in delivery %s, which is %s", g.Repo, g.Sandbox, d.ID, d.State)
		}
	}
	r, err := p.repos.Get(ctx, caisson.In(g.Account), g.Repo)
	if err != nil {
		return nil, err
	}
	id := caisson.NewID(caisson.DeliveryPrefix)
	made, err := p.prepare(ctx, r, g, tip.Commit, prepare.PullText{
		// Invisible characters are removed before the search for secrets: a forge might remove them later, and so join the parts
		// of a secret.
		Title: plainLine(h.Repo.Title, maxTitle), Answer: strings.TrimSpace(safetext.Short(safetext.Lines(h.Body), maxAnswer)),
		Run: string(cmp.Or(g.Run, g.Sandbox)), Agent: plainLine(h.Agent, maxTitle), Branch: g.Branch, Base: g.Base, Delivery: string(id),
	})
	if err != nil {
		return nil, err
	}
	if len(made.Commits) == 0 {
		return nil, nil
	}
	d := &caisson.Delivery{
		ID: id, Account: g.Account, Repo: g.Repo, Run: g.Run, Session: g.Session, Sandbox: g.Sandbox,
		State: caisson.DeliveryWaiting, Base: g.Base, Branch: g.Branch, From: g.From, Pushed: tip.Commit, Commit: made.Commit,
		Commits: len(made.Commits), Findings: made.Findings, Pull: h.Repo.Pull, Ready: h.Repo.Ready,
		Title: made.Title, Body: made.Text, CreatedAt: now(),
	}
	d.Findings = d.Findings[:min(len(d.Findings), maxFindings)]
	if h.Hold || len(d.Findings) > 0 {
		d.State = caisson.DeliveryHeld
	}
	if err := p.queue.add(ctx, d); err != nil {
		return nil, err
	}
	return d, nil
}

// collect makes git in the sandbox commit and push the changes in h.Dir, unless h.Dir is empty. It returns the grant
// with all pushes until now, and the branch to deliver, nil if none was pushed.
func (p *planner) collect(ctx context.Context, g *grant, h caisson.DeliveryRequest) (*grant, *pushed, error) {
	g, tip, err := p.latest(ctx, g)
	if err != nil || h.Dir == "" {
		return g, tip, err
	}
	if tip == nil {
		err = p.inSandbox.collect(ctx, g, h.Dir, h.Subject)
	} else if err = p.inSandbox.collectMore(ctx, g, h.Dir, h.Subject, tip.Commit); err != nil && h.OnIncomplete != nil && ctx.Err() == nil {
		h.OnIncomplete(err) // the commits that were pushed before are delivered in any case
		err = nil
	}
	if err != nil {
		return nil, nil, err
	}
	return p.latest(ctx, g)
}

// latest returns g with all pushes until now, and the branch to deliver: the grant's branch if it was pushed, else the branch
// that was pushed last, nil if none was pushed. The store takes precedence over the pushes that the grant records, because git
// moves a branch in the store before the push is recorded.
func (p *planner) latest(ctx context.Context, g *grant) (*grant, *pushed, error) {
	g, err := p.grants.afterPushes(ctx, g)
	if err != nil {
		return nil, nil, err
	}
	tip, err := p.unrecorded(ctx, g)
	if n := len(g.Pushed); err == nil && tip == nil && n > 0 {
		tip = &g.Pushed[n-1]
		if i := slices.IndexFunc(g.Pushed, func(b pushed) bool { return b.Name == headsPrefix+g.Branch }); i >= 0 {
			tip = &g.Pushed[i]
		}
	}
	return g, tip, err
}

// unrecorded returns the grant's branch in the store if it is not at the commit that was granted and no delivery has the
// commit, else nil. The record of its push may have been lost when an earlier daemon was killed.
func (p *planner) unrecorded(ctx context.Context, g *grant) (*pushed, error) {
	store, err := p.dirs.open(g.Account, g.Repo, storesDir, string(g.Sandbox))
	if err != nil {
		return nil, err
	}
	defer store.Close()
	have, err := relay.Refs(ctx, p.jobs, store)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(have.Refs, func(r git.Ref) bool { return r.Name == headsPrefix+g.Branch })
	if i < 0 || slices.Contains(g.Refs, have.Refs[i]) {
		return nil, nil
	}
	tip := &pushed{Name: have.Refs[i].Name, Commit: have.Refs[i].Commit}
	d, err := p.find(ctx, g, func(d *caisson.Delivery) bool { return d.Pushed == tip.Commit })
	if err != nil || d != nil {
		return nil, err
	}
	return tip, nil
}

// delivers reports whether delivery d has sent the given commit for grant g, or may still send it. If pull is true, d must also
// open a pull request.
func delivers(d *caisson.Delivery, g *grant, commit string, pull bool) bool {
	gone := d.State == caisson.DeliveryFailed || d.State == caisson.DeliveryDropped
	return !gone && d.Pushed == commit && d.Branch == g.Branch && d.From == g.From && (d.Pull || !pull)
}

// find returns the newest delivery of a grant's sandbox for which match returns true, nil if there is none.
func (p *planner) find(ctx context.Context, g *grant, match func(*caisson.Delivery) bool) (*caisson.Delivery, error) {
	return p.deliveries.last(ctx, g.Account, g.Repo, func(d *caisson.Delivery) bool {
		return d.Sandbox == g.Sandbox && match(d)
	})
}

// prepare makes the commits to send from those that the sandbox has pushed: with the author that the repository's settings name,
// and signed if the repository has a signing key.
func (p *planner) prepare(ctx context.Context, r *caisson.Repo, g *grant, commit string, text prepare.PullText) (*prepare.Result, error) {
	store, view, err := p.dirs.openStore(g)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	defer view.Close()
	sign, err := p.remotes.signer(ctx, r)
	if err != nil {
		return nil, err
	}
	name, email := author(r)
	return prepare.Run(ctx, p.jobs, store, view, prepare.Request{
		Base: g.From, Commit: commit, Authors: r.Authors, Name: name, Email: email, Rules: rulesFor(r, p.rules), Pull: text,
		Template: r.PullBody, Sign: sign,
	})
}

// plainLine returns untrusted text as one line of visible characters, cut to limit bytes; a line that was cut ends in "…".
func plainLine(s string, limit int) string { return safetext.Short(safetext.Line(s), limit) }
