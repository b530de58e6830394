package wire

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	caisson "github.com/caisson-dev/caisson"
)

// toolGuest adds a sandbox to the engine's end of a feed.
func toolGuest(m *Manager) caisson.Guest {
	g := caisson.Guest{Sandbox: caisson.NewID(caisson.SandboxPrefix), Account: "a", Run: "r", Trace: "t"}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wires[g.Sandbox] = newWireState(g)
	return g
}

// TestToolsAtTheirLimit checks that a sandbox that always has the maximum number of tool calls in progress causes no protocol
// error.
func TestToolsAtTheirLimit(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	m, process, done := hear(t, Config{}, Handlers{Tool: func(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		g, err := caisson.GuestOf(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal([]string{name, string(g.Sandbox), string(in)})
	}})
	g := toolGuest(m)
	f, uses := newFeed(process), newToolLimiter()
	go f.run()
	ctx := caisson.WithGuest(t.Context(), g)
	want := `["run","` + string(g.Sandbox) + `","7"]`
	var wg sync.WaitGroup
	for range maxTools {
		wg.Go(func() {
			for range 2000 {
				out, err := f.tool(ctx, uses, "run", json.RawMessage("7"))
				if err != nil || string(out) != want {
					t.Errorf("%s, %v", out, err)
					return
				}
			}
		})
	}
	wg.Wait()
	process.Close()
	if err := <-done; err != nil && errors.Is(err, errMessage) {
		t.Error(err)
	}
	if n := most.Load(); n > maxTools {
		t.Errorf("%d at once", n)
	}
}

// TestToolsAreBounded checks that the wire process refuses additional tool calls, and that exceeding the limit is a protocol
// error.
func TestToolsAreBounded(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	m, process, done := hear(t, Config{}, Handlers{Tool: func(context.Context, string, json.RawMessage) (json.RawMessage, error) {
		<-hold
		return json.RawMessage("1"), nil
	}})
	g := toolGuest(m)
	f, uses := newFeed(process), newToolLimiter()
	go f.run()
	ctx, leave := context.WithCancel(caisson.WithGuest(t.Context(), g))
	leave() // the call still counts after its context has ended
	for range maxTools {
		if _, err := f.tool(ctx, uses, "run", nil); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if _, err := f.tool(caisson.WithGuest(t.Context(), g), uses, "run", nil); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("one more: %v", err)
	}
	if _, err := f.tool(caisson.WithGuest(t.Context(), g), uses, "run", json.RawMessage(strings.Repeat("7", maxFeed/2+1))); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("too long a question: %v", err)
	}
	// A process that does not count violates the protocol.
	s := &processState{m: m, tools: newToolLimiter()}
	for n := range maxTools + 1 {
		msg := feedMessage{Sandbox: g.Sandbox, Trace: g.Trace, Tool: &functionCall{Name: "run"}}
		if ok := s.startTool(t.Context(), process, msg, func(func()) {}); ok != (n < maxTools) {
			t.Errorf("use %d: %t", n, ok)
		}
	}
	close(hold)
	process.Close()
	<-done
}

// TestToolsOfWhom checks that the engine's record of the wire determines the guest of a request.
func TestToolsOfWhom(t *testing.T) {
	t.Parallel()
	big := json.RawMessage(`"` + strings.Repeat("x", maxFeed) + `"`)
	m, process, _ := hear(t, Config{}, Handlers{Tool: func(ctx context.Context, name string, _ json.RawMessage) (json.RawMessage, error) {
		switch name {
		case "big":
			return big, nil
		case "fails":
			return nil, caisson.Errorf(caisson.Conflict, "not now")
		}
		return json.RawMessage("1"), nil
	}})
	g := toolGuest(m)
	f, uses := newFeed(process), newToolLimiter()
	go f.run()
	for _, row := range []struct {
		name string
		g    caisson.Guest
		tool string
		want caisson.Kind
	}{
		{"itself", g, "run", ""},
		{"another sandbox", caisson.Guest{Sandbox: caisson.NewID(caisson.SandboxPrefix), Account: "a", Run: g.Run, Trace: g.Trace}, "run", caisson.Denied},
		{"a run that it served before", caisson.Guest{Sandbox: g.Sandbox, Account: "a", Run: "before", Trace: "before"}, "run", caisson.Denied},
		{"an answer that does not fit", g, "big", caisson.Exhausted},
		{"what fails", g, "fails", caisson.Conflict},
	} {
		out, err := f.tool(caisson.WithGuest(t.Context(), row.g), uses, row.tool, nil)
		if row.want == "" && (err != nil || string(out) != "1") || row.want != "" && caisson.KindOf(err) != row.want {
			t.Errorf("%s: %s, %v", row.name, out, err)
		}
	}
	if _, err := f.tool(t.Context(), uses, "run", nil); caisson.KindOf(err) != caisson.Unauthed {
		t.Errorf("nobody: %v", err)
	}
}
