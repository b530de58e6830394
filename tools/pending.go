package tools

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
)

// pending are the requests of the Model Context Protocol that are under way, so that they can be cancelled by notifications, which come over
// connections of their own.
type pending struct {
	mu  sync.Mutex
	all map[pendingKey][]*job // guarded by mu
}

// A pendingKey names a request: clients in one sandbox may have chosen the same id.
type pendingKey struct {
	sandbox caisson.ID
	id      string
}

type job struct{ cancel context.CancelFunc }

// begin returns a context that ends when the request is cancelled. Done is called when it was answered.
func (p *pending) begin(ctx context.Context, sandbox caisson.ID, id json.RawMessage) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	key, j := pendingKey{sandbox, string(id)}, &job{cancel}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[key] = append(p.all[key], j)
	return ctx, func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		left := slices.DeleteFunc(p.all[key], func(o *job) bool { return o == j })
		if p.all[key] = left; len(left) == 0 {
			delete(p.all, key)
		}
	}
}

// cancel ends the request with that id. If there are several, nobody can say which is meant, and all go on.
func (p *pending) cancel(sandbox caisson.ID, id json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if list := p.all[pendingKey{sandbox, string(id)}]; len(list) == 1 {
		list[0].cancel()
	}
}
