package runs_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// guest returns the context of a request over the wire of a run's sandbox.
func (w *world) guest(id caisson.ID) context.Context {
	r := w.stored(id)
	return caisson.WithGuest(w.t.Context(), caisson.Guest{Account: r.Account, Sandbox: r.Sandbox, Run: string(r.ID), Attempt: r.Attempt})
}

// boss starts a run of an agent that may start sub-runs; the run continues until goOn is called.
func (w *world) boss(limits caisson.AgentLimits) (id caisson.ID, goOn func()) {
	w.t.Helper()
	w.put(caisson.Agent{ID: "boss", SubAgents: []string{"echo", "boss"}})
	began, goOn := w.hangs("lead")
	id = w.start(caisson.RunRequest{Agent: "boss", Prompt: "lead", User: "ann", Limits: limits}).ID
	receive(w.t, began)
	return id, goOn
}

func TestGuestRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(caisson.Agent{ID: "secret"})
	boss, goOn := w.boss(caisson.AgentLimits{Time: caisson.Duration(time.Minute), Runs: new(int64(3))})
	ctx := w.guest(boss)
	agents := got(w.Guests().GuestAgents(ctx))(t)
	if len(agents) != 2 || slices.ContainsFunc(agents, func(a *caisson.Agent) bool { return a.ID == "secret" }) {
		t.Errorf("it may ask %v", agents)
	}
	child := got(w.Guests().StartGuestRun(ctx, caisson.RunRequest{Agent: "echo", Prompt: "hello", User: "mallory", Labels: map[string]string{"a": "b"}}))(t)
	if child.Parent != boss || !slices.Equal(child.Lineage, []caisson.ID{boss}) || child.Request.User != "ann" || child.Local || len(child.Request.Labels) != 0 {
		t.Errorf("the child is %+v", child)
	}
	if left := time.Until(child.Deadline); left > 54*time.Second || time.Duration(child.Limits.Time) > 54*time.Second || child.Limits.StartableRuns() != 2 {
		t.Errorf("the child has %v, %v, %d runs", left, child.Limits.Time, child.Limits.StartableRuns())
	}
	wantAnswer(t, w.ended(child.ID), "you said hello")
	wantAnswer(t, got(w.Guests().GuestRun(ctx, child.ID))(t), "you said hello")
	for name, c := range map[string]struct {
		req  caisson.RunRequest
		kind caisson.Kind
	}{
		"agent that it may not start": {caisson.RunRequest{Agent: "secret"}, caisson.Denied},
		"policy":                      {caisson.RunRequest{Policy: &caisson.Policy{}}, caisson.Denied},
		"image":                       {caisson.RunRequest{Image: "host"}, caisson.Denied},
		"session":                     {caisson.RunRequest{Session: "s"}, caisson.Denied},
		"keep":                        {caisson.RunRequest{Keep: true}, caisson.Denied},
		"gateway":                     {caisson.RunRequest{Gateway: &caisson.GatewayUse{}}, caisson.Denied},
		"source":                      {caisson.RunRequest{Source: "/"}, caisson.Denied},
		"workspace":                   {caisson.RunRequest{Workspace: strings.NewReader("")}, caisson.Denied},
		"wider limits":                {caisson.RunRequest{Limits: caisson.AgentLimits{Memory: 1 << 50}}, caisson.Denied},
	} {
		if c.req.Agent == "" {
			c.req.Agent = "echo"
		}
		c.req.Prompt = "x"
		if _, err := w.Guests().StartGuestRun(ctx, c.req); caisson.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2 {
		w.ended(got(w.Guests().StartGuestRun(ctx, caisson.RunRequest{Agent: "echo", Prompt: "x"}))(t).ID)
	}
	_, err := w.Guests().StartGuestRun(ctx, caisson.RunRequest{Agent: "echo", Prompt: "x"})
	wantKind(t, err, caisson.Exhausted)
	_, err = w.Runs().RetryRun(w.ctx(), child.ID)
	wantKind(t, err, caisson.Conflict)
	goOn()
	wantAnswer(t, w.ended(boss), "begun done")
	told := 0
	for _, e := range w.events(boss) {
		if e.Child != "" {
			told++
		}
	}
	if told != 3 || w.stored(boss).Children != 3 {
		t.Errorf("the parent's events tell of %d runs, it has %d", told, w.stored(boss).Children)
	}
	w.empty()
}

