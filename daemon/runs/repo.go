package runs

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// deliverTimeout is the timeout for fetching the agent's commits from its sandbox.
const deliverTimeout = 12 * time.Minute

// deliverer starts the delivery of the commits that agents have made, and waits for it.
type deliverer struct {
	relay   caisson.Relay // delivers commits; nil if the daemon has no relay
	maxWait time.Duration // how long the result of a run waits until its commits are delivered
}

// deliver fetches the agent's commits from the sandbox and starts their delivery. If they cannot be fetched, the sandbox is kept.
func (v *deliverer) deliver(ctx context.Context, x *attempt, failed *caisson.RunError) {
	if x.box.sandbox == nil || x.r.Request.Repo == nil || x.box.repo == nil && !x.starting {
		return
	}
	x.clock.start()
	defer x.clock.phase("deliver")
	req := *x.r.Request.Repo
	x.result.Delivery = &caisson.RunDelivery{Repo: req.Name}
	ctx, cancel := context.WithTimeout(caisson.WithCaller(ctx, caisson.DaemonCaller(x.r.Account, "deliver commits")), deliverTimeout)
	defer cancel()
	h := caisson.DeliveryRequest{
		Sandbox: x.box.sandbox.ID, Repo: req, Dir: x.workdir(), Subject: cmp.Or(req.Title, firstLine(x.r.Request.Prompt)), Agent: x.r.Request.Agent,
		Body: x.output.answer.String(), Hold: failed != nil, OnIncomplete: func(why error) { x.recordUndelivered(ctx, why) },
	}
	d, err := v.relay.Deliver(ctx, h)
	switch {
	case err != nil:
		x.undelivered(ctx, "the agent's commits could not be fetched from its sandbox", err)
	case d != nil:
		x.result.Delivery = runDelivery(d, x.result.Delivery)
		x.box.removable = x.box.removable || x.starting && !x.r.Request.Keep && x.r.Session == "" // the relay has its commits
	case x.starting:
		x.undelivered(ctx, "the daemon ended before the agent's commits were fetched", errClosing)
	}
}

// workdir returns the agent's working directory in the sandbox; "" if the sandbox does not run.
func (x *attempt) workdir() string {
	if x.starting {
		return ""
	}
	return x.agent.Workdir
}

// undelivered records that the delivery has failed, and keeps the sandbox, because the agent's changes exist only in it.
func (x *attempt) undelivered(ctx context.Context, what string, err error) {
	x.result.Delivery.State, x.result.Delivery.Error = caisson.DeliveryFailed, what+": "+caisson.MessageOf(err)
	x.keepSandbox(ctx, what, err)
}

// recordUndelivered records that a part of the agent's changes was not fetched, and keeps the sandbox.
func (x *attempt) recordUndelivered(ctx context.Context, why error) {
	x.result.Delivery.Left = caisson.MessageOf(why)
	x.keepSandbox(ctx, "some of what the agent has done is not delivered: "+caisson.MessageOf(why), why)
}

// keepSandbox logs and records a problem, what, and keeps the sandbox if it would have been removed.
func (x *attempt) keepSandbox(ctx context.Context, what string, err error) {
	if x.box.removable {
		x.box.removable, x.box.undeliverable = false, true
		what += "; its sandbox " + string(x.box.sandbox.ID) + " is kept, stopped"
	}
	x.warn(ctx, what, err)
}

// await waits for up to v.maxWait until the commits are delivered, and records the outcome.
func (v *deliverer) await(ctx context.Context, x *attempt) {
	r := x.result.Delivery
	if r == nil || r.ID == "" {
		return
	}
	x.clock.start()
	defer x.clock.phase("deliver")
	d, err := v.relay.Await(ctx, r.ID, v.maxWait)
	if err != nil {
		x.warn(ctx, "it is not known whether the commits were delivered; see caisson relay show "+string(r.ID), err)
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

// keptUndeliverable reports whether the sandbox of a result was kept because it contains changes that could not be fetched.
func keptUndeliverable(r caisson.RunResult) bool {
	return r.Delivery != nil && (r.Delivery.ID == "" && r.Delivery.State == caisson.DeliveryFailed || r.Delivery.Left != "")
}

// release notifies the relay that the sandbox of an attempt has been removed.
func (v *deliverer) release(ctx context.Context, x *attempt) {
	if x.r.Request.Repo == nil || !x.box.removable || v.relay == nil {
		return
	}
	if err := v.relay.SandboxRemoved(ctx, x.box.sandbox.ID); err != nil {
		x.log.WarnContext(ctx, "what a sandbox has pushed could not be put in order", "sandbox", x.box.sandbox.ID, "err", err)
	}
}

// runDelivery returns the delivery d in the form that a run's result contains. was is the delivery that the result contained
// before; its field Left is kept.
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
		log.ErrorContext(ctx, "the result of a delivery could not be stored with its run", "run", d.Run, "delivery", d.ID, "err", err)
	}
}

// update stores the present state of a delivery in the result of its run: the state may have changed after
// [deliverer.await] returned and before the result was stored.
func (v *deliverer) update(ctx context.Context, x *attempt) {
	if r := x.result.Delivery; r != nil && r.ID != "" && !r.State.Ended() {
		if d, err := v.relay.Await(ctx, r.ID, 0); err == nil {
			UpdateDelivery(ctx, x.runs, x.log, d)
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
