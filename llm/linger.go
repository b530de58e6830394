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
	maxLinger  = 64 << 20               // bytes of an answer that are read after the guest disconnected
	lingerLook = 100 * time.Millisecond // interval between checks that the guest's grant is still valid
)

var errLinger = errors.New("the guest went away, and what was left of the answer could not be read")

// A life controls how long a call continues.
type life struct {
	config  *Config
	guest   caisson.Guest
	asked   context.Context // done when the guest disconnects
	lost    bool            // a write to the guest has failed
	left    func()          // called when lost is set
	written atomic.Bool     // part of the request may have been sent to the provider
}

// outlive returns a context for a call that continues after its guest disconnects: providers continue too and charge for it, so
// that only the end of the answer reports the cost. The context is cancelled after Timeouts.Linger, when the guest's grant ends,
// or at once if nothing has been sent.
func (l *life) outlive() (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.asked))
	stop := context.AfterFunc(l.asked, func() { l.linger(ctx, cancel) })
	l.left = func() {
		if stop() { // linger has not been called yet
			go l.linger(ctx, cancel)
		}
	}
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// linger cancels ctx when the answer is not needed any more.
func (l *life) linger(ctx context.Context, cancel context.CancelCauseFunc) {
	end := time.NewTimer(l.config.Timeouts.Linger)
	defer end.Stop()
	look := time.NewTicker(lingerLook)
	defer look.Stop()
	for l.written.Load() && l.config.Grant(ctx, l.guest) != nil {
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

// gone reports whether the guest has disconnected.
func (l *life) gone() bool { return l.lost || l.asked.Err() != nil }

// endedBy returns the reason why a call ended before its answer did.
func (l *life) endedBy(ctx context.Context) (word string, status int) {
	if !l.gone() && context.Cause(ctx) == errIdle {
		return "timeout", http.StatusGatewayTimeout
	}
	return "aborted", 0
}
