package runs

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// planRepo validates the repository of a run.
func (c admission) planRepo(ctx context.Context, caller caisson.Caller, req *caisson.RunRequest) error {
	switch {
	case req.Repo == nil:
		return nil
	case c.Relay == nil:
		return caisson.Errorf(caisson.Invalid, "this daemon has no relay for repositories")
	case req.Source != "" || req.Directory != nil || req.Workspace != nil:
		return caisson.Invalidf("repo", "a run works on a directory or on a repository; omit one of them")
	}
	return c.Relay.CheckRepo(ctx, caller.Account, *req.Repo)
}

// deliverTimeout is the timeout for fetching the agent's commits from its sandbox.
const deliverTimeout = 12 * time.Minute

// clone grants the attempt's sandbox access to the run's repository, and clones it into the workspace.
func (x provisioner) clone(ctx context.Context) error {
	req := x.r.Request.Repo
	if req == nil {
		return nil
	}
	x.start()
	defer x.phase("workspace")
	g, err := x.c.Relay.Grant(ctx, caisson.RepoAccess{
		Account: x.r.Account, Sandbox: x.sandbox.ID, Run: x.r.ID, Session: x.r.Session, Repo: *req, Dir: x.agent.Workdir,
		Warn: func(what string) { x.warn(ctx, what, nil) },
	})
	if err != nil {
		return err
	}
	x.repo = g
	return nil
}

// deliver fetches the agent's commits and starts their delivery. If they cannot be fetched, the sandbox is kept.
func (x finisher) deliver(ctx context.Context, failed *caisson.RunError) {
	if x.sandbox == nil || x.r.Request.Repo == nil || x.repo == nil && !x.starting {
		return
	}
	x.start()
	defer x.phase("deliver")
	req := *x.r.Request.Repo
	x.result.Delivery = &caisson.RunDelivery{Repo: req.Name}
	ctx, cancel := context.WithTimeout(caisson.WithCaller(ctx, caisson.DaemonCaller(x.r.Account, "deliver commits")), deliverTimeout)
	defer cancel()
	h := caisson.DeliveryRequest{
		Sandbox: x.sandbox.ID, Repo: req, Dir: x.workdir(), Subject: cmp.Or(req.Title, firstLine(x.r.Request.Prompt)), Agent: x.r.Request.Agent,
		Body: x.answer.String(), Hold: failed != nil, OnIncomplete: func(why error) { x.recordUndelivered(ctx, why) },
	}
	d, err := x.c.Relay.Deliver(ctx, h)
	switch {
	case err != nil:
		x.undelivered(ctx, "what the agent has done could not be taken from its sandbox", err)
	case d != nil:
		x.result.Delivery = runDelivery(d, x.result.Delivery)
		x.removable = x.removable || x.starting && !x.r.Request.Keep && x.r.Session == "" // its commits are no longer only in the sandbox
	case x.starting:
		x.undelivered(ctx, "the daemon ended before what the agent had done was taken", errClosing)
	}
}

// workdir returns the agent's working directory; "" if its sandbox does not run.
func (x finisher) workdir() string {
	if x.starting {
		return ""
	}
	return x.agent.Workdir
}

// undelivered keeps the sandbox, because the agent's changes exist only in it.
func (x finisher) undelivered(ctx context.Context, what string, err error) {
	x.result.Delivery.State, x.result.Delivery.Error = caisson.DeliveryFailed, what+": "+caisson.MessageOf(err)
	x.keepSandbox(ctx, what, err)
}

// recordUndelivered records that a part of the changes was not fetched.
func (x finisher) recordUndelivered(ctx context.Context, why error) {
	x.result.Delivery.Left = caisson.MessageOf(why)
	x.keepSandbox(ctx, "some of what the agent has done is not delivered: "+caisson.MessageOf(why), why)
}

// keepSandbox keeps a sandbox that would have been removed.
func (x finisher) keepSandbox(ctx context.Context, what string, err error) {
	if x.removable {
		x.removable, x.undeliverable = false, true
		what += "; its sandbox " + string(x.sandbox.ID) + " is kept, stopped"
	}
	x.warn(ctx, what, err)
}

