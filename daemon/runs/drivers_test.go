package runs_test

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// hostRuntime is the fake runtime on a host without leftovers of sandboxes.
type hostRuntime struct{ *fake.Runtime }

func (hostRuntime) Remains() ([]caisson.ID, error) { return nil, nil }

// models contains the models of the gateway.
type models struct {
	caisson.Models
	mu   sync.Mutex
	list []caisson.GatewayModel // guarded by mu
	err  error                  // guarded by mu
}

func (m *models) ListModels(context.Context) ([]caisson.GatewayModel, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list), m.err
}

func (m *models) set(err error, aliases ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list, m.err = nil, err
	for _, a := range aliases {
		m.list = append(m.list, caisson.GatewayModel{Model: caisson.Model{Alias: a, Provider: "p", Upstream: a, Context: 1000, Output: 100}})
	}
}

func (m *models) add(more caisson.GatewayModel) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = append(m.list, more)
}

// calls contains the calls in the ledger.
type calls struct {
	asked atomic.Int32 // number of queries
	mu    sync.Mutex
	rows  []caisson.Call // guarded by mu
	err   error          // guarded by mu
	under []caisson.Call // calls in progress; guarded by mu
}

// begin begins a call of a run, which ends when settle is called.
func (c *calls) begin(run caisson.ID, most, cost caisson.USD) (settle func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.under = append(c.under, caisson.Call{Guest: caisson.Guest{Run: string(run)}, Cost: most})
	return sync.OnceFunc(func() {
		c.mu.Lock()
		c.under = nil
		c.mu.Unlock()
		c.put(run, 1, caisson.Call{Error: "aborted", Cost: cost, Estimated: true})
	})
}

func (c *calls) underWay(_ context.Context, account, run string) (n int64, most caisson.USD, err error) {
	c.asked.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, row := range c.under {
		if row.Run == run && account == "local" {
			n++
			most += row.Cost
		}
	}
	return n, most, nil
}

func (c *calls) list(_ context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error) {
	c.asked.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, false, c.err
	}
	var page []caisson.Call
	for _, row := range c.rows {
		if row.Guest.Run != q.Run || row.ID <= after {
			continue
		}
		if len(page) == limit {
			return page, true, nil
		}
		page = append(page, row)
	}
	return page, false, nil
}

// add charges a run for a call.
func (c *calls) add(run caisson.ID, attempt int, cost caisson.USD) {
	c.put(run, attempt, caisson.Call{Status: 200, Cost: cost, Tokens: caisson.TokenCount{Input: 10, Output: 5}})
}

// put adds a call of a run.
func (c *calls) put(run caisson.ID, attempt int, row caisson.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	row.ID, row.Guest = caisson.NewID("cl"), caisson.Guest{Run: string(run), Attempt: attempt}
	c.rows = append(c.rows, row)
}

// The services of the lifecycle core, under names that do not hide one another's methods.
type (
	lifecycle interface{ caisson.Sandboxes }
	processes interface{ caisson.Processes }
	files     interface{ caisson.Files }
	snapshots interface{ runs.Snapshots }
	templates interface{ caisson.Templates }
	terminals interface{ caisson.Terminals }
	services  interface{ runs.Services }
)

// steps contains all calls to the lifecycle core, and to the store about runs, sessions and budgets, in their order.
type steps struct {
	before atomic.Pointer[func(ctx context.Context, op string) error]
}

func (s *steps) take(ctx context.Context, op string) error {
	if f := s.before.Load(); f != nil {
		return (*f)(ctx, op)
	}
	return nil
}

// on sets f to be called before each step; its error is the result of the step. f may be nil.
func (s *steps) on(f func(ctx context.Context, op string) error) {
	if f == nil {
		s.before.Store(nil)
		return
	}
	s.before.Store(&f)
}

// boxes is the lifecycle core with a hook for each call, which can make it fail.
type boxes struct {
	lifecycle
	processes
	files
	snapshots
	templates
	terminals
	services
	core *sandboxes.Core

	steps *steps

	mu     sync.Mutex
	before func(ctx context.Context, op string) error // guarded by mu
	ops    map[string]int                             // number of calls; guarded by mu
}

