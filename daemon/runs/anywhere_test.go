package runs_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/internal/steptest"
)

// A way is a kind of run, which is tested from its start to its cleanup.
type way struct {
	name   string
	req    caisson.RunRequest
	sleeps caisson.State // state of the session's sandbox before the run; "" for a new session
}

// ways are all kinds of runs.
var ways = []way{
	{name: "alone", req: caisson.RunRequest{Agent: "echo", Prompt: "look"}},
	{name: "with a service", req: caisson.RunRequest{Agent: "served", Prompt: "look"}},
	{name: "in a new session", req: caisson.RunRequest{Agent: "served", Prompt: "look", Session: "s"}},
	{name: "in a suspended session", req: caisson.RunRequest{Agent: "served", Prompt: "look", Session: "s"}, sleeps: caisson.Suspended},
	{name: "in a paused session", req: caisson.RunRequest{Agent: "served", Prompt: "look", Session: "s"}, sleeps: caisson.Paused},
	{name: "in a stopped session", req: caisson.RunRequest{Agent: "served", Prompt: "look", Session: "s"}, sleeps: caisson.Stopped},
	{name: "forked from a warm snapshot", req: caisson.RunRequest{Agent: "claw", Prompt: "look"}},
	{name: "with another within it", req: caisson.RunRequest{Agent: "boss", Prompt: "lead"}},
	{name: "in a volume", req: inVolume("look", "data")},
	{name: "in a session with a volume", req: caisson.RunRequest{
		Agent: "served", Prompt: "look", Session: "s", Kind: caisson.WorkspaceVolume, Source: "data",
	}, sleeps: caisson.Suspended},
	{name: "on a repository", req: caisson.RunRequest{Agent: "echo", Prompt: "look", Repo: &caisson.RepoRequest{Name: "r"}}},
	{name: "at a terminal", req: caisson.RunRequest{Agent: "console", Interactive: true}},
}

// relay grants every sandbox access to every repository, and returns a delivery for each run.
type relay struct {
	steps *steps

	mu         sync.Mutex
	in         map[caisson.ID]bool              // sandboxes with access; guarded by mu
	deliveries map[caisson.ID]*caisson.Delivery // guarded by mu
}

func (l *relay) CheckRepo(context.Context, string, caisson.RepoRequest) error { return nil }

func (l *relay) Grant(ctx context.Context, a caisson.RepoAccess) (*caisson.RepoGrant, error) {
	if err := l.steps.take(ctx, "relay: grant"); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in[a.Sandbox] = true
	return &caisson.RepoGrant{}, ctx.Err()
}

func (l *relay) Deliver(ctx context.Context, h caisson.DeliveryRequest) (*caisson.Delivery, error) {
	if err := l.steps.take(ctx, "relay: deliver"); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.in[h.Sandbox] {
		return nil, nil
	}
	d := &caisson.Delivery{ID: caisson.NewID(caisson.DeliveryPrefix), Repo: h.Repo.Name, State: caisson.DeliveryDelivered}
	l.deliveries[d.ID] = d
	return d, nil
}

func (l *relay) Await(ctx context.Context, id caisson.ID, _ time.Duration) (*caisson.Delivery, error) {
	if err := l.steps.take(ctx, "relay: await"); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deliveries[id], nil
}

func (l *relay) SandboxRemoved(ctx context.Context, box caisson.ID) error {
	if err := l.steps.take(ctx, "relay: leave"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.in, box)
	return nil
}

// A trail is a world that repeats runs of one way, and injects an event before another step each time.
type trail struct {
	*world
	way
	relay  *relay
	record func(steps []string)
	box    caisson.ID // the session's; "" if it has none yet
}

