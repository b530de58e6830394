package runs_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// warmAgent returns an agent with a service and a warm snapshot.
func warmAgent() caisson.Agent {
	return caisson.Agent{
		ID: "claw", Service: sleeps, Warm: &caisson.Warm{Prompt: "warm up", Randomness: "openssl"}, Version: "1",
	}
}

// snapshots returns the ids of the snapshots of the account local.
func (w *world) snapshots() (ids []caisson.ID) {
	w.t.Helper()
	list, _, err := w.life.Snapshots().ListSnapshots(w.ctx(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}

// recorded returns the types of the events about a subject.
func (w *world) recorded(subject string) (types []string) {
	w.t.Helper()
	for _, e := range got(w.store.Events().After(context.Background(), caisson.AllAccounts(), subject, 0, 1000))(w.t) {
		types = append(types, e.Type)
	}
	return types
}

func (w *world) claw(prompt string) *caisson.Run {
	w.t.Helper()
	return w.do(caisson.RunRequest{Agent: "claw", Prompt: prompt})
}

func TestWarm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.put(warmAgent())
	if got := got(w.Agents().GetAgent(w.ctx(), "claw"))(t); got.Status.Snapshot != "" {
		t.Errorf("the status is %+v", got.Status)
	}
	// Concurrent callers share one capture.
	var stages []string
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			progress := func(p caisson.Progress) {
				if i == 0 {
					stages = append(stages, p.Stage) // the core does not call it concurrently
				}
			}
			if made, err := w.Agents().WarmAgent(w.ctx(), "claw", progress); err != nil || made.Status.Snapshot == "" {
				t.Errorf("%v, %v", made, err)
			}
		})
	}
	wg.Wait()
	if n := w.boxes.count("snapshot"); n > 2 {
		t.Errorf("%d snapshots were made", n)
	}
	if len(stages) == 0 {
		t.Error("nobody is told how it goes")
	}
	snaps := w.snapshots()
	if len(snaps) != 1 {
		t.Fatalf("there are %v", snaps)
	}
	w.empty()
	r := w.claw("hello")
	wantAnswer(t, r, "you said hello")
	if !r.Result.Warm || strings.Contains(types(w.events(r.ID)), "warning") {
		t.Errorf("warm: %v, events %s", r.Result.Warm, types(w.events(r.ID)))
	}
	// Changes of fields for single runs do not require a new snapshot; changes of captured fields do.
	for _, c := range []struct {
		name   string
		change func(*caisson.Agent)
		warm   bool
	}{
		{"description", func(a *caisson.Agent) { a.Description = "other" }, true},
		{"time", func(a *caisson.Agent) { a.Limits.Time = caisson.Duration(patience) }, true},
		{"version", func(a *caisson.Agent) { a.Version = "2" }, false},
		{"files", func(a *caisson.Agent) { a.Files = []caisson.SeedFile{{Path: "/etc/claw", Data: "x"}} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := *a
			c.change(&b)
			w.put(b)
			status := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status
			if (status.Snapshot != "") != c.warm {
				t.Errorf("the status is %+v", status)
			}
		})
	}
	w.put(*a)
	w.models.set(nil, "new", "small")
	if s := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status.Snapshot; s != snaps[0] {
		t.Errorf("a model that was added changes the snapshot: %s", s)
	}
	w.models.set(nil, "new")
	if s := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status.Snapshot; s != snaps[0] {
		t.Errorf("a model that was removed changes the snapshot: %s", s)
	}
	w.models.add(caisson.GatewayModel{Model: caisson.Model{
		Alias: "small", Provider: "q", Upstream: "tiny", Prices: &caisson.Prices{Input: 1, Output: 2}, Context: 2000, Output: 200,
	}})
	if s := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status.Snapshot; s != snaps[0] {
		t.Errorf("another price and context of a model change the snapshot: %s", s)
	}
	w.models.set(nil, "new", "small")
	b := *a
	b.Models, b.Personas = []string{"small", "later"}, []caisson.Persona{{ID: "reviewer", Model: "later"}}
	w.put(b)
	before := got(w.Agents().WarmAgent(w.ctx(), "claw", func(caisson.Progress) {}))(t).Status.Snapshot
	w.models.set(nil, "new", "small", "later")
	if s := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status.Snapshot; before == "" || s != "" {
		t.Errorf("the model of a persona was added, and the snapshot was %q and is %q", before, s)
	}
	w.put(*a)
	got(w.Agents().WarmAgent(w.ctx(), "claw", func(caisson.Progress) {}))(t)
	older := caisson.Programs{Current: "b2", Older: func(id string) bool { return id == "b1" }}
	w.config.Programs, w.lconf.Programs = older, older
	w.restart()
	if s := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status.Snapshot; s == "" {
		t.Error("the snapshot of older programs, with which the daemon works, is not used")
	}
	w.config.Programs, w.lconf.Programs = caisson.Programs{Current: "b2"}, caisson.Programs{Current: "b2"}
	w.restart()
	if s := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status.Snapshot; s != "" {
		t.Error("the snapshot of another build is used")
	}
	must(t, w.Agents().RemoveAgent(w.ctx(), "claw"))
	if left := w.snapshots(); len(left) != 0 {
		t.Errorf("the snapshots %v of an agent that was removed are left", left)
	}
}

