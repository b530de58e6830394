package wire

import (
	"context"
	"encoding/json"
	"net"
	"sync"

	caisson "github.com/caisson-dev/caisson"
)

// Limits on tool calls in progress: of one sandbox, and of all. The wire process enforces them, and refuses further ones.
const (
	maxTools    = 4
	maxAllTools = 256
)

// limiter counts the operations in progress, by sandbox and in total. Safe for concurrent use.
type limiter struct {
	maxPerSandbox, maxTotal int // limits for one sandbox, and for all

	mu        sync.Mutex
	bySandbox map[caisson.ID]int // operations in progress by sandbox; guarded by mu
	total     int                // operations in progress; guarded by mu
}

// newLimiter returns a limiter of each operations per sandbox and most in total.
func newLimiter(each, most int) *limiter {
	return &limiter{maxPerSandbox: each, maxTotal: most, bySandbox: map[caisson.ID]int{}}
}

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

func (u *limiter) release(id caisson.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.total--
	if u.bySandbox[id]--; u.bySandbox[id] == 0 {
		delete(u.bySandbox, id)
	}
}

// tool makes the engine call a tool for the guest in ctx. It is used in the wire process. After ctx has ended the call counts
// until the engine has answered it.
func (f *feed) tool(ctx context.Context, uses *limiter, name string, in json.RawMessage) (json.RawMessage, error) {
	g, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, err
	}
	if len(in) > maxFeed/2 {
		return nil, caisson.Errorf(caisson.Invalid, "the request has more than %s", caisson.Size(maxFeed/2))
	}
	if !uses.acquire(g.Sandbox) {
		return nil, caisson.Errorf(caisson.Exhausted, "too many requests at once; wait for one to be answered")
	}
	type answer struct {
		out json.RawMessage
		err error
	}
	done := make(chan answer, 1)
	go func() {
		a, err := f.call(context.WithoutCancel(ctx), feedMessage{Sandbox: g.Sandbox, Trace: g.Trace, Tool: &toolBody{Name: name, In: in}})
		uses.release(g.Sandbox) // before the answer: its recipient may send the next call at once
		done <- answer{a.Out, err}
	}()
	select {
	case a := <-done:
		return a.out, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// startTool answers a tool call in the background. It returns false if more calls are in progress than the wire process may send:
// it enforces the same limits, so the session then ends.
func (s *session) startTool(ctx context.Context, conn *net.UnixConn, msg feedMessage, background func(func())) bool {
	if !s.tools.acquire(msg.Sandbox) {
		return false
	}
	background(func() {
		a := feedAnswer{N: msg.N}
		out, err := s.tool(ctx, msg)
		if err == nil && len(out) > maxFeed-1024 {
			err = caisson.Errorf(caisson.Exhausted, "the answer has more than %s", caisson.Size(maxFeed))
		}
		if err != nil {
			a.Kind, a.Error = caisson.KindOf(err), caisson.MessageOf(err)
			if a.Kind == caisson.Internal {
				s.m.log.ErrorContext(ctx, "a tool of an agent failed", "tool", msg.Tool.Name, "sandbox", msg.Sandbox, "err", err)
			}
		} else {
			a.Out = out
		}
		// Before the answer: its recipient may send the next call at once, which must not exceed the limit here.
		s.tools.release(msg.Sandbox)
		if err := s.send(conn, a); err != nil {
			conn.Close() // the wire process does not read, and is restarted
		}
	})
	return true
}

// tool executes a tool call. The Manager's record of the wire determines the guest.
func (s *session) tool(ctx context.Context, msg feedMessage) (json.RawMessage, error) {
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
