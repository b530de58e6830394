package wire

import (
	"context"
	"log/slog"
	"time"
)

// spare is how many namespaces wait for sandboxes. Each costs the kernel some hundred kilobytes.
const spare = 4

// A pool makes namespaces ahead of time.
type pool struct {
	log   *slog.Logger
	ready chan *namespace // one more is being made, or held by fill until there is room
}

func newPool(log *slog.Logger) *pool {
	return &pool{log: log, ready: make(chan *namespace, spare-1)}
}

// get returns a namespace, which may have to be made.
func (p *pool) get() (*namespace, error) {
	select {
	case n := <-p.ready:
		return n, nil
	default:
		return newNamespace()
	}
}

// fill keeps the pool full until ctx ends, and then empties it.
func (p *pool) fill(ctx context.Context) {
	defer p.drain()
	const pause = 5 * time.Second
	for ctx.Err() == nil {
		n, err := newNamespace()
		if err != nil {
			// Whoever needs one now will be told the same.
			p.log.WarnContext(ctx, "cannot make network namespaces in advance", "err", err)
			if !sleep(ctx, pause) {
				return
			}
			continue
		}
		select {
		case p.ready <- n:
		case <-ctx.Done():
			n.Close()
		}
	}
}

func (p *pool) drain() {
	for {
		select {
		case n := <-p.ready:
			n.Close()
		default:
			return
		}
	}
}

// sleep waits for d, or returns false because ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
