package runs_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/runtime/fake"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
)

// session returns the only session with that key.
func (w *world) session(key string) *caisson.Session {
	w.t.Helper()
	list := got(w.Runs().ListSessions(w.ctx(), caisson.SessionFilter{Key: key}))(w.t)
	if len(list) != 1 {
		w.t.Fatalf("there are %d sessions %s", len(list), key)
	}
	return list[0]
}

// turn executes one run of the session s.
func (w *world) turn(prompt string) *caisson.Run {
	w.t.Helper()
	return w.do(caisson.RunRequest{Prompt: prompt, Session: "s"})
}

func TestSessionContinues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.turn("one")
	wantAnswer(t, first, "you said one")
	s := w.session("s")
	if s.Run != "" || s.Runs != 1 || s.Sandbox == "" || s.Sandbox != first.Sandbox {
		t.Fatalf("the session is %+v, the run's sandbox %s", s, first.Sandbox)
	}
	w.empty(s.Sandbox)
	if sb := w.box(s.Sandbox); sb.State != caisson.Suspended || sb.Assigned != nil {
		t.Errorf("between runs the sandbox is %s, assigned %+v", sb.State, sb.Assigned)
	}
	second := w.turn("two")
	wantAnswer(t, second, "you said two")
	if second.Sandbox != first.Sandbox || w.session("s").Runs != 2 || w.session("s").UsedAt.Before(s.UsedAt) {
		t.Errorf("the second run was in %s, the first in %s", second.Sandbox, first.Sandbox)
	}
	tasks := w.tasks()
	if tasks[0].Continue || !tasks[1].Continue || tasks[0].Session != string(s.ID) || tasks[1].Session != string(s.ID) {
		t.Errorf("the tasks are %+v", tasks)
	}
	want := []caisson.Message{{Role: "user", Content: "one"}, {Role: "assistant", Content: "you said one"}}
	if !slices.Equal(tasks[1].History, want) {
		t.Errorf("the history is %v", tasks[1].History)
	}
	must(t, w.Runs().RemoveSession(w.ctx(), s.ID))
	w.empty()
	wantKind(t, w.Runs().RemoveSession(w.ctx(), s.ID), caisson.NotFound)
	third := w.turn("three")
	if n := len(w.tasks()[2].History); n != 0 || third.Session == s.ID {
		t.Errorf("a session that was removed is continued, with %d messages", n)
	}
}

// TestSessionNames: a session is identified by its account, agent, user and key.
func TestSessionNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(caisson.Agent{ID: "other"})
	w.putAs(w.as("strange"), caisson.Agent{ID: "echo"})
	seen := map[caisson.ID]bool{}
	for _, c := range []struct {
		ctx context.Context
		req caisson.RunRequest
	}{
		{w.ctx(), caisson.RunRequest{Agent: "echo"}},
		{w.ctx(), caisson.RunRequest{Agent: "other"}},
		{w.ctx(), caisson.RunRequest{Agent: "echo", User: "ann"}},
		{w.ctx(), caisson.RunRequest{Agent: "echo", User: "bob"}},
		{w.as("strange"), caisson.RunRequest{Agent: "echo"}},
	} {
		c.req.Prompt, c.req.Session = "hello", "same"
		r := got(w.Runs().StartRun(c.ctx, c.req))(t)
		r = w.ended(r.ID)
		if r.State != caisson.RunSucceeded || seen[r.Sandbox] || seen[r.Session] {
			t.Errorf("%s: sandbox %s or session %s is shared", r.State, r.Sandbox, r.Session)
		}
		seen[r.Sandbox], seen[r.Session] = true, true
	}
	for _, task := range w.tasks() {
		if len(task.History) != 0 {
			t.Errorf("somebody is told what another has said: %v", task.History)
		}
	}
	list := got(w.Runs().ListSessions(w.ctx(), caisson.SessionFilter{Agent: "echo", User: "ann"}))(t)
	if len(list) != 1 || list[0].User != "ann" {
		t.Errorf("found %v", list)
	}
	if list := got(w.Runs().ListSessions(w.as("strange"), caisson.SessionFilter{}))(t); len(list) != 1 {
		t.Errorf("an account sees %d sessions", len(list))
	}
	wantKind(t, w.Runs().RemoveSession(w.as("strange"), list[0].ID), caisson.NotFound)
}

