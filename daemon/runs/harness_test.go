package runs_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
	"github.com/caisson-dev/caisson/daemon/volumes"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/leaktest"
	"github.com/caisson-dev/caisson/internal/namemask"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/tree"
	"github.com/caisson-dev/caisson/job/image/imagetest"
	"github.com/caisson-dev/caisson/runtime/fake"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
)

// patience is the timeout after which an operation counts as hung.
const patience = time.Minute

// world is a run core with all its dependencies: the real lifecycle core and store, sandboxes of the fake runtime, and
// agents that are functions.
type world struct {
	*runs.Core
	t       *testing.T
	config  runs.Config
	boxes   *boxes
	life    *sandboxes.Core
	volumes *volumes.Core // nil without volumes
	lconf   sandboxes.Config
	store   *store
	steps   steps
	rt      *fake.Runtime
	models  *models
	calls   *calls
	logs    *safeBuffer
	scope   leaktest.Scope

	mu     sync.Mutex
	voices map[string]func(*turn) int // agents by the first word of the prompt; guarded by mu
	heard  []task.Task                // tasks that agents got; guarded by mu
}

const hour = caisson.Duration(time.Hour)

// plan contains the deviations of a world from the default.
type plan struct {
	limits  runs.Limits
	hosts   sandboxes.Limits
	recipes map[string]runs.Recipe
}

func newWorld(t *testing.T) *world { return plan{}.world(t) }

func (p plan) world(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, scope: leaktest.Mark(), logs: &safeBuffer{}, models: &models{}, calls: &calls{}, voices: map[string]func(*turn) int{}}
	db := sqlitetest.New(t)
	w.store = &store{Store: db, steps: &w.steps}
	programs := guest.Programs()
	programs["/.caisson/init"] = func([]string) fake.Program { return fake.Func(func(context.Context, *fake.Proc) int { return 0 }) }
	programs[task.ProgramPath] = func([]string) fake.Program { return fake.Func(w.drive) }
	programs["/srv/idle"] = func([]string) fake.Program {
		return fake.Func(func(ctx context.Context, _ *fake.Proc) int { <-ctx.Done(); return 0 })
	}
	programs["/bin/console"] = func([]string) fake.Program { return fake.Func(console) }
	w.rt = got(fake.New(fake.Config{Dir: t.TempDir(), Programs: programs}))(t)
	log := slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	dir := t.TempDir()
	hub := events.New(w.store.Events(), log)
	w.lconf = sandboxes.Config{
		Dir: dir, Store: w.store, Events: hub, Runtime: sandboxes.RuntimeOf(hostRuntime{w.rt}), Images: imagetest.New(t.TempDir()),
		Network: sandboxes.NetworkConfig{Gateway: gateway{}, Traffic: gateway{}}, Host: sandboxes.HostConfig{Node: "here"}, Programs: caisson.Programs{Current: "b1"}, Log: log, Limits: p.hosts,
	}
	root, err := os.OpenRoot(dir)
	must(t, err)
	if p.limits.Grace == 0 {
		p.limits.Grace = 200 * time.Millisecond
	}
	w.config = runs.Config{
		Dir: root, Store: w.store, Events: hub, Limits: p.limits, Programs: caisson.Programs{Current: "b1"}, Version: "test", Log: log,
		Work: runs.WorkConfig{Masker: masker{}}, Ledger: runs.LedgerConfig{Calls: w.calls.list, UnderWay: w.calls.underWay},
		Agents: runs.AgentConfig{Models: w.models, Recipes: p.recipes, Catalog: agent.New(agent.Config{
			Table: db.Agents(), Log: log,
			EnsureAccount: func(ctx context.Context, account string) error {
				_, err := db.Accounts().Ensure(ctx, account)
				return err
			},
			CheckPolicy: func(context.Context, string, caisson.Policy) error { return nil },
		})},
	}
	w.boot()
	t.Cleanup(func() {
		must(t, w.Close())
		must(t, w.life.Close())
		if w.volumes != nil { // after the life cycle of sandboxes, whose background work detaches volumes
			must(t, w.volumes.Close())
		}
		w.leaked()
		list, err := w.rt.List(context.Background())
		must(t, err)
		for _, x := range list {
			must(t, w.rt.Destroy(context.Background(), x.ID))
		}
		must(t, errors.Join(root.Close(), db.Close()))
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", w.logs)
		}
	})
	w.put(caisson.Agent{ID: "echo"})
	return w
}

