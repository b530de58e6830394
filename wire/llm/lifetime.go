package llm

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
)

const (
	maxLinger           = 64 << 20               // bytes of an answer that are read after the guest disconnected
	lingerCheckInterval = 100 * time.Millisecond // interval between checks that the guest's grant is still valid
)

// errLinger is the cause when the call of a guest that has disconnected is cancelled before the answer was read completely.
var errLinger = errors.New("the guest went away, and what was left of the answer could not be read")

// A callLifetime controls how long a call continues.
type callLifetime struct {
	config         *Config         // configuration of the gateway
	guest          caisson.Guest   // the sandbox that makes the call, or the run of another machine
	requestCtx     context.Context // done when the guest disconnects
	writeFailed    bool            // a write to the guest has failed
	onWriteFailed  func()          // called when writeFailed becomes true
	requestWritten atomic.Bool     // part of the request may have been sent to the provider
}

// upstreamContext returns a context for a call that continues after its guest disconnects: providers continue too and charge for
// it, and only the end of the answer reports the cost. The context is cancelled after Timeouts.Linger, when the guest's grant
// ends, or at once if nothing has been sent.
func (l *callLifetime) upstreamContext() (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.requestCtx))
	stop := context.AfterFunc(l.requestCtx, func() { l.linger(ctx, cancel) })
	l.onWriteFailed = func() {
		if stop() { // true if linger has not been called yet
			go l.linger(ctx, cancel)
		}
	}
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// linger is called when the guest has disconnected. It cancels ctx after Timeouts.Linger, when the guest's grant ends, or at
// once if nothing was sent to the provider.
func (l *callLifetime) linger(ctx context.Context, cancel context.CancelCauseFunc) {
	end := time.After(l.config.Timeouts.Linger)
	look := time.NewTicker(lingerCheckInterval)
	defer look.Stop()
	for l.requestWritten.Load() && l.config.Grant(ctx, l.guest) != nil {
		select {
		case <-ctx.Done():
			return
		case <-end:
			cancel(errLinger)
			return
		case <-look.C:
		}
	}
	cancel(errLinger)
}

// disconnected reports whether the guest has disconnected.
func (l *callLifetime) disconnected() bool { return l.writeFailed || l.requestCtx.Err() != nil }

// endReason returns why a call ended before its answer was complete: the error code for the row, and the HTTP status, 0 if the
// guest receives none.
func (l *callLifetime) endReason(ctx context.Context) (word string, status int) {
	if !l.disconnected() && context.Cause(ctx) == errIdle {
		return "timeout", http.StatusGatewayTimeout
	}
	return "aborted", 0
}
