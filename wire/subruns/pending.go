package subruns

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
)

// pending holds the requests of the Model Context Protocol that are in progress, so that notifications, which arrive on other
// connections, can cancel them.
type pending struct {
	mu  sync.Mutex
	all map[pendingKey][]*pendingRequest // requests by key; guarded by mu
}

// A pendingKey identifies a request by sandbox and id. It is not unique, because several clients in one sandbox may use the same
// id.
type pendingKey struct {
	sandbox caisson.ID
	id      string
}

// A pendingRequest is a request in progress; cancel ends it.
type pendingRequest struct{ cancel context.CancelFunc }

// begin registers a request and returns a context that is cancelled when the request is cancelled. The caller must call done when
// the request is finished.
func (p *pending) begin(ctx context.Context, sandbox caisson.ID, id json.RawMessage) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	key, j := pendingKey{sandbox, string(id)}, &pendingRequest{cancel}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[key] = append(p.all[key], j)
	return ctx, func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		left := slices.DeleteFunc(p.all[key], func(o *pendingRequest) bool { return o == j })
		if p.all[key] = left; len(left) == 0 {
			delete(p.all, key)
		}
	}
}

// cancel cancels the request with the given id. If several requests have that id, it cancels none.
func (p *pending) cancel(sandbox caisson.ID, id json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if list := p.all[pendingKey{sandbox, string(id)}]; len(list) == 1 {
		list[0].cancel()
	}
}