// masker hides .env, .ssh and *.pem. It does in this process what worker jobs do in the product.
type masker struct{}

func (masker) Mask(show []string) (*namemask.Mask, error) {
	return namemask.New([]string{".env", ".ssh", "*.pem"}, show)
}

func (m masker) MaskArchive(_ context.Context, show []string, in io.Reader, out *os.File, _ int64) ([]string, int, error) {
	mask, err := m.Mask(show)
	if err != nil {
		return nil, 0, err
	}
	list := mask.Lister()
	err = tree.CopyVisible(out, in, list.Hides)
	return list.Hidden, list.Count, err
}

// boot creates both cores as a daemon does at its start.
func (w *world) boot() {
	w.t.Helper()
	life, err := sandboxes.New(w.lconf)
	must(w.t, err)
	_, err = life.Reconcile(w.t.Context(), func(caisson.ID) (*os.File, error) { return os.Open(os.DevNull) })
	must(w.t, err)
	w.life = life
	w.boxes = &boxes{
		lifecycle: life.Sandboxes(), processes: life.Processes(), files: life.Files(), snapshots: life.Snapshots(), templates: life.Templates(), services: life.Services(), core: life,
		terminals: sandboxes.NewTerminals(life, w.rt), steps: &w.steps,
	}
	w.config.Sandboxes = runs.Sandboxes{w.boxes, w.boxes, w.boxes, w.boxes, w.boxes, w.boxes, w.boxes, w.boxes, w.boxes.Assign}
	w.Core = runs.New(w.config)
	must(w.t, w.Reconcile(w.t.Context()))
}

// restart stops the daemon and starts another one, on the same store and host. The old daemon's work continues until
// then.
func (w *world) restart() {
	w.t.Helper()
	w.down()
	w.up()
}

func (w *world) down() {
	w.t.Helper()
	must(w.t, w.Close())
	must(w.t, w.life.Close())
	w.leaked()
}

func (w *world) up() {
	w.t.Helper()
	w.rt = w.rt.Reopen()
	w.lconf.Runtime = sandboxes.RuntimeOf(hostRuntime{w.rt})
	w.boot()
}

// leaked fails the test if a goroutine of a closed core still exists.
func (w *world) leaked() {
	w.t.Helper()
	w.scope.Check(w.t, func(stack string) bool {
		return strings.Contains(stack, "caisson/daemon/runs.") && !strings.Contains(stack, "_test.")
	})
}

// A turn is an agent's view of a task.
type turn struct {
	*fake.Proc
	task *task.Task
	out  *task.Writer
	ctx  context.Context
}

// handleLine sends a line to the engine.
func (v *turn) handleLine(l task.Line) bool {
	_, err := v.out.Write(l)
	return err == nil
}

func (v *turn) event(e caisson.RunEvent) bool { return v.handleLine(task.Line{RunEvent: e}) }

func (v *turn) text(s string) bool {
	return v.event(caisson.RunEvent{Type: caisson.EventTextDelta, Delta: s})
}

// end sends the regular end of an answer or, with an error, that of a failure.
func (v *turn) end(fault *caisson.RunError) int {
	if fault == nil {
		v.event(caisson.RunEvent{Type: caisson.EventFinal})
	}
	v.handleLine(task.Line{RunEvent: caisson.RunEvent{Type: task.LineEnd, Error: fault}, Exit: &caisson.ExitStatus{}, Agent: "7.0"})
	return 0
}

// mark sends a mark.
func (v *turn) mark(m string) bool {
	return v.handleLine(task.Line{RunEvent: caisson.RunEvent{Type: task.LineMark}, Mark: m})
}

// drive is the driver that executes tasks.
func (w *world) drive(ctx context.Context, p *fake.Proc) int {
	line, err := bufio.NewReader(p.Stdin()).ReadBytes('\n')
	if err != nil {
		return 3
	}
	t, err := task.Decode(bytes.TrimSuffix(line, []byte("\n")))
	if err != nil {
		return 4
	}
	w.mu.Lock()
	w.heard = append(w.heard, *t)
	word, _, _ := strings.Cut(t.Prompt, " ")
	voice := w.voices[word]
	w.mu.Unlock()
	v := &turn{Proc: p, task: t, out: task.NewWriter(p.Stdout()), ctx: ctx}
	if voice == nil {
		v.mark(task.MarkPrompt)
		v.text("you said ")
		v.text(t.Prompt)
		return v.end(nil)
	}
	return voice(v)
}