// TestGuestsRefused: only the sandbox of a run that may start sub-runs can do so, and only during the run.
func TestGuestsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boss, goOn := w.boss(caisson.AgentLimits{})
	began, goOnToo := w.hangs("wait")
	plain := w.start(caisson.RunRequest{Prompt: "wait"})
	receive(t, began)
	b, p := w.stored(boss), w.stored(plain.ID)
	guest := func(g caisson.Guest) context.Context { return caisson.WithGuest(t.Context(), g) }
	for name, ctx := range map[string]context.Context{
		"an agent that may start none":     w.guest(plain.ID),
		"another's run":                    guest(caisson.Guest{Account: "local", Sandbox: p.Sandbox, Run: string(boss)}),
		"another's sandbox":                guest(caisson.Guest{Account: "local", Sandbox: b.Sandbox, Run: string(plain.ID)}),
		"another account":                  guest(caisson.Guest{Account: "other", Sandbox: b.Sandbox, Run: string(boss)}),
		"a sandbox that serves no run":     guest(caisson.Guest{Account: "local", Sandbox: b.Sandbox}),
		"a run that has no sandbox at all": guest(caisson.Guest{Account: "local", Run: string(boss)}),
	} {
		if _, err := w.Guests().StartGuestRun(ctx, caisson.RunRequest{Agent: "echo", Prompt: "x"}); caisson.KindOf(err) != caisson.Denied {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := w.Guests().GuestAgents(ctx); caisson.KindOf(err) != caisson.Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := w.Guests().GuestAgents(w.ctx())
	wantKind(t, err, caisson.Unauthed)
	_, err = w.Guests().GuestRun(w.guest(boss), plain.ID)
	wantKind(t, err, caisson.NotFound)
	_, err = w.Guests().CancelGuestRun(w.guest(boss), plain.ID)
	wantKind(t, err, caisson.NotFound)
	ctx := w.guest(boss)
	goOn()
	goOnToo()
	w.ended(boss)
	w.ended(plain.ID)
	_, err = w.Guests().StartGuestRun(ctx, caisson.RunRequest{Agent: "echo", Prompt: "x"})
	wantKind(t, err, caisson.Denied)
}

// TestGuestTree: a tree of runs in a queue with one place does not deadlock, and ends with its root.
func TestGuestTree(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, boss caisson.ID, goOn func()){
		"cancelled": func(w *world, boss caisson.ID, goOn func()) { got(w.Runs().CancelRun(w.ctx(), boss))(w.t) },
		"ended":     func(w *world, boss caisson.ID, goOn func()) { goOn() },
	} {
		t.Run(name, func(t *testing.T) {
			w := plan{limits: limitsOf(1, 1)}.world(t)
			boss, goOn := w.boss(caisson.AgentLimits{})
			began, _ := w.hangs("deep")
			ids := []caisson.ID{boss}
			for depth := range 4 {
				r := got(w.Guests().StartGuestRun(w.guest(ids[depth]), caisson.RunRequest{Agent: "boss", Prompt: "deep"}))(t)
				ids = append(ids, r.ID)
				receive(t, began)
			}
			_, err := w.Guests().StartGuestRun(w.guest(ids[4]), caisson.RunRequest{Agent: "echo", Prompt: "x"})
			wantKind(t, err, caisson.Denied) // at this depth a wire does not offer the tools
			// One sub-run waits for the place of the other.
			sister := got(w.Guests().StartGuestRun(w.guest(boss), caisson.RunRequest{Agent: "echo", Prompt: "x"}))(t)
			got(w.Guests().CancelGuestRun(w.guest(ids[2]), ids[3]))(t)
			wantFailed(t, w.ended(ids[3]), caisson.RunAborted, "by the run that started it")
			wantFailed(t, w.ended(ids[4]), caisson.RunAborted, "")
			end(w, boss, goOn)
			w.ended(boss)
			for _, id := range append(ids[1:3:3], sister.ID) {
				wantFailed(t, w.stored(id), caisson.RunAborted, "")
				w.ended(id)
			}
			w.empty()
		})
	}
}

// TestGuestLate: a run that is started at the moment when its parent ends does not outlive the parent.
func TestGuestLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boss, goOn := w.boss(caisson.AgentLimits{})
	ctx := w.guest(boss)
	began, _ := w.hangs("wait")
	w.calls.mu.Lock() // the parent's end waits for its usage, after its sub-runs have ended
	unlock := sync.OnceFunc(w.calls.mu.Unlock)
	defer unlock()
	goOn()
	w.eventually(func() bool { return w.calls.asked.Load() > 0 }) // it waits there
	child := got(w.Guests().StartGuestRun(ctx, caisson.RunRequest{Agent: "echo", Prompt: "wait"}))(t)
	receive(t, began)
	unlock()
	w.ended(boss)
	wantFailed(t, w.ended(child.ID), caisson.RunAborted, "the run that started it has ended")
	w.empty()
}