// awaitDelivery waits for up to Limits.Deliver until the commits are delivered, and records the outcome.
func (x finisher) awaitDelivery(ctx context.Context) {
	r := x.result.Delivery
	if r == nil || r.ID == "" {
		return
	}
	x.start()
	defer x.phase("deliver")
	d, err := x.c.Relay.Await(ctx, r.ID, time.Duration(x.c.Limits.Deliver))
	if err != nil {
		x.warn(ctx, "what became of the commits cannot be told; see caisson relay show "+string(r.ID), err)
		return
	}
	x.result.Delivery = runDelivery(d, r)
	switch d.State {
	case caisson.DeliveryDelivered:
		x.status("ending", "branch "+d.Branch+" delivered: "+cmp.Or(d.URL, d.Commit))
	case caisson.DeliveryHeld:
		x.status("warning", "the commits are held; look at them with caisson relay show "+string(d.ID)+", and send them with caisson relay retry "+string(d.ID))
	default:
		x.status("warning", "the commits are not delivered yet: "+cmp.Or(d.Error, string(d.State))+"; see caisson relay show "+string(d.ID))
	}
}

// keptUndeliverable reports whether a sandbox was kept because it contains changes that could not be fetched.
func keptUndeliverable(r caisson.RunResult) bool {
	return r.Delivery != nil && (r.Delivery.ID == "" && r.Delivery.State == caisson.DeliveryFailed || r.Delivery.Left != "")
}

// releaseRepo notifies the relay that a sandbox has been removed.
func (x finisher) releaseRepo(ctx context.Context) {
	if x.r.Request.Repo == nil || !x.removable || x.c.Relay == nil {
		return
	}
	if err := x.c.Relay.Leave(ctx, x.sandbox.ID); err != nil {
		x.log.WarnContext(ctx, "what a sandbox has pushed could not be put in order", "sandbox", x.sandbox.ID, "err", err)
	}
}

// runDelivery returns the delivery d as part of a run's result; was is its previous value.
func runDelivery(d *caisson.Delivery, was *caisson.RunDelivery) *caisson.RunDelivery {
	return &caisson.RunDelivery{ID: d.ID, Repo: d.Repo, State: d.State, Branch: d.Branch, Commit: d.Commit, URL: d.URL, Error: d.Error, Left: was.Left}
}

// UpdateDelivery updates a delivery in the result of its run. A result that is not stored yet gets the delivery's state when
// it is stored.
func UpdateDelivery(ctx context.Context, store caisson.RunStore, log *slog.Logger, d *caisson.Delivery) {
	if d.Run == "" {
		return
	}
	_, err := store.Update(ctx, caisson.In(d.Account), d.Run, func(r *caisson.Run) error {
		if r.Result != nil && r.Result.Delivery != nil && r.Result.Delivery.ID == d.ID {
			r.Result.Delivery = runDelivery(d, r.Result.Delivery)
		}
		return nil
	})
	if err != nil && caisson.KindOf(err) != caisson.NotFound {
		log.ErrorContext(ctx, "what became of a run's commits could not be stored with the run", "run", d.Run, "delivery", d.ID, "err", err)
	}
}

// updateDelivery stores a change of a delivery between its last check and the moment in which the result was stored.
func (x finisher) updateDelivery(ctx context.Context) {
	if r := x.result.Delivery; r != nil && r.ID != "" && !r.State.Ended() {
		if d, err := x.c.Relay.Await(ctx, r.ID, 0); err == nil {
			UpdateDelivery(ctx, x.c.Store.Runs(), x.c.Log, d)
		}
	}
}

// firstLine returns the first line of a text, shortened for the subject of a commit.
func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if len(s) > 72 {
		s = strings.ToValidUTF8(s[:69], "") + "…"
	}
	return cmp.Or(strings.TrimSpace(s), "Changes")
}