// on sets f to be called before each operation; its error is the result. f may be nil.
func (b *boxes) on(f func(ctx context.Context, op string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before = f
}

// fail makes the next n operations of that name fail.
func (b *boxes) fail(op string, n int, err error) {
	var mu sync.Mutex
	b.on(func(_ context.Context, did string) error {
		mu.Lock()
		defer mu.Unlock()
		if did != op || n == 0 {
			return nil
		}
		n--
		return err
	})
}

func (b *boxes) count(op string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ops[op]
}

func (b *boxes) note(ctx context.Context, op string) error {
	if err := b.steps.take(ctx, op); err != nil {
		return err
	}
	b.mu.Lock()
	if b.ops == nil {
		b.ops = map[string]int{}
	}
	b.ops[op]++
	f := b.before
	b.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx, op)
}

func (b *boxes) Create(ctx context.Context, req caisson.CreateRequest) (*caisson.Sandbox, error) {
	if err := b.note(ctx, "create"); err != nil {
		return nil, err
	}
	return b.lifecycle.Create(ctx, req)
}

func (b *boxes) Remove(ctx context.Context, ref string) error {
	if err := b.note(ctx, "remove"); err != nil {
		return err
	}
	return b.lifecycle.Remove(ctx, ref)
}

func (b *boxes) Suspend(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	if err := b.note(ctx, "suspend"); err != nil {
		return nil, err
	}
	return b.lifecycle.Suspend(ctx, ref)
}

func (b *boxes) Wake(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	if err := b.note(ctx, "wake"); err != nil {
		return nil, err
	}
	return b.lifecycle.Wake(ctx, ref)
}

func (b *boxes) Pause(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	if err := b.note(ctx, "pause"); err != nil {
		return nil, err
	}
	return b.lifecycle.Pause(ctx, ref)
}

func (b *boxes) Get(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	if err := b.note(ctx, "get"); err != nil {
		return nil, err
	}
	return b.lifecycle.Get(ctx, ref)
}

func (b *boxes) Start(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	if err := b.note(ctx, "start"); err != nil {
		return nil, err
	}
	return b.lifecycle.Start(ctx, ref)
}

func (b *boxes) Stop(ctx context.Context, ref string, grace time.Duration) (*caisson.Sandbox, error) {
	if err := b.note(ctx, "stop"); err != nil {
		return nil, err
	}
	return b.lifecycle.Stop(ctx, ref, grace)
}

func (b *boxes) Resume(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	if err := b.note(ctx, "resume"); err != nil {
		return nil, err
	}
	return b.lifecycle.Resume(ctx, ref)
}

func (b *boxes) ListProcesses(ctx context.Context, ref string) ([]caisson.ProcessInfo, error) {
	if err := b.note(ctx, "processes"); err != nil {
		return nil, err
	}
	return b.processes.ListProcesses(ctx, ref)
}

func (b *boxes) MakeDir(ctx context.Context, ref, dir string, parents bool) error {
	if err := b.note(ctx, "make dir"); err != nil {
		return err
	}
	return b.files.MakeDir(ctx, ref, dir, parents)
}

func (b *boxes) ListSnapshots(ctx context.Context, f caisson.Filter) ([]*caisson.Snapshot, bool, error) {
	if err := b.note(ctx, "list snapshots"); err != nil {
		return nil, false, err
	}
	return b.snapshots.ListSnapshots(ctx, f)
}

func (b *boxes) RemoveSnapshot(ctx context.Context, ref string) error {
	if err := b.note(ctx, "remove snapshot"); err != nil {
		return err
	}
	return b.snapshots.RemoveSnapshot(ctx, ref)
}

func (b *boxes) Exec(ctx context.Context, ref string, req caisson.ExecRequest) (caisson.Process, error) {
	if err := b.note(ctx, "exec"); err != nil {
		return nil, err
	}
	return b.processes.Exec(ctx, ref, req)
}