// TestSessionOneAtATime: a second run is rejected while the first one is in progress, and accepted as soon as the first
// one has ended.
func TestSessionOneAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began, goOn := w.hangs("wait")
	first := w.start(caisson.RunRequest{Prompt: "wait", Session: "s"})
	receive(t, began)
	_, err := w.Runs().StartRun(w.ctx(), caisson.RunRequest{Agent: "echo", Prompt: "x", Session: "s"})
	wantKind(t, err, caisson.Conflict)
	if !strings.Contains(err.Error(), string(first.ID)) {
		t.Errorf("the refusal does not say which run: %v", err)
	}
	wantKind(t, w.Runs().RemoveSession(w.ctx(), w.session("s").ID), caisson.Conflict)
	wantKind(t, w.Runs().RemoveRun(w.ctx(), first.ID), caisson.Conflict)
	goOn()
	w.waitState(first.ID, caisson.RunSucceeded) // it may not have released the session yet
	wantAnswer(t, w.turn("x"), "you said x")
}

// TestSessionHandsOver: a run that has ended but could not release the session does not block other runs.
func TestSessionHandsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.turn("one")
	_, err := w.store.Sessions().Update(w.ctx(), caisson.In("local"), string(r.Session), func(s *caisson.Session) error {
		s.Run = r.ID
		return nil
	})
	must(t, err)
	wantAnswer(t, w.turn("two"), "you said two")
}

// TestSessionInsertFails: a run that is not stored claims no session, and creates none.
func TestSessionInsertFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refuse := func(op string, _ *caisson.Run) error {
		if op == "insert" {
			return errInjected
		}
		return nil
	}
	start := func() error {
		return second(w.Runs().StartRun(w.ctx(), caisson.RunRequest{Agent: "echo", Prompt: "x", Session: "s", Workspace: strings.NewReader("x")}))
	}
	w.store.on(refuse)
	if err := start(); err == nil {
		t.Fatal("it was started")
	}
	if list := got(w.Runs().ListSessions(w.ctx(), caisson.SessionFilter{}))(t); len(list) != 0 {
		t.Errorf("there is a session: %+v", list[0])
	}
	w.store.on(nil)
	w.turn("one")
	w.store.on(refuse)
	if err := start(); err == nil {
		t.Fatal("it was started")
	}
	w.store.on(nil)
	if s := w.session("s"); s.Run != "" || s.Runs != 1 {
		t.Errorf("the session is %+v", s)
	}
	if n := w.dirs(); n != 1 {
		t.Errorf("there are directories of %d runs", n)
	}
}

// TestSessionRests: a session's memory is moved to disk, and later only its files are kept; each time the next run
// continues in it.
func TestSessionRests(t *testing.T) {
	t.Parallel()
	w := plan{limits: runs.Limits{SessionIdle: hour, SessionFiles: 5 * hour}}.world(t)
	w.put(caisson.Agent{ID: "echo", Service: sleeps})
	first := w.turn("one")
	box := first.Sandbox
	w.on("look", func(v *turn) int {
		v.text(strings.Repeat("I", w.serving(w.ctx(), box)))
		return v.end(nil)
	})
	for _, c := range []struct {
		idle    time.Duration
		want    caisson.State
		upgrade bool // memory is lost, because no daemon works with its programs
		served  int
	}{
		{59 * time.Minute, caisson.Suspended, false, 0},
		{2 * time.Hour, caisson.Paused, false, 0},
		{2 * time.Hour, caisson.Paused, true, 1},
		{6 * time.Hour, caisson.Stopped, false, 1},
	} {
		must(t, w.Settle(w.ctx(), w.session("s").UsedAt.Add(c.idle)))
		if have := w.box(box).State; have != c.want {
			t.Fatalf("after %v it is %s, want %s", c.idle, have, c.want)
		}
		if c.upgrade {
			w.down()
			w.lconf.Programs.Current, w.config.Programs.Current = "b2", "b2"
			w.up()
		}
		served := w.boxes.count("serve agent")
		r := w.turn("look")
		wantAnswer(t, r, "I")
		if n := w.boxes.count("serve agent") - served; n != c.served {
			t.Errorf("after %v the service is started %d times by the run, want %d", c.idle, n, c.served)
		}
		if r.Sandbox != box {
			t.Errorf("after %v the run is in %s, not in %s", c.idle, r.Sandbox, box)
		}
	}
	// From memory on disk to files only, without a run in between.
	must(t, w.Settle(w.ctx(), w.session("s").UsedAt.Add(2*time.Hour)))
	must(t, w.Settle(w.ctx(), w.session("s").UsedAt.Add(6*time.Hour)))
	if have := w.box(box).State; have != caisson.Stopped {
		t.Errorf("it is %s", have)
	}
	wantAnswer(t, w.turn("look"), "I")
}