// TestWarmLater: runs that find no snapshot start cold, and one is made in the background, once.
func TestWarmLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(warmAgent())
	var ids []caisson.ID
	for range 4 {
		ids = append(ids, w.start(caisson.RunRequest{Agent: "claw", Prompt: "hello"}).ID)
	}
	for _, id := range ids {
		r := w.ended(id)
		wantAnswer(t, r, "you said hello")
		if !r.Result.Warm && !strings.Contains(types(w.events(id)), "warning") {
			t.Error("a cold start is not told")
		}
	}
	w.eventually(func() bool { return len(w.snapshots()) == 1 && slices.Contains(w.recorded("claw"), "agent.warmed") })
	if r := w.claw("again"); !r.Result.Warm {
		t.Error("the run is cold although there is a snapshot")
	}
	if n := w.boxes.count("snapshot"); n != 1 {
		t.Errorf("%d snapshots were made", n)
	}
	w.empty()
}

// TestWarmFails: a capture that failed is not repeated with each run.
func TestWarmFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(warmAgent())
	w.on("warm", func(v *turn) int { return v.end(&caisson.RunError{Code: caisson.RunAgentError, Message: "too cold"}) })
	wantAnswer(t, w.claw("one"), "you said one")
	w.eventually(func() bool { return slices.Contains(w.recorded("claw"), "agent.cold") })
	tried := func() (n int) {
		for _, task := range w.tasks() {
			if task.Prompt == "warm up" {
				n++
			}
		}
		return n
	}
	for range 3 {
		wantAnswer(t, w.claw("more"), "you said more")
	}
	if n := tried(); n != 1 {
		t.Errorf("it was tried %d times", n)
	}
	if s := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status; !strings.Contains(s.Problem, "too cold") {
		t.Errorf("the status is %+v", s)
	}
	w.on("warm", nil)
	made := got(w.Agents().WarmAgent(w.ctx(), "claw", nil))(t)
	if made.Status.Snapshot == "" || made.Status.Problem != "" {
		t.Errorf("the status is %+v", made.Status)
	}
	if r := w.claw("now"); !r.Result.Warm {
		t.Error("the run is cold")
	}
	w.empty()
}