func (b *boxes) Kill(ctx context.Context, ref string, pid, signal int) error {
	if err := b.note(ctx, "kill"); err != nil {
		return err
	}
	return b.processes.Kill(ctx, ref, pid, signal)
}

func (b *boxes) WriteTree(ctx context.Context, ref, dir string, r io.Reader) error {
	if err := b.note(ctx, "write tree"); err != nil {
		return err
	}
	return b.files.WriteTree(ctx, ref, dir, r)
}

func (b *boxes) Snapshot(ctx context.Context, ref string, req caisson.SnapshotRequest) (*caisson.Snapshot, error) {
	if err := b.note(ctx, "snapshot"); err != nil {
		return nil, err
	}
	return b.snapshots.Snapshot(ctx, ref, req)
}

func (b *boxes) Fork(ctx context.Context, ref string, req caisson.ForkRequest) ([]*caisson.Sandbox, error) {
	if err := b.note(ctx, "fork"); err != nil {
		return nil, err
	}
	return b.snapshots.Fork(ctx, ref, req)
}

func (b *boxes) SetPool(ctx context.Context, ref string, size int) error {
	if err := b.note(ctx, "set pool"); err != nil {
		return err
	}
	return b.snapshots.SetPool(ctx, ref, size)
}

func (b *boxes) CreateTerminal(ctx context.Context, ref string, req caisson.TerminalRequest) (*caisson.Terminal, error) {
	if err := b.note(ctx, "create terminal"); err != nil {
		return nil, err
	}
	return b.terminals.CreateTerminal(ctx, ref, req)
}

func (b *boxes) AttachTerminal(ctx context.Context, ref string, id caisson.ID, req caisson.AttachRequest) (caisson.Process, error) {
	if err := b.note(ctx, "attach terminal"); err != nil {
		return nil, err
	}
	return b.terminals.AttachTerminal(ctx, ref, id, req)
}

func (b *boxes) GetTemplate(ctx context.Context, name string) (*caisson.Template, error) {
	if err := b.note(ctx, "get template"); err != nil {
		return nil, err
	}
	return b.templates.GetTemplate(ctx, name)
}

func (b *boxes) ServeAgent(ctx context.Context, ref string, s caisson.Service) error {
	if err := b.note(ctx, "serve agent"); err != nil {
		return err
	}
	return b.services.ServeAgent(ctx, ref, s)
}

func (b *boxes) RemoveService(ctx context.Context, ref, id string) error {
	if err := b.note(ctx, "remove service"); err != nil {
		return err
	}
	return b.services.RemoveService(ctx, ref, id)
}

func (b *boxes) ListServices(ctx context.Context, ref string) ([]caisson.ServiceStatus, error) {
	if err := b.note(ctx, "list services"); err != nil {
		return nil, err
	}
	return b.services.ListServices(ctx, ref)
}

func (b *boxes) SetPolicy(ctx context.Context, ref string, p caisson.Policy) (*caisson.Policy, error) {
	if err := b.note(ctx, "set policy"); err != nil {
		return nil, err
	}
	return b.core.Policies().SetPolicy(ctx, ref, p)
}

func (b *boxes) Assign(ctx context.Context, id caisson.ID, a *caisson.Assignment) (*caisson.Sandbox, error) {
	if err := b.note(ctx, "assign"); err != nil {
		return nil, err
	}
	return b.core.Assign(ctx, id, a)
}

// store is the real store, in which operations on runs can fail.
type store struct {
	caisson.Store
	steps *steps

	mu     sync.Mutex
	before func(op string, r *caisson.Run) error // guarded by mu
}

