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

// uses counts the operations in progress, by sandbox and in total. Safe for concurrent use.
type uses struct {
	each, most int // limits for one sandbox, and for all

	mu  sync.Mutex
	of  map[caisson.ID]int // by sandbox; guarded by mu
	all int                // guarded by mu
}

func newUses(each, most int) *uses {
	return &uses{each: each, most: most, of: map[caisson.ID]int{}}
}

func newToolUses() *uses { return newUses(maxTools, maxAllTools) }

// begin counts an operation of a sandbox. It returns false if a limit is reached.
func (u *uses) begin(id caisson.ID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of[id] >= u.each || u.all >= u.most {
		return false
	}
	u.of[id]++
	u.all++
	return true
}

func (u *uses) end(id caisson.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all--
	if u.of[id]--; u.of[id] == 0 {
		delete(u.of, id)
	}
}

// tool makes the engine call a tool for the guest in ctx. It is used in the wire process. After ctx has ended the call counts
// until the engine has answered it.
func (f *feed) tool(ctx context.Context, uses *uses, name string, in json.RawMessage) (json.RawMessage, error) {
	g, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, err
	}
	if len(in) > maxFeed/2 {
		return nil, caisson.Errorf(caisson.Invalid, "the request has more than %s", caisson.Size(maxFeed/2))
	}
	if !uses.begin(g.Sandbox) {
		return nil, caisson.Errorf(caisson.Exhausted, "too many requests at once; wait for one to be answered")
	}
	type answer struct {
		out json.RawMessage
		err error
	}
	done := make(chan answer, 1)
	go func() {
		a, err := f.ask(context.WithoutCancel(ctx), feedMessage{Sandbox: g.Sandbox, Trace: g.Trace, Tool: &toolBody{Name: name, In: in}})
		uses.end(g.Sandbox) // before the answer: its recipient may send the next call at once
		done <- answer{a.Out, err}
	}()
	select {
	case a := <-done:
		return a.out, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// useTool answers a tool call in the background. It returns false if more calls are in progress than the wire process may send:
// it enforces the same limits, so the session then ends.
func (s *session) useTool(ctx context.Context, conn *net.UnixConn, msg feedMessage, background func(func())) bool {
	if !s.tools.begin(msg.Sandbox) {
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
		s.tools.end(msg.Sandbox)
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