func newTrail(t *testing.T, v way) *trail {
	t.Helper()
	w, _ := plan{limits: runs.Limits{SessionIdle: hour, SessionFiles: 5 * hour}}.withVolumes(t)
	w.put(caisson.Agent{ID: "served", Service: sleeps})
	w.put(caisson.Agent{ID: "boss", SubAgents: []string{"echo"}})
	w.put(warmAgent())
	w.put(caisson.Agent{ID: "console", Interactive: []string{"/bin/console", "briefly"}})
	x := &trail{world: w, way: v, relay: &relay{steps: &w.steps, in: map[caisson.ID]bool{}, deliveries: map[caisson.ID]*caisson.Delivery{}}}
	w.down()
	w.config.Work.Relay = x.relay
	w.up()
	w.on("look", func(v *turn) int {
		r, err := w.store.Store.Runs().Get(v.ctx, caisson.AllAccounts(), caisson.ID(env(v.task.Env, "CAISSON_RUN")))
		if err != nil {
			return 1
		}
		ctx := caisson.WithCaller(v.ctx, caisson.Caller{Account: r.Account, Local: true})
		v.text(fmt.Sprintf("%d services", w.serving(ctx, r.Sandbox)))
		return v.end(nil)
	})
	w.on("lead", func(v *turn) int {
		r, err := w.store.Store.Runs().Get(v.ctx, caisson.AllAccounts(), caisson.ID(env(v.task.Env, "CAISSON_RUN")))
		if err != nil {
			return 1
		}
		ctx := caisson.WithGuest(v.ctx, caisson.Guest{Account: r.Account, Sandbox: r.Sandbox, Run: string(r.ID), Attempt: r.Attempt})
		o, err := w.Guests().StartGuestRun(ctx, caisson.RunRequest{Agent: "echo", Prompt: "x"})
		for err == nil && v.ctx.Err() == nil && !o.State.Ended() {
			time.Sleep(time.Millisecond)
			o, err = w.store.Store.Runs().Get(v.ctx, caisson.AllAccounts(), o.ID)
		}
		v.text("led")
		return v.end(nil)
	})
	return x
}

// answer returns the answer of runs of this way.
func (x *trail) answer() string {
	switch x.req.Agent {
	case "boss":
		return "led"
	case "console":
		return ""
	case "echo":
		return "0 services"
	}
	return "1 services"
}

// begin creates the initial state for a run of this way.
func (x *trail) begin() {
	x.t.Helper()
	if x.req.Agent == "claw" && len(x.snapshots()) == 0 {
		got(x.Agents().WarmAgent(x.ctx(), "claw", nil))(x.t)
	}
	if x.sleeps == "" {
		return
	}
	if x.box == "" {
		wantAnswer(x.t, x.do(x.req), x.answer())
		x.box = x.session("s").Sandbox
	}
	idle := map[caisson.State]time.Duration{caisson.Suspended: 0, caisson.Paused: 2 * time.Hour, caisson.Stopped: 6 * time.Hour}[x.sleeps]
	must(x.t, x.Settle(x.ctx(), x.session("s").UsedAt.Add(idle)))
	if have := x.world.box(x.box).State; have != x.sleeps {
		x.t.Fatalf("the session's sandbox is %s", have)
	}
}

// take executes one run; at is called before the step of that number, if there is one. take returns when no work is in
// progress any more.
func (x *trail) take(step int, at func(ctx context.Context, op string, id <-chan caisson.ID) error) (r *caisson.Run, op string) {
	x.t.Helper()
	var steps steptest.Injector
	id := make(chan caisson.ID, 1)
	steps.Arm(step, "is announced")
	x.steps.on(func(ctx context.Context, op string) error {
		if steps.TakeStep(op) == "" {
			return nil
		}
		return at(ctx, op, id)
	})
	r, err := x.Runs().StartRun(x.ctx(), x.req)
	if err == nil {
		id <- r.ID
	}
	close(id)
	x.eventually(x.Idle)
	x.steps.on(nil)
	op, ops := steps.Disarm()
	if op == "" {
		x.record(ops)
	}
	if err != nil && op == "" {
		x.t.Fatal(err)
	}
	return r, op
}

// check checks what must be true after every run. lost means that its session may have lost its sandbox.
func (x *trail) check(r *caisson.Run, lost bool) *caisson.Run {
	x.t.Helper()
	unended := []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}
	list, _, err := x.store.Store.Runs().List(x.ctx(), caisson.AllAccounts(), caisson.RunFilter{States: unended, Limit: 100})
	must(x.t, err)
	for _, o := range list {
		x.t.Fatalf("run %s is left %s", o.ID, o.State)
	}
	var but []caisson.ID
	if r != nil {
		r = x.ended(r.ID)
		if r.State == caisson.RunSucceeded {
			wantAnswer(x.t, r, x.answer())
		}
		if d := r.Result.Delivery; d != nil && d.State == caisson.DeliveryFailed {
			but = append(but, r.Sandbox) // it contains changes that exist nowhere else
		}
	}
	if x.req.Session != "" {
		next := x.do(x.req)
		wantAnswer(x.t, next, x.answer())
		s := x.session("s")
		if s.Run != "" || s.Sandbox != next.Sandbox || x.req.Kind == caisson.WorkspaceVolume && s.Volume == "" {
			x.t.Errorf("the session is %+v", s)
		}
		if x.box != "" && s.Sandbox != x.box && !lost {
			x.t.Errorf("the session has lost its sandbox %s", x.box)
		}
		if x.sleeps == "" {
			must(x.t, x.Runs().RemoveSession(x.ctx(), s.ID))
		} else {
			x.box = s.Sandbox
			but = append(but, s.Sandbox)
		}
	}
	x.empty(but...)
	for _, id := range but {
		if sb := x.world.box(id); sb.Assigned != nil {
			x.t.Errorf("sandbox %s still serves %s", id, sb.Assigned.Run)
		}
		if id != x.box {
			must(x.t, x.life.Sandboxes().Remove(x.ctx(), string(id)))
		}
	}
	return r
}

