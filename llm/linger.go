package llm

import (
	"context"
	"errors"
	"net/http"
	"time"
)

const (
	maxLinger  = 64 << 20               // bytes of an answer that are read for the sake of its end
	lingerLook = 100 * time.Millisecond // how often is looked whether the guest's sandbox is still there
)

var errLinger = errors.New("the guest went away, and what was left of the answer could not be read")

// outlive returns a context for a call that goes on when its guest goes away: providers go on too, and charge it, so that
// only the end of the answer says what it cost. It ends after some time, with the guest's sandbox, or at once as long as
// nothing was sent.
func (c *call) outlive() (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.r.Context()))
	stop := context.AfterFunc(c.r.Context(), func() { c.linger(ctx, cancel) })
	c.left = func() {
		if stop() { // and so is linger not called yet
			go c.linger(ctx, cancel)
		}
	}
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// linger ends ctx when nothing is worth waiting for any more.
func (c *call) linger(ctx context.Context, cancel context.CancelCauseFunc) {
	end := time.NewTimer(c.g.config.Timeouts.Linger)
	defer end.Stop()
	look := time.NewTicker(lingerLook)
	defer look.Stop()
	for c.written.Load() && c.g.config.Grant(ctx, c.guest) != nil {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			cancel(errLinger)
			return
		case <-look.C:
		}
	}
	cancel(errLinger)
}

// gone reports whether there is still a guest to answer.
func (c *call) gone() bool { return c.lost || c.r.Context().Err() != nil }

// endedBy is why a call ended before its answer did.
func (c *call) endedBy(ctx context.Context) (word string, status int) {
	if !c.gone() && context.Cause(ctx) == errIdle {
		return "timeout", http.StatusGatewayTimeout
	}
	return "aborted", 0
}