// on sets the agent for prompts that begin with this word.
func (w *world) on(word string, voice func(*turn) int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.voices[word] = voice
}

// tasks returns the tasks that agents got.
func (w *world) tasks() []task.Task {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]task.Task{}, w.heard...)
}

// hangs makes prompts that begin with word wait until goOn is called, or they are stopped; each is sent to began.
func (w *world) hangs(word string) (began chan *turn, goOn func()) {
	began, on := make(chan *turn, 100), make(chan struct{})
	w.on(word, func(v *turn) int {
		v.text("begun ")
		began <- v
		select {
		case <-on:
			v.text("done")
			return v.end(nil)
		case <-v.ctx.Done():
			return 1
		}
	})
	return began, sync.OnceFunc(func() { close(on) })
}

// sleeps is the service of some agents.
var sleeps = []string{guest.Path, "test", "sleep", "24h"}

// serving counts the services that run in a sandbox.
func (w *world) serving(ctx context.Context, box caisson.ID) (n int) {
	list, err := w.life.Services().ListServices(ctx, string(box))
	for _, s := range list {
		if s.State == caisson.ServiceStarting || s.State == caisson.ServiceReady {
			n++
		}
	}
	if err != nil {
		return -1
	}
	return n
}

// put stores an agent for the account local, with the fields that all agents need.
func (w *world) put(a caisson.Agent) *caisson.Agent {
	w.t.Helper()
	return w.putAs(w.ctx(), a)
}

func (w *world) putAs(ctx context.Context, a caisson.Agent) *caisson.Agent {
	w.t.Helper()
	a.Name, a.Driver, a.Image = a.ID, caisson.DriverExec, "host"
	if len(a.Command) == 0 {
		a.Command = []string{"/bin/agent"}
	}
	if a.Models == nil {
		a.Models = []string{"-"}
	}
	return got(w.Agents().PutAgent(ctx, a))(w.t)
}

// ctx returns the context of a request of a local caller for the account local.
func (w *world) ctx() context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: caisson.LocalAccount, Local: true})
}

// as returns the context of a request with a token of the account.
func (w *world) as(account string) context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: account, Token: "tk-aaaaaaaaaaaaaaaa"})
}

// start starts a run of the account local.
func (w *world) start(req caisson.RunRequest) *caisson.Run {
	w.t.Helper()
	if req.Agent == "" {
		req.Agent = "echo"
	}
	return got(w.Runs().StartRun(w.ctx(), req))(w.t)
}

// do starts a run and waits for its end.
func (w *world) do(req caisson.RunRequest) *caisson.Run {
	w.t.Helper()
	return w.ended(w.start(req).ID)
}

// ended waits for a run's end and returns the run.
func (w *world) ended(id caisson.ID) *caisson.Run {
	w.t.Helper()
	w.events(id)
	return w.stored(id)
}

func (w *world) stored(id caisson.ID) *caisson.Run {
	w.t.Helper()
	return got(w.store.Store.Runs().Get(context.Background(), caisson.AllAccounts(), id))(w.t)
}

// events reads a run's events to their end and checks the invariants of all runs.
func (w *world) events(id caisson.ID) []caisson.RunEvent {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx(), patience)
	defer cancel()
	r := w.stored(id)
	ctx = caisson.WithCaller(ctx, caisson.Caller{Account: r.Account})
	var list []caisson.RunEvent
	for e := range got(w.Runs().WatchRun(ctx, id, 0))(w.t) {
		list = append(list, e)
	}
	if ctx.Err() != nil {
		w.t.Fatalf("run %s has not ended after %v, it is %s; events: %s", id, patience, w.stored(id).State, types(list))
	}
	w.wellFormed(id, list)
	return list
}