// TestWarmBroken: a snapshot that twice does not start is replaced, and the run starts cold.
func TestWarmBroken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(warmAgent())
	got(w.Agents().WarmAgent(w.ctx(), "claw", nil))(t)
	old := w.snapshots()
	for _, err := range []error{errInjected, caisson.Errorf(caisson.Unavailable, "the wire starts again")} {
		w.boxes.fail("fork", 1, err)
		if r := w.claw("zero"); !r.Result.Warm || !slices.Equal(w.snapshots(), old) {
			t.Errorf("%v, once: warm: %v, the snapshots were %v and are %v", err, r.Result.Warm, old, w.snapshots())
		}
	}
	w.boxes.fail("fork", 2, errInjected)
	r := w.claw("one")
	wantAnswer(t, r, "you said one")
	if r.Result.Warm || !strings.Contains(types(w.events(r.ID)), "warning") {
		t.Errorf("warm: %v, events %s", r.Result.Warm, types(w.events(r.ID)))
	}
	w.eventually(func() bool { s := w.snapshots(); return len(s) == 1 && s[0] != old[0] })
	if r := w.claw("two"); !r.Result.Warm {
		t.Error("the run is cold")
	}
	// A fork without its memory counts as a failure.
	w.eventually(func() bool { return slices.Contains(w.recorded("claw"), "agent.snapshot.broken") })
	old = w.snapshots()
	for range 2 {
		w.rt.FailNext(fake.OpRestore, caisson.Errorf(caisson.Invalid, "the checkpoint is damaged"))
	}
	r = w.claw("three")
	wantAnswer(t, r, "you said three")
	if r.Result.Warm {
		t.Error("a fork without its memory is used")
	}
	w.eventually(func() bool { s := w.snapshots(); return len(s) == 1 && s[0] != old[0] })
	w.empty()
}

// TestWarmNotToBlame: errors of the host or the request do not remove the snapshot.
func TestWarmNotToBlame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(warmAgent())
	got(w.Agents().WarmAgent(w.ctx(), "claw", nil))(t)
	old := w.snapshots()
	for _, c := range []struct {
		err  error
		code string
	}{
		{caisson.Errorf(caisson.Exhausted, "no memory"), caisson.RunRateLimit},
		{caisson.Errorf(caisson.Denied, "leads inward"), caisson.RunInvalid},
		{caisson.Invalidf("policy", "makes no sense"), caisson.RunInvalid},
	} {
		w.boxes.fail("fork", 1, c.err)
		wantFailed(t, w.claw("x"), c.code, caisson.MessageOf(c.err))
		w.eventually(func() bool { return !w.Live() })
		w.empty()
	}
	// If the snapshot has just been replaced, the new one is used.
	w.boxes.fail("fork", 1, caisson.Errorf(caisson.NotFound, "no snapshot"))
	if r := w.claw("x"); !r.Result.Warm {
		t.Error("the run is cold")
	}
	w.boxes.on(nil)
	for _, c := range []struct {
		limits caisson.AgentLimits
		warm   bool
	}{
		{caisson.AgentLimits{CPUs: 1}, true},
		{caisson.AgentLimits{Memory: 4 << 30}, true},
		{caisson.AgentLimits{Memory: 1 << 30}, false},
		{caisson.AgentLimits{PIDs: 100}, false},
		{caisson.AgentLimits{Disk: 1 << 30}, false},
	} {
		r := w.do(caisson.RunRequest{Agent: "claw", Prompt: "x", Limits: c.limits, Keep: true})
		wantAnswer(t, r, "you said x")
		have := w.box(r.Sandbox).Spec.Resources
		if r.Result.Warm != c.warm || c.limits.CPUs != 0 && have.CPUs != c.limits.CPUs || c.limits.Memory != 0 && have.Memory != c.limits.Memory ||
			c.limits.PIDs != 0 && have.PIDs != c.limits.PIDs || c.limits.Disk != 0 && have.Disk != c.limits.Disk {
			t.Errorf("%+v: warm: %v, the sandbox has %+v", c.limits, r.Result.Warm, have)
		}
	}
	if now := w.snapshots(); !slices.Equal(now, old) {
		t.Errorf("the snapshot was made anew: %v, %v", old, now)
	}
}