// TestSessionRestsOrRuns: a run that begins while a session is being paused waits for it, and a session with a run in
// progress is not paused.
func TestSessionRestsOrRuns(t *testing.T) {
	t.Parallel()
	w := plan{limits: runs.Limits{SessionIdle: hour}}.world(t)
	w.turn("one")
	pausing, goOn := make(chan bool, 1), make(chan bool)
	w.boxes.on(func(_ context.Context, op string) error {
		if op == "pause" {
			pausing <- true
			<-goOn
		}
		return nil
	})
	settled := make(chan error, 1)
	late := time.Now().Add(2 * time.Hour)
	go func() { settled <- w.Settle(w.ctx(), late) }()
	receive(t, pausing)
	began := make(chan *caisson.Run, 1)
	go func() { began <- w.start(caisson.RunRequest{Prompt: "two", Session: "s"}) }()
	close(goOn)
	must(t, receive(t, settled))
	wantAnswer(t, w.ended(receive(t, began).ID), "you said two")
	w.boxes.on(nil)

	busy, finish := w.hangs("wait")
	r := w.start(caisson.RunRequest{Prompt: "wait", Session: "s"})
	receive(t, busy)
	before := w.boxes.count("pause")
	must(t, w.Settle(w.ctx(), late))
	if w.boxes.count("pause") != before {
		t.Error("the sandbox of a run under way was paused")
	}
	finish()
	wantAnswer(t, w.ended(r.ID), "begun done")
}

// TestSessionLost: without its sandbox, a session continues with its messages only.
func TestSessionLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(caisson.Agent{ID: "echo", Memory: true})
	first := w.turn("one")
	for name, lose := range map[string]func(){
		"removed": func() { must(t, w.life.Sandboxes().Remove(w.ctx(), string(w.session("s").Sandbox))) },
		"dead": func() {
			id := w.session("s").Sandbox
			must(t, w.rt.Kill(id))
			w.eventually(func() bool { return w.box(id).State == caisson.Failed })
		},
		"not to be woken": func() { w.rt.FailNext(fake.OpThaw, errInjected) },
	} {
		t.Run(name, func(t *testing.T) {
			before := w.session("s").Sandbox
			lose()
			r := w.turn("two")
			wantAnswer(t, r, "you said two")
			if !strings.Contains(types(w.events(r.ID)), "warning") {
				t.Error("nobody is told")
			}
			tasks := w.tasks()
			last := tasks[len(tasks)-1]
			switch {
			case name == "not to be woken": // its files exist
				if r.Sandbox != before || !last.Continue {
					t.Errorf("in %s and not in %s", r.Sandbox, before)
				}
			case r.Sandbox == before || last.Continue || len(last.History) < 2 || last.History[0].Content != "one":
				t.Errorf("in %s with %v", r.Sandbox, last.History)
			}
			w.empty(r.Sandbox)
		})
	}
	if s := w.session("s"); s.ID != first.Session {
		t.Error("the session is another one")
	}
	// The messages are not repeated to an agent that keeps them itself.
	w.turn("three")
	tasks := w.tasks()
	if n := len(tasks[len(tasks)-1].History); n != 0 {
		t.Errorf("the agent is told %d messages that it knows", n)
	}
}

// TestSessionLeftovers: processes that an agent leaves are killed at the end of its run, except its declared background
// processes and those that existed before.
func TestSessionLeftovers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(caisson.Agent{ID: "echo", Background: []string{"idle"}, Service: sleeps})
	running := func(id caisson.ID) (names []string) {
		for _, p := range got(w.life.Processes().ListProcesses(w.ctx(), string(id)))(t) {
			if p.PID != 1 {
				names = append(names, p.Command)
			}
		}
		slices.Sort(names)
		return names
	}
	w.on("leave", func(v *turn) int {
		for _, args := range [][]string{{guest.Path, "test", "sleep", "1h"}, {"/srv/idle"}} {
			if _, err := v.Spawn(fake.Child{Args: args, Session: true}); err != nil {
				return 1
			}
		}
		v.text("left")
		return v.end(nil)
	})
	wantAnswer(t, w.turn("leave"), "left")
	box := w.session("s").Sandbox
	got(w.life.Sandboxes().Wake(w.ctx(), string(box)))(t)
	if have := running(box); !slices.Equal(have, []string{"idle", "inside"}) {
		t.Errorf("between runs there are %v", have)
	}
	wantAnswer(t, w.turn("x"), "you said x")
}

