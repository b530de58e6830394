package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// tokenCalls contains the requests over TCP that are being served, by token. It is safe for concurrent use.
type tokenCalls struct {
	mu    sync.Mutex
	next  int                                            // number of the newest request; the one after it gets next + 1
	calls map[caisson.ID]map[int]context.CancelCauseFunc // functions that cancel the requests, by token and number
	// removed contains the tokens that were removed since the daemon has started, because a token may be removed between the time
	// when it is looked up and the call of begin.
	removed map[caisson.ID]bool
}

// newTokenCalls returns a tokenCalls without requests and removed tokens.
func newTokenCalls() *tokenCalls {
	return &tokenCalls{calls: map[caisson.ID]map[int]context.CancelCauseFunc{}, removed: map[caisson.ID]bool{}}
}

func errTokenRemoved() error { return caisson.Errorf(caisson.Unauthed, "the token was removed") }

// begin returns a context for a request with a token. The context ends when the token is removed or expires. The caller must call
// end when the request has been served. begin returns Unauthed if the token has been removed.
func (t *tokenCalls) begin(ctx context.Context, token *caisson.Token) (_ context.Context, end func(), err error) {
	stop := func() {}
	if token.ExpiresAt != nil {
		ctx, stop = context.WithDeadlineCause(ctx, *token.ExpiresAt, caisson.Errorf(caisson.Unauthed, "the token expired at %s", token.ExpiresAt.Format(time.RFC3339)))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.removed[token.ID] {
		cancel(nil)
		stop()
		return nil, nil, errTokenRemoved()
	}
	t.next++
	n := t.next
	if t.calls[token.ID] == nil {
		t.calls[token.ID] = map[int]context.CancelCauseFunc{}
	}
	t.calls[token.ID][n] = cancel
	return ctx, func() {
		cancel(nil)
		stop()
		t.mu.Lock()
		defer t.mu.Unlock()
		if delete(t.calls[token.ID], n); len(t.calls[token.ID]) == 0 {
			delete(t.calls, token.ID)
		}
	}, nil
}

// revoke ends the requests with a token that was removed, and makes begin fail for that token.
func (t *tokenCalls) revoke(id caisson.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removed[id] = true
	for _, cancel := range t.calls[id] {
		cancel(errTokenRemoved())
	}
}
