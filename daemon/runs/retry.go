package runs

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
)

// retrier retries operations of an attempt on its sandbox while the host is full, or while another operation on the sandbox is
// in progress.
type retrier struct {
	sessions  *sessions                      // sessions and their sandboxes
	live      *live                          // queued and running attempts
	queue     *queue                         // decides which run starts next
	runs      caisson.RunStore               // tells whether the run of the sandbox to which a volume is attached has ended
	sandboxes caisson.Table[caisson.Sandbox] // tells whether the sandbox to which a volume is attached is being removed
	volumes   caisson.Table[caisson.Volume]  // tells to which sandbox the volume for a new sandbox is still attached
}

// whileFull retries f while it returns Exhausted without a field, which means that the host is full. It first pauses idle
// sessions, and then waits as long as other attempts run or are cleaned up, because that frees resources.
func (t *retrier) whileFull(ctx context.Context, x *attempt, f func() error) error {
	told := false
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := f()
		if caisson.KindOf(err) != caisson.Exhausted || caisson.FieldOf(err) != "" {
			return err
		}
		if t.sessions.pauseOldest(ctx) {
			continue
		}
		if !t.live.anyCleaning() && t.queue.running() <= 1 {
			return err
		}
		if !told {
			told = true
			x.status("queued", "this host is full: "+caisson.MessageOf(err))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// busyTimeout is how long an operation is retried that returns Conflict, because another one changes the sandbox, or Unavailable.
const busyTimeout = 10 * time.Second

// whileBusy retries f while the host is full, and for up to busyTimeout while f returns Conflict or Unavailable.
func (t *retrier) whileBusy(ctx context.Context, x *attempt, f func() error) error {
	end := time.Now().Add(busyTimeout)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := t.whileFull(ctx, x, f)
		if kind := caisson.KindOf(err); kind != caisson.Conflict && kind != caisson.Unavailable || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// whileAttached calls f, which creates a sandbox, and calls it again if the volume for it is still attached to a sandbox that is
// about to be removed: the end of a run is reported before its sandbox is removed.
func (t *retrier) whileAttached(ctx context.Context, x *attempt, f func() error) error {
	err := t.whileFull(ctx, x, f)
	if caisson.FieldOf(err) != volumeField {
		return err
	}
	switch caisson.KindOf(err) {
	case caisson.NotFound:
		return failf(caisson.RunNotFound, "volume %s does not exist any more; name another one, or begin another session", x.volumeRef())
	case caisson.Conflict:
	default:
		return err
	}
	in := caisson.In(x.r.Account)
	v, gerr := t.volumes.Get(ctx, in, x.volumeRef())
	if gerr != nil || v.Sandbox == "" {
		return t.whileFull(ctx, x, f)
	}
	sb, gerr := t.sandboxes.Get(ctx, in, string(v.Sandbox))
	if gerr != nil || sb.State == caisson.Removing {
		return t.whileBusy(ctx, x, f)
	}
	by := caisson.ID(sb.Labels[labelRun])
	if by == "" || by == x.r.ID {
		return err
	}
	if r, gerr := t.runs.Get(ctx, in, by); gerr != nil || !r.State.Ended() {
		return err
	}
	if serr := t.live.awaitCleanup(ctx, by); serr != nil {
		return serr
	}
	return t.whileFull(ctx, x, f)
}