// TestSessionCannotBeRid: if processes cannot be killed, the session loses its memory but not its files.
func TestSessionCannotBeRid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.on("leave", func(v *turn) int {
		if _, err := v.Spawn(fake.Child{Args: []string{guest.Path, "test", "sleep", "1h"}, Session: true}); err != nil {
			return 1
		}
		v.text("left")
		return v.end(nil)
	})
	w.boxes.on(func(_ context.Context, op string) error {
		if op == "kill" {
			return caisson.Errorf(caisson.NotFound, "no such process")
		}
		return nil
	})
	r := w.turn("leave")
	wantAnswer(t, r, "left")
	if sb := w.box(r.Sandbox); sb.State != caisson.Stopped || sb.Assigned != nil || w.session("s").Sandbox != sb.ID {
		t.Errorf("the sandbox is %s, assigned %v", sb.State, sb.Assigned)
	}
	w.boxes.on(nil)
	again := w.turn("x")
	wantAnswer(t, again, "you said x")
	if again.Sandbox != r.Sandbox {
		t.Error("the session lost its files")
	}
}

// TestSessionTakenUpInVain: a run that ends before it has woken the sandbox leaves it to the next run.
func TestSessionTakenUpInVain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(caisson.Agent{ID: "echo", Service: sleeps})
	box := w.turn("one").Sandbox
	for _, op := range []string{"wake", "assign", "processes"} {
		reached := make(chan bool, 1)
		first := true
		w.boxes.on(func(ctx context.Context, did string) error {
			if did == op && first {
				first = false
				reached <- true
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		r := w.start(caisson.RunRequest{Prompt: "x", Session: "s"})
		receive(t, reached)
		got(w.Runs().CancelRun(w.ctx(), r.ID))(t)
		wantFailed(t, w.ended(r.ID), caisson.RunAborted, "cancelled")
		w.boxes.on(nil)
		if sb := w.box(box); sb.Assigned != nil {
			t.Errorf("%s: the sandbox is assigned to %s", op, sb.Assigned.Run)
		}
		again := w.turn("two")
		wantAnswer(t, again, "you said two")
		if again.Sandbox != box {
			t.Errorf("%s: the session is in another sandbox", op)
		}
		// Processes that existed before the run started are not killed.
		got(w.life.Sandboxes().Wake(w.ctx(), string(box)))(t)
		if n := w.serving(w.ctx(), box); n != 1 {
			t.Errorf("%s: %d services run", op, n)
		}
	}
}

// TestSessionHostFull: a session's sandbox waits for resources like all others, and is not lost.
func TestSessionHostFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.turn("one").Sandbox
	began, goOn := w.hangs("wait")
	other := w.start(caisson.RunRequest{Prompt: "wait"})
	receive(t, began)
	w.boxes.fail("wake", 2, caisson.Errorf(caisson.Exhausted, "no memory"))
	r := w.turn("two")
	wantAnswer(t, r, "you said two")
	if r.Sandbox != box {
		t.Error("the session is in another sandbox")
	}
	if n := strings.Count(types(w.events(r.ID)), "queued"); n != 2 {
		t.Errorf("it was told %d times that it waits", n)
	}
	goOn()
	w.ended(other.ID)
	// If no other run is in progress, it does not wait.
	w.eventually(func() bool { return !w.Live() })
	w.empty(box)
	w.boxes.fail("wake", 1, caisson.Errorf(caisson.Exhausted, "no memory"))
	wantFailed(t, w.turn("three"), caisson.RunRateLimit, "no memory")
	if again := w.turn("four"); again.Sandbox != box {
		t.Error("the session is in another sandbox")
	}
}

// TestSessionFails: a session continues in the same sandbox after a run that failed.
func TestSessionFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.on("fail", func(v *turn) int { return v.end(&caisson.RunError{Code: caisson.RunAgentError, Message: "no luck"}) })
	r := w.turn("fail")
	wantFailed(t, r, caisson.RunAgentError, "no luck")
	again := w.turn("x")
	wantAnswer(t, again, "you said x")
	if again.Sandbox != r.Sandbox {
		t.Error("the session is in another sandbox")
	}
	// A session does not continue in a sandbox that was never complete.
	w.boxes.fail("serve agent", 1, errInjected)
	w.put(caisson.Agent{ID: "served", Service: sleeps})
	wantFailed(t, w.do(caisson.RunRequest{Agent: "served", Prompt: "x", Session: "t"}), caisson.RunInternal, "")
	if s := w.session("t"); s.Sandbox != "" || s.Run != "" {
		t.Errorf("the session is %+v", s)
	}
	w.boxes.on(nil)
	wantAnswer(t, w.do(caisson.RunRequest{Agent: "served", Prompt: "x", Session: "t"}), "you said x")
}
