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
	maxLinger  = 64 << 20               // bytes of an answer that are read for the sake of its end
	lingerLook = 100 * time.Millisecond // how often is looked whether the guest's sandbox is still there
)

var errLinger = errors.New("the guest went away, and what was left of the answer could not be read")

// A life is how long a call goes on.
type life struct {
	config  *Config
	guest   caisson.Guest
	asked   context.Context // ends when the guest goes away
	lost    bool            // the guest does not take its answer
	left    func()          // tells that
	written atomic.Bool     // something of the request may have gone to the provider
}

// outlive returns a context for a call that goes on when its guest goes away: providers go on too, and charge it, so that
// only the end of the answer says what it cost. It ends after some time, with the guest's sandbox, or at once as long as
// nothing was sent.
func (l *life) outlive() (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.asked))
	stop := context.AfterFunc(l.asked, func() { l.linger(ctx, cancel) })
	l.left = func() {
		if stop() { // and so is linger not called yet
			go l.linger(ctx, cancel)
		}
	}
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// linger ends ctx when nothing is worth waiting for any more.
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

// gone reports whether there is still a guest to answer.
func (l *life) gone() bool { return l.lost || l.asked.Err() != nil }

// endedBy is why a call ended before its answer did.
func (l *life) endedBy(ctx context.Context) (word string, status int) {
	if !l.gone() && context.Cause(ctx) == errIdle {
		return "timeout", http.StatusGatewayTimeout
	}
	return "aborted", 0
}
