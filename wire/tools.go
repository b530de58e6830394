package wire

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"sync"

	caisson "github.com/caisson-dev/caisson"
)

// Limits on tool calls in progress: calls of functions that the engine offers to agents. The wire process refuses further calls.
const (
	maxTools    = 4   // of one sandbox
	maxAllTools = 256 // of all sandboxes
)

// limiter counts the operations in progress, by sandbox and in total. Safe for concurrent use.
type limiter struct {
	maxPerSandbox, maxTotal int // limits for one sandbox, and for all

	mu        sync.Mutex
	bySandbox map[caisson.ID]int // operations in progress by sandbox; guarded by mu
	total     int                // operations in progress; guarded by mu
}

// newLimiter returns a limiter: each is the maximum number of concurrent operations of one sandbox, most that of all sandboxes.
func newLimiter(each, most int) *limiter {
	return &limiter{maxPerSandbox: each, maxTotal: most, bySandbox: map[caisson.ID]int{}}
}

// newToolLimiter returns the limiter of tool calls in progress.
func newToolLimiter() *limiter { return newLimiter(maxTools, maxAllTools) }

// acquire counts an operation of a sandbox. It returns false if a limit is reached.
func (u *limiter) acquire(id caisson.ID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.bySandbox[id] >= u.maxPerSandbox || u.total >= u.maxTotal {
		return false
	}
	u.bySandbox[id]++
	u.total++
	return true
}

// release ends an operation that acquire has counted.
func (u *limiter) release(id caisson.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.total--
	if u.bySandbox[id]--; u.bySandbox[id] == 0 {
		delete(u.bySandbox, id)
	}
}

// tool makes the engine call a tool for the guest in ctx. It is used in the wire process. The call counts in slots until
// the engine has answered it, even if ctx ends before.
func (f *feed) tool(ctx context.Context, slots *limiter, name string, in json.RawMessage) (json.RawMessage, error) {
	g, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, err
	}
	if len(in) > maxFeed/2 {
		return nil, caisson.Errorf(caisson.Invalid, "the request has more than %s", caisson.Size(maxFeed/2))
	}
	m := feedMessage{Sandbox: g.Sandbox, Trace: g.Trace, Tool: &functionCall{Name: name, In: in}}
	a, err := f.countedCall(ctx, slots, g.Sandbox, m, "too many requests at once; wait for one to be answered")
	if err != nil {
		return nil, err
	}
	slots.release(g.Sandbox)
	return a.Out, nil
}

// startTool answers a tool call in the background. It returns false if more calls are in progress than the wire process may send:
// the wire process enforces the same limits, so the engine then kills it.
func (s *processState) startTool(ctx context.Context, conn *net.UnixConn, msg feedMessage, background func(func())) bool {
	return s.respond(conn, s.tools, msg.Sandbox, background, func() (feedAnswer, *os.File, func(), error) {
		out, err := s.tool(ctx, msg)
		if err == nil && len(out) > maxFeed-1024 {
			err = caisson.Errorf(caisson.Exhausted, "the answer has more than %s", caisson.Size(maxFeed))
		}
		if err != nil && caisson.KindOf(err) == caisson.Internal {
			s.m.log.ErrorContext(ctx, "a tool of an agent failed", "tool", msg.Tool.Name, "sandbox", msg.Sandbox, "err", err)
		}
		return feedAnswer{N: msg.N, Out: out}, nil, nil, err
	})
}

// tool executes a tool call on behalf of the guest that the engine has set for the sandbox's wire; msg cannot name another.
func (s *processState) tool(ctx context.Context, msg feedMessage) (json.RawMessage, error) {
	s.m.mu.Lock()
	a := s.m.wires[msg.Sandbox]
	var g caisson.Guest
	if a != nil {
		g = a.guest
	}
	s.m.mu.Unlock()
	if a == nil || g.Trace != msg.Trace || s.m.handlers.Tool == nil {
		return nil, caisson.Errorf(caisson.Denied, "this sandbox serves no run")
	}
	return s.m.handlers.Tool(caisson.WithGuest(ctx, g), msg.Tool.Name, msg.Tool.In)
}
