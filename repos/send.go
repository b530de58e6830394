package repos

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/forge"
	"github.com/caisson-dev/caisson/relay/push"
	"github.com/caisson-dev/caisson/relay/remote"
)

const (
	maxWait  = time.Hour        // between two tries of a delivery
	sendTime = 30 * time.Minute // that one try may take
)

// wake has the sender look for what is to be sent.
func (c sender) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Run sends what is to be delivered and forgets what is old, until ctx ends. Call it after Reconcile.
func (c *Core) Run(ctx context.Context) error {
	keep := time.NewTicker(c.Limits.Sweep)
	defer keep.Stop()
	for {
		next := c.sender.due(ctx)
		timer := time.NewTimer(max(time.Until(next), 10*time.Millisecond))
		select {
		case <-timer.C:
		case <-c.kick:
		case <-keep.C:
			c.keeper.housekeep(ctx)
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// due begins to send what is due, and returns when it has to look again.
func (c sender) due(ctx context.Context) time.Time {
	next := now().Add(maxWait)
	list, err := c.all(ctx, caisson.DeliveryWaiting)
	if err != nil {
		c.Log.ErrorContext(ctx, "what is to be delivered could not be read; trying again", "err", err)
		return now().Add(5 * time.Second)
	}
	for _, d := range list {
		if d.NextAt.After(now()) {
			next = earlier(next, d.NextAt)
			continue
		}
		tctx, stand, ok := c.sit(d)
		if !ok {
			continue // whoever has a place wakes the sender when it is free
		}
		d, err := c.claim(ctx, d.ID)
		if err != nil && !errors.Is(err, errMoved) && caisson.KindOf(err) != caisson.NotFound && ctx.Err() == nil {
			c.Log.ErrorContext(ctx, "a delivery could not be begun; trying again", "err", err)
			next = earlier(next, now().Add(c.Limits.First)) // nothing else would wake the sender
		}
		if err != nil || !c.do(func(ctx context.Context) {
			defer func() { stand(); c.wake() }()
			c.try(ctx, tctx, d)
		}) {
			stand()
		}
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// sit takes a place to send d: neither an account nor a repository has all of them, so that a slow remote holds up only what is for it.
// What is done there ends with ctx.
func (c sender) sit(d *caisson.Delivery) (ctx context.Context, stand func(), ok bool) {
	places := map[string]int{"": maxSends, d.Account: maxSends / 2, d.Account + "/" + d.Repo: maxSends / 4}
	c.mu.Lock()
	defer c.mu.Unlock()
	for of, most := range places {
		if c.sending[of] >= most {
			return nil, nil, false
		}
	}
	for of := range places {
		c.sending[of]++
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	t := &try{cancel: cancel, ended: make(chan struct{})}
	c.tries[d.ID] = t
	return ctx, func() {
		cancel(nil)
		close(t.ended)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.tries[d.ID] == t { // and not the next one
			delete(c.tries, d.ID)
		}
		for of := range places {
			if c.sending[of]--; c.sending[of] == 0 {
				delete(c.sending, of)
			}
		}
	}, true
}

// all returns the deliveries in a state, oldest first.
func (c sender) all(ctx context.Context, states ...caisson.DeliveryState) (list []*caisson.Delivery, err error) {
	f := caisson.DeliveryFilter{States: states, Limit: 1000}
	for {
		page, more, err := c.Store.Deliveries().List(ctx, caisson.Everyone(), f)
		if err != nil {
			return nil, err
		}
		for _, d := range page {
			list, f.Before = append([]*caisson.Delivery{d}, list...), d.ID
		}
		if !more {
			return list, nil
		}
	}
}

// errMoved ends an update of a delivery that somebody else has changed.
var errMoved = errors.New("it has changed meanwhile")

// claim begins a try.
func (c sender) claim(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	return c.Store.Deliveries().Update(ctx, caisson.Everyone(), id, func(d *caisson.Delivery) error {
		if d.State != caisson.DeliveryWaiting {
			return errMoved
		}
		d.State, d.NextAt = caisson.DeliverySending, time.Time{}
		d.Attempts++
		return nil
	})
}

// try sends a delivery once, until tctx ends, and stores what has become of it.
func (c sender) try(ctx, tctx context.Context, d *caisson.Delivery) {
	timed, cancel := context.WithTimeout(tctx, sendTime)
	defer cancel()
	out, err := c.send(timed, d)
	if err != nil && ctx.Err() != nil {
		return // the next daemon finds it as it is
	}
	given := err != nil && errors.Is(context.Cause(tctx), errDropped)
	clean := context.WithoutCancel(ctx)
	stored := c.persist(ctx, d.ID, func(d *caisson.Delivery) error {
		d.Sent, d.URL, d.Number = out.Sent, out.URL, out.Number
		if given {
			dropped(d, true)
		} else {
			c.outcome(d, err)
		}
		return nil
	})
	if stored == nil {
		return
	}
	data := map[string]string{"repo": d.Repo, "run": string(d.Run), "branch": d.Branch, "commit": d.Commit, "url": stored.URL}
	if err != nil && !given {
		data["error"] = stored.Error
		c.Log.WarnContext(ctx, "a delivery failed", "delivery", d.ID, "repo", d.Repo, "branch", d.Branch, "attempt", stored.Attempts, "err", err)
	}
	c.Events.Publish(as(clean, d.Account), d.Account, "delivery."+string(stored.State), string(d.ID), data)
	c.changed(clean, stored)
}

// persist changes a delivery, again and again until it succeeds: a full disk must not leave it between two states. It returns nil when the
// daemon ends, whose successor tries the delivery again.
func (c sender) persist(ctx context.Context, id caisson.ID, change func(*caisson.Delivery) error) *caisson.Delivery {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		d, err := c.Store.Deliveries().Update(context.WithoutCancel(ctx), caisson.Everyone(), id, change)
		if err == nil {
			return d
		}
		c.Log.ErrorContext(ctx, "what became of a delivery could not be stored; trying again", "delivery", id, "err", err)
		if caisson.KindOf(err) == caisson.NotFound {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// outcome is the state after a try.
func (c sender) outcome(d *caisson.Delivery, err error) {
	d.Error = ""
	if err == nil {
		d.State, d.EndedAt = caisson.DeliveryDelivered, now()
		return
	}
	d.Error = line(caisson.MessageOf(err), 1000)
	again := false
	switch caisson.KindOf(err) {
	case caisson.Unavailable, caisson.Exhausted, caisson.Internal:
		again = now().Sub(wanted(d)) < c.Limits.Tries
	}
	if !again {
		d.State, d.EndedAt = caisson.DeliveryFailed, now()
		return
	}
	wait := c.Limits.First
	for range min(d.Attempts-1, 20) {
		wait = min(3*wait, maxWait)
	}
	d.State, d.NextAt = caisson.DeliveryWaiting, now().Add(max(wait, forge.RetryAfter(err)))
}

// send pushes the branch and opens, or finds, the pull request. What of it was done is in the delivery that it returns, with an error too.
func (c sender) send(ctx context.Context, d *caisson.Delivery) (*caisson.Delivery, error) {
	release, err := c.sends.Acquire(ctx, d.Account+"/"+d.Repo+"/"+d.Branch)
	if err != nil {
		return d, err
	}
	defer release()
	r, err := c.Store.Repos().Get(ctx, caisson.In(d.Account), d.Repo)
	if err != nil {
		return d, err
	}
	out := *d
	// Asked again: what is protected may have changed since the run began.
	if why := protectedBranch(r, d.Branch, d.Base); why != "" {
		return &out, caisson.Errorf(caisson.Denied, "%s", why)
	}
	if out.Sent != d.Commit {
		if err := c.push(ctx, r, d); err != nil {
			return &out, err
		}
		out.Sent = d.Commit
		if _, err := c.Store.Deliveries().Update(ctx, caisson.Everyone(), d.ID, func(d *caisson.Delivery) error {
			d.Sent = out.Sent
			return nil
		}); err != nil {
			return &out, err
		}
	}
	at, err := locate(r)
	if err != nil {
		return &out, err
	}
	if !d.Pull {
		out.URL = at.branchURL(d.Branch)
		return &out, nil
	}
	server, err := c.mirrors.server(ctx, r, at)
	if err != nil {
		return &out, err
	}
	pull, err := c.Forge.Pull(ctx, server, forge.PullRequest{
		Head: d.Branch, Base: d.Base, Title: d.Title, Body: d.Body + c.trailer(d), Ready: d.Ready,
	})
	if err != nil {
		return &out, err
	}
	out.URL, out.Number = pull.URL, pull.Number
	return &out, nil
}

// trailer says in a pull request where it comes from.
func (c sender) trailer(d *caisson.Delivery) string {
	return "\n\n---\nCaisson run " + string(cmp.Or(d.Run, d.Sandbox)) + ", delivery " + string(d.ID) + "\n"
}

// expected returns the commit that the remote's branch has to be at for d to go there: where Caisson has left it, if that is what d follows.
// "" if it must not exist.
func (c sender) expected(ctx context.Context, d *caisson.Delivery, g *grant) (string, error) {
	last, err := c.grants.lastOf(ctx, &caisson.Repo{Account: d.Account, Name: d.Repo}, caisson.RepoAccess{}, d.Branch)
	switch {
	case err != nil:
		return "", err
	case last != nil && last.ID != d.ID && last.CreatedAt.After(d.CreatedAt):
		return "", caisson.Errorf(caisson.Conflict, "delivery %s, which is newer, has gone to branch %s already", last.ID, d.Branch)
	case last != nil && last.Sandbox == d.Sandbox:
		return last.Sent, nil
	}
	// What another sandbox has delivered may be replaced only by what began with it.
	for _, ref := range g.Refs {
		if ref.Name == heads+d.Branch {
			return ref.Commit, nil
		}
	}
	return "", nil
}

func (c sender) push(ctx context.Context, r *caisson.Repo, d *caisson.Delivery) error {
	g, err := readGrant(c.dir(d.Account, d.Repo, storesDir, string(d.Sandbox)+".json"))
	if err != nil {
		return caisson.Wrap(err, caisson.NotFound, "the commits of delivery %s are gone", d.ID)
	}
	expect, err := c.expected(ctx, d, g)
	if err != nil {
		return err
	}
	store, view, err := c.streams.stores(g)
	if err != nil {
		return err
	}
	defer store.Close()
	defer view.Close()
	to := func(expect string) error {
		return c.mirrors.linked(ctx, r, true, func(link *os.File, t remote.Transport) error {
			_, err := c.Git.Push(ctx, store, view, link, push.Request{Transport: t, Commit: d.Commit, Branch: d.Branch, Expect: expect})
			return err
		})
	}
	err = to(expect)
	if expect != "" && caisson.KindOf(err) == caisson.Conflict && to("") == nil {
		return nil // the branch had been merged and removed: it is made again
	}
	return err
}