// everywhere calls f with a sample of the steps of each way, see [steptest.Every], until f reports that there is no
// such step.
func everywhere(t *testing.T, f func(x *trail, step int) bool) {
	t.Parallel()
	var record steptest.Record
	t.Run("way", func(t *testing.T) {
		for _, v := range ways {
			t.Run(v.name, func(t *testing.T) {
				t.Parallel()
				x := newTrail(t, v)
				x.record = record.Recorder(v.name)
				steps := steptest.Every(10, t.Name())
				for at := steps.From(1); !t.Failed() && f(x, at); {
					at = steps.From(at + 1)
				}
			})
		}
	})
	record.Check(t)
}

// TestCancelAnywhere: a run that is cancelled before any of its steps ends once, as recorded, and nothing remains.
func TestCancelAnywhere(t *testing.T) {
	everywhere(t, func(x *trail, step int) bool {
		x.begin()
		asked := make(chan error, 1)
		r, op := x.take(step, func(ctx context.Context, op string, id <-chan caisson.ID) error {
			go func() {
				if id := <-id; id != "" {
					asked <- second(x.Runs().CancelRun(x.ctx(), id))
					return
				}
				asked <- nil
			}()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond): // a step that ignores the cancellation, or does not belong to the run
			}
			return nil
		})
		if op != "" {
			if err := receive(x.t, asked); err != nil {
				x.t.Error(err)
			}
		}
		r = x.check(r, false)
		if r.State == caisson.RunFailed {
			wantFailed(x.t, r, caisson.RunAborted, "cancelled")
		}
		if x.t.Failed() {
			x.t.Errorf("cancelled before step %d, %s; events %s", step, op, types(x.events(r.ID)))
		}
		return op != ""
	})
}

// TestFailAnywhere: a run in which any of its steps fails once ends once, as recorded, and nothing remains. Over all
// ways, steps fail with every kind of error.
func TestFailAnywhere(t *testing.T) {
	kinds := []caisson.Kind{caisson.Internal, caisson.Unavailable, caisson.Conflict, caisson.NotFound, caisson.Exhausted}
	everywhere(t, func(x *trail, step int) (reached bool) {
		sample := steptest.Every(len(kinds), fmt.Sprint(x.t.Name(), step))
		for i, kind := range kinds {
			if !sample.Has(i) {
				continue
			}
			x.begin()
			r, op := x.take(step, func(_ context.Context, op string, _ <-chan caisson.ID) error {
				kind := kind
				if kind == caisson.NotFound && op == "remove" || strings.HasPrefix(op, "store: ") && (kind == caisson.NotFound || kind == caisson.Conflict) {
					kind = caisson.Internal // it would be wrong
				}
				return caisson.Wrap(errInjected, kind, "injected: %s", op)
			})
			x.check(r, kind == caisson.NotFound)
			if x.t.Failed() {
				x.t.Errorf("step %d, %s, failed as %s", step, op, kind)
				return false
			}
			reached = reached || op != ""
		}
		return reached
	})
}

// TestCloseAnywhere: if the daemon stops before any step of a run, the next one ends or continues the run, and nothing
// remains.
func TestCloseAnywhere(t *testing.T) {
	everywhere(t, func(x *trail, step int) bool {
		x.begin()
		closed := make(chan error, 1)
		r, op := x.take(step, func(ctx context.Context, op string, id <-chan caisson.ID) error {
			go func() { closed <- x.Close() }()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			return nil
		})
		if op != "" {
			must(x.t, receive(x.t, closed))
		}
		if r == nil {
			list, _, err := x.store.Store.Runs().List(x.ctx(), caisson.AllAccounts(), caisson.RunFilter{Limit: 1})
			must(x.t, err)
			if len(list) > 0 && !list[0].State.Ended() {
				r = list[0]
			}
		}
		x.restart()
		x.eventually(x.Idle)
		if r = x.check(r, false); r != nil && r.State == caisson.RunFailed {
			wantFailed(x.t, r, caisson.RunInternal, "daemon ended")
		}
		if x.t.Failed() {
			x.t.Errorf("closed before step %d, %s", step, op)
		}
		return op != ""
	})
}