// on sets f to be called before each operation on runs; its error is the result. f may be nil.
func (s *store) on(f func(op string, r *caisson.Run) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

func (s *store) note(op string, r *caisson.Run) error {
	s.mu.Lock()
	f := s.before
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(op, r)
}

func (s *store) Runs() caisson.RunStore { return runStore{s.Store.Runs(), s} }

type runStore struct {
	caisson.RunStore
	s *store
}

func (f runStore) Insert(ctx context.Context, r *caisson.Run, live int) error {
	if err := f.s.steps.take(ctx, "store: insert run"); err != nil {
		return err
	}
	if err := f.s.note("insert", r); err != nil {
		return err
	}
	return f.RunStore.Insert(ctx, r, live)
}

func (f runStore) Get(ctx context.Context, in caisson.Scope, id caisson.ID) (*caisson.Run, error) {
	if err := f.s.steps.take(ctx, "store: get run"); err != nil {
		return nil, err
	}
	return f.RunStore.Get(ctx, in, id)
}

func (f runStore) Update(ctx context.Context, in caisson.Scope, id caisson.ID, change func(*caisson.Run) error) (*caisson.Run, error) {
	if err := f.s.steps.take(ctx, "store: update run"); err != nil {
		return nil, err
	}
	return f.RunStore.Update(ctx, in, id, func(r *caisson.Run) error {
		if err := change(r); err != nil {
			return err
		}
		return f.s.note("update", r)
	})
}

func (f runStore) Append(ctx context.Context, run caisson.ID, events []caisson.RunEvent) error {
	if err := f.s.steps.take(ctx, "store: append events"); err != nil {
		return err
	}
	if err := f.s.note("append", &caisson.Run{ID: run}); err != nil {
		return err
	}
	return f.RunStore.Append(ctx, run, events)
}

func (f runStore) List(ctx context.Context, in caisson.Scope, flt caisson.RunFilter) ([]*caisson.Run, bool, error) {
	if err := f.s.steps.take(ctx, "store: list runs"); err != nil {
		return nil, false, err
	}
	return f.RunStore.List(ctx, in, flt)
}

func (f runStore) LastEvent(ctx context.Context, run caisson.ID) (int64, error) {
	if err := f.s.steps.take(ctx, "store: last event"); err != nil {
		return 0, err
	}
	if err := f.s.note("last event", &caisson.Run{ID: run}); err != nil {
		return 0, err
	}
	return f.RunStore.LastEvent(ctx, run)
}

func (s *store) Sessions() caisson.Table[caisson.Session] {
	return sessionStore{s.Store.Sessions(), s.steps}
}

type sessionStore struct {
	caisson.Table[caisson.Session]
	steps *steps
}

func (f sessionStore) Insert(ctx context.Context, s *caisson.Session) error {
	if err := f.steps.take(ctx, "store: insert session"); err != nil {
		return err
	}
	return f.Table.Insert(ctx, s)
}

func (f sessionStore) Get(ctx context.Context, in caisson.Scope, ref string) (*caisson.Session, error) {
	if err := f.steps.take(ctx, "store: get session"); err != nil {
		return nil, err
	}
	return f.Table.Get(ctx, in, ref)
}

func (f sessionStore) Update(ctx context.Context, in caisson.Scope, ref string, change func(*caisson.Session) error) (*caisson.Session, error) {
	if err := f.steps.take(ctx, "store: update session"); err != nil {
		return nil, err
	}
	return f.Table.Update(ctx, in, ref, change)
}

func (s *store) Ledger() caisson.LedgerStore { return ledgerStore{s.Store.Ledger(), s.steps} }

type ledgerStore struct {
	caisson.LedgerStore
	steps *steps
}

func (f ledgerStore) PutBudget(ctx context.Context, in caisson.Scope, b *caisson.Budget) (*caisson.Budget, error) {
	if err := f.steps.take(ctx, "store: put budget"); err != nil {
		return nil, err
	}
	return f.LedgerStore.PutBudget(ctx, in, b)
}

func (f ledgerStore) DeleteBudget(ctx context.Context, in caisson.Scope, key string) error {
	if err := f.steps.take(ctx, "store: delete budget"); err != nil {
		return err
	}
	return f.LedgerStore.DeleteBudget(ctx, in, key)
}

// gateway accepts every model.
type gateway struct{}

func (gateway) Check(context.Context, *caisson.ModelGrant) error { return nil }

func (gateway) Network(context.Context, caisson.ID) (*caisson.NetworkStats, error) {
	return &caisson.NetworkStats{}, nil
}

func (gateway) Recent(context.Context, caisson.ID) ([]caisson.Decision, error) { return nil, nil }
