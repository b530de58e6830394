package repos

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/relay/git"
	"github.com/caisson-dev/caisson/relay/prepare"
)

// Bounds of what is said about a delivery.
const (
	maxTitle    = 256
	maxAnswer   = 32 << 10
	maxFindings = 100
)

// Deliver implements [caisson.Relay].
func (c *Core) Deliver(ctx context.Context, h caisson.RepoHandover) (*caisson.Delivery, error) {
	g := c.grants.granted(h.Sandbox, h.Repo.Name)
	if g == nil {
		return nil, caisson.Errorf(caisson.NotFound, "sandbox %s was given no repository %.64q", h.Sandbox, h.Repo.Name)
	}
	g, p, err := c.sender.gathered(ctx, g, h)
	if err != nil {
		return nil, err
	}
	if p == nil || p.Commit == g.From {
		return nil, nil
	}
	if g.Run != "" { // it may have been made by a daemon that died before the run knew
		d, err := c.sender.madeOf(ctx, g, func(d *caisson.Delivery) bool { return d.Run == g.Run && d.Pushed == p.Commit })
		if err != nil || d != nil {
			return d, err
		}
	}
	r, err := c.Store.Repos().Get(ctx, caisson.In(g.Account), g.Repo)
	if err != nil {
		return nil, err
	}
	id := caisson.NewID(caisson.DeliveryPrefix)
	made, err := c.sender.prepare(ctx, r, g, p.Commit, prepare.PullText{
		// What is searched is what is sent: a forge that dropped invisible characters later would put together what they kept apart.
		Title: line(h.Repo.Title, maxTitle), Answer: strings.TrimSpace(safetext.Short(safetext.Lines(h.Body), maxAnswer)),
		Run: string(cmp.Or(g.Run, g.Sandbox)), Agent: line(h.Agent, maxTitle), Branch: g.Branch, Base: g.Base, Delivery: string(id),
	})
	if err != nil {
		return nil, err
	}
	if len(made.Commits) == 0 {
		return nil, nil
	}
	d := &caisson.Delivery{
		ID: id, Account: g.Account, Repo: g.Repo, Run: g.Run, Session: g.Session, Sandbox: g.Sandbox,
		State: caisson.DeliveryWaiting, Base: g.Base, Branch: g.Branch, From: g.From, Pushed: p.Commit, Commit: made.Commit,
		Commits: len(made.Commits), Findings: made.Findings, Pull: h.Repo.Pull, Ready: h.Repo.Ready,
		Title: made.Title, Body: made.Text, CreatedAt: now(),
	}
	d.Findings = d.Findings[:min(len(d.Findings), maxFindings)]
	if h.Hold || len(d.Findings) > 0 {
		d.State = caisson.DeliveryHeld
	}
	if err := c.Store.Deliveries().Insert(ctx, d); err != nil {
		return nil, err
	}
	c.Events.Publish(as(ctx, d.Account), d.Account, "delivery."+string(d.State), string(d.ID), map[string]string{
		"repo": d.Repo, "run": string(d.Run), "branch": d.Branch, "commit": d.Commit,
	})
	c.sender.wake()
	return d, nil
}

// gathered returns a grant, and what of it is to be delivered, with what was not pushed.
func (c sender) gathered(ctx context.Context, g *grant, h caisson.RepoHandover) (*grant, *pushed, error) {
	g, err := c.settled(ctx, g)
	if err != nil {
		return nil, nil, err
	}
	p, err := c.chosen(ctx, g)
	if err != nil || h.Dir == "" {
		return g, p, err
	}
	if p == nil {
		err = c.grants.collect(ctx, g, h.Dir, h.Subject)
	} else {
		err = c.collectMore(ctx, g, p, h)
	}
	if err == nil {
		g, err = c.settled(ctx, g)
	}
	if err == nil {
		p, err = c.chosen(ctx, g)
	}
	return g, p, err
}

// collectMore has the sandbox push what follows p, which it has pushed. That is delivered in any case, if somebody can be told of the rest.
func (c sender) collectMore(ctx context.Context, g *grant, p *pushed, h caisson.RepoHandover) error {
	err := c.grants.collectMore(ctx, g, h.Dir, h.Subject, p.Commit)
	if err == nil || h.Left == nil || ctx.Err() != nil {
		return err
	}
	h.Left(err)
	return nil
}

// settled returns a grant with all that was pushed up to now.
func (c sender) settled(ctx context.Context, g *grant) (*grant, error) {
	release, err := c.streams.pushing(ctx, g)
	if err != nil {
		return nil, err
	}
	defer release()
	if now := c.grants.granted(g.Sandbox, g.Repo); now != nil {
		return now, nil
	}
	return nil, caisson.Errorf(caisson.NotFound, "repository %s was removed", g.Repo)
}