// TestWarmAbandoned: a capture without waiting callers is cancelled, and one for which another caller waits continues.
func TestWarmAbandoned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(warmAgent())
	began, goOn := w.hangs("warm")
	warm := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() { done <- second(w.Agents().WarmAgent(ctx, "claw", nil)) }()
		return done
	}
	ctx, cancel := contextWithCancel(w.ctx())
	first := warm(ctx)
	receive(t, began)
	cancel()
	if err := receive(t, first); err == nil {
		t.Error("who has gone is told of success")
	}
	w.empty()
	ctx, cancel = contextWithCancel(w.ctx())
	first = warm(ctx)
	receive(t, began)
	waiting := make(chan bool, 1)
	other := make(chan error, 1)
	go func() {
		other <- second(w.Agents().WarmAgent(w.ctx(), "claw", func(p caisson.Progress) {
			if p.Stage == "wait" {
				waiting <- true
			}
		}))
	}()
	receive(t, waiting)
	w.eventually(func() bool { return w.Waiting("local/claw") == 2 })
	cancel()
	receive(t, first)
	goOn()
	must(t, receive(t, other))
}

// TestAgentsList: one agent that cannot be read does not hide the others.
func TestAgentsList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(warmAgent())
	w.boxes.fail("get template", 1, errInjected)
	list, err := w.Agents().ListAgents(w.ctx())
	if err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	w.boxes.on(nil)
	checks := got(w.Agents().CheckAgent(w.ctx(), "claw"))(t)
	var subjects []string
	for _, c := range checks {
		subjects = append(subjects, c.Subject+"="+c.Status)
	}
	if have := strings.Join(subjects, ", "); have != "file=ok, template=ok, program /bin/agent=failed, warm snapshot=warning" {
		t.Errorf("the check says %s", have)
	}
	w.empty()
	_, err = w.Agents().WarmAgent(w.ctx(), "echo", nil)
	wantKind(t, err, caisson.Invalid)
	_, err = w.Agents().WarmAgent(w.ctx(), "nobody", nil)
	wantKind(t, err, caisson.NotFound)
	built := got(w.Agents().BuildAgent(w.ctx(), "echo", nil))(t)
	if !built.Status.Built {
		t.Errorf("the status is %+v", built.Status)
	}
}

// TestWarmPool: runs without a directory use forks that were made in advance; a new snapshot has the pool of the one that it replaces.
func TestWarmPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.put(warmAgent())
	_, err := w.Agents().SetAgentPool(w.ctx(), "claw", 1)
	wantKind(t, err, caisson.Conflict)
	warm := func() caisson.AgentStatus {
		return got(w.Agents().WarmAgent(w.ctx(), "claw", func(caisson.Progress) {}))(t).Status
	}
	warm()
	if s := got(w.Agents().SetAgentPool(w.ctx(), "claw", 1))(t).Status; s.Pool != 1 {
		t.Errorf("the status is %+v", s)
	}
	pooled := func() (ids []caisson.ID) {
		for _, sb := range w.sandboxes() {
			if sb.Pooled && sb.State == caisson.Running {
				ids = append(ids, sb.ID)
			}
		}
		return ids
	}
	for range 2 {
		w.eventually(func() bool { return len(pooled()) == 1 })
		ready := pooled()
		r := w.claw("hello")
		wantAnswer(t, r, "you said hello")
		claimed := slices.ContainsFunc(r.Result.Phases, func(p caisson.Phase) bool { return p.Name == "claim" })
		if !r.Result.Warm || !claimed || slices.Contains(pooled(), ready[0]) {
			t.Errorf("the run was warm %v, with phases %v; %v is in the pool", r.Result.Warm, r.Result.Phases, ready)
		}
	}
	first := warm().Snapshot
	if s := warm(); s.Pool != 1 || s.Snapshot == first {
		t.Errorf("the new snapshot is %+v", s)
	}
	w.eventually(func() bool { return len(pooled()) == 1 })
	current := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status.Snapshot
	a.Warm.Pool, a.Gateway.Record = 2, true // each run has its own grant, so the snapshot remains
	w.put(*a)
	if s := got(w.Agents().GetAgent(w.ctx(), "claw"))(t).Status; s.Pool != 2 || s.Snapshot != current {
		t.Errorf("the status is %+v after the agent has changed", s)
	}
	w.eventually(func() bool { return len(pooled()) == 2 })
	must(t, w.Agents().RemoveAgent(w.ctx(), "claw"))
	w.empty()
}