// wellFormed checks the invariants of a run's events: sequence numbers without gaps; in each attempt exactly one done
// event, which is the last, and before it either an error or a final text that is the concatenation of all deltas.
func (w *world) wellFormed(id caisson.ID, list []caisson.RunEvent) {
	w.t.Helper()
	attempt, text, outcomes, done := 1, "", 0, false
	for i, e := range list {
		if e.Seq != int64(i)+1 {
			w.t.Errorf("run %s: event %d has number %d", id, i+1, e.Seq)
		}
		if e.Attempt == attempt+1 && done {
			attempt, text, outcomes, done = e.Attempt, "", 0, false
		}
		if e.Attempt != attempt || done {
			w.t.Errorf("run %s: event %s of attempt %d comes within attempt %d, or after its done", id, e.Type, e.Attempt, attempt)
		}
		switch e.Type {
		case caisson.EventTextDelta:
			text += e.Delta
		case caisson.EventFinal:
			outcomes++
			if e.Content != text {
				w.t.Errorf("run %s: the final text is %.200q, all deltas are %.200q", id, e.Content, text)
			}
		case caisson.EventError:
			outcomes++
		case caisson.EventDone:
			done = true
			if outcomes != 1 {
				w.t.Errorf("run %s: attempt %d has %d outcomes", id, attempt, outcomes)
			}
		}
	}
	if r := w.stored(id); !done || r.Attempt != attempt {
		w.t.Errorf("run %s is in attempt %d, its events end in %d, done: %v: %s", id, r.Attempt, attempt, done, types(list))
	}
}

// types returns a short text for events.
func types(list []caisson.RunEvent) string {
	var words []string
	for _, e := range list {
		word := e.Type
		if e.Type == caisson.EventStatus {
			word = e.Phase
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// wantFailed checks that a run failed with a code and a message that contains words.
func wantFailed(t testing.TB, r *caisson.Run, code, words string) {
	t.Helper()
	if r.State != caisson.RunFailed || r.Result == nil || r.Result.Error == nil {
		t.Errorf("the run is %s with %+v, want a failure", r.State, r.Result)
		return
	}
	if e := r.Result.Error; e.Code != code || !strings.Contains(e.Message, words) {
		t.Errorf("the error is %v, want %s with %q", e, code, words)
	}
}

func wantAnswer(t testing.TB, r *caisson.Run, answer string) {
	t.Helper()
	if r.State != caisson.RunSucceeded || r.Result == nil || r.Result.Answer != answer || r.Result.Error != nil {
		t.Errorf("the run is %s with %+v, want the answer %q", r.State, r.Result, answer)
	}
}

// waitState waits until a run is in a state.
func (w *world) waitState(id caisson.ID, want caisson.RunState) *caisson.Run {
	w.t.Helper()
	poll.Until(w.t, patience, func() bool { return w.stored(id).State == want })
	return w.stored(id)
}

// empty waits until nothing remains of runs: no sandboxes but those named, and no budgets.
func (w *world) empty(but ...caisson.ID) {
	w.t.Helper()
	var boxes []*caisson.Sandbox
	var budgets []*caisson.Budget
	w.eventually(func() bool {
		boxes = w.sandboxes()
		budgets = got(w.store.Ledger().ListBudgets(context.Background(), caisson.AllAccounts()))(w.t)
		return len(boxes) == len(but) && len(budgets) == 0
	})
	for i, b := range boxes {
		if b.ID != but[i] {
			w.t.Errorf("sandbox %s is left", b.ID)
		}
	}
}

func (w *world) sandboxes() []*caisson.Sandbox {
	w.t.Helper()
	list, _, err := w.store.Store.Sandboxes().List(context.Background(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	return list
}

func (w *world) box(id caisson.ID) *caisson.Sandbox {
	w.t.Helper()
	return got(w.store.Store.Sandboxes().Get(context.Background(), caisson.AllAccounts(), string(id)))(w.t)
}

func (w *world) eventually(cond func() bool) {
	w.t.Helper()
	poll.Until(w.t, patience, cond)
}

// receive returns the next value, or fails the test.
func receive[T any](t testing.TB, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	return v
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func got[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func wantKind(t testing.TB, err error, kind caisson.Kind) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind {
		t.Errorf("error is %v (%s), want %s", err, caisson.KindOf(err), kind)
	}
}

var errInjected = errors.New("injected")

// safeBuffer is a buffer that is safe for concurrent writes.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func contextWithCancel(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

func limitsOf(concurrent, perAccount int) runs.Limits {
	return runs.Limits{Concurrent: concurrent, PerAccount: perAccount}
}