// chosen returns what of the pushed branches is to be delivered: the one that was asked for, else the one pushed last. nil: nothing. What
// the store has comes before what was recorded: git has moved a branch before that is recorded.
func (c sender) chosen(ctx context.Context, g *grant) (*pushed, error) {
	if p, err := c.unrecorded(ctx, g); err != nil || p != nil {
		return p, err
	}
	for i := range g.Pushed {
		if g.Pushed[i].Name == heads+g.Branch {
			return &g.Pushed[i], nil
		}
	}
	if n := len(g.Pushed); n > 0 {
		return &g.Pushed[n-1], nil
	}
	return nil, nil
}

// unrecorded looks at the branch itself, as the record of a push may be lost with a daemon: it counts if it is at a commit that was
// neither granted nor delivered before.
func (c sender) unrecorded(ctx context.Context, g *grant) (*pushed, error) {
	store, err := c.open(g.Account, g.Repo, storesDir, string(g.Sandbox))
	if err != nil {
		return nil, err
	}
	defer store.Close()
	have, err := c.Git.Refs(ctx, store)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(have.Refs, func(r git.Ref) bool { return r.Name == heads+g.Branch })
	if i < 0 || slices.Contains(g.Refs, have.Refs[i]) {
		return nil, nil
	}
	p := &pushed{Name: have.Refs[i].Name, Commit: have.Refs[i].Commit}
	d, err := c.madeOf(ctx, g, func(d *caisson.Delivery) bool { return d.Pushed == p.Commit })
	if err != nil || d != nil {
		return nil, err
	}
	return p, nil
}

// madeOf returns the newest delivery of a sandbox that is like that, nil if there is none.
func (c sender) madeOf(ctx context.Context, g *grant, like func(*caisson.Delivery) bool) (*caisson.Delivery, error) {
	f := caisson.DeliveryFilter{Repo: g.Repo, Limit: 1000}
	for {
		page, more, err := c.Store.Deliveries().List(ctx, caisson.In(g.Account), f)
		if err != nil {
			return nil, err
		}
		for _, d := range page {
			f.Before = d.ID
			if d.Sandbox == g.Sandbox && like(d) {
				return d, nil
			}
		}
		if !more {
			return nil, nil
		}
	}
}

// prepare makes commits as they are sent.
func (c sender) prepare(ctx context.Context, r *caisson.Repo, g *grant, commit string, text prepare.PullText) (*prepare.Result, error) {
	store, view, err := c.streams.stores(g)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	defer view.Close()
	name, email := author(r)
	req := prepare.Request{
		Base: g.From, Commit: commit, Authors: r.Authors, Name: name, Email: email, Rules: c.rules(r), Pull: text, Template: r.PullBody,
	}
	if r.SigningKey != "" {
		key, err := c.Secrets.Secret(ctx, r.Account, r.SigningKey)
		if err != nil {
			return nil, err
		}
		if req.Sign, err = prepare.SSHSign([]byte(key.Reveal())); err != nil {
			return nil, err
		}
	}
	return c.Git.Prepare(ctx, store, view, req)
}

// line makes one visible line of at most limit bytes, and "…", of a stranger's text.
func line(s string, limit int) string { return safetext.Short(safetext.Line(s), limit) }

// Await implements [caisson.Relay].
func (c *Core) Await(ctx context.Context, id caisson.ID, most time.Duration) (*caisson.Delivery, error) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		changed, forget := c.sender.watched(id)
		defer forget() // once a change: there are few
		d, err := c.Store.Deliveries().Get(ctx, caisson.Everyone(), string(id))
		if err != nil || d.State.Ended() {
			return d, err
		}
		select {
		case <-changed:
		case <-timer.C:
			return d, nil
		case <-ctx.Done():
			return d, nil
		case <-c.ctx.Done():
			return d, nil
		}
	}
}

// watched returns what is closed when a delivery changes. forget says that nobody waits for that any more.
func (c sender) watched(id caisson.ID) (changed chan struct{}, forget func()) {
	changed = make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch[id] = append(c.watch[id], changed)
	return changed, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		left := slices.DeleteFunc(slices.Clone(c.watch[id]), func(w chan struct{}) bool { return w == changed })
		if c.watch[id] = left; len(left) == 0 {
			delete(c.watch, id)
		}
	}
}

// changed tells those who wait for a delivery.
func (c sender) changed(ctx context.Context, d *caisson.Delivery) {
	c.mu.Lock()
	waiting := c.watch[d.ID]
	delete(c.watch, d.ID)
	c.mu.Unlock()
	for _, w := range waiting {
		close(w)
	}
	if c.Settled != nil {
		c.Settled(ctx, d)
	}
}
