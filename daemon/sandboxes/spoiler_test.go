package sandboxes_test

import (
	"context"
	"os"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/steptest"
	"github.com/caisson-dev/caisson/job/image/imagetest"
)

// spoiler disturbs a step: a call of a core to its store, runtime, wires, images, workspaces or volumes with a marked context.
type spoiler struct{ steptest.Injector }

// newSpoiler returns a spoiler of which only steps in other processes lose their answer.
func newSpoiler() *spoiler {
	s := &spoiler{}
	s.Skips = func(op string, e steptest.Effect) bool {
		return e == steptest.Loses && !strings.HasPrefix(op, "runtime ") && !strings.HasPrefix(op, "wire ")
	}
	return s
}

type markKey struct{}

// arm disturbs a step from now on, and returns the marked context.
func (s *spoiler) arm(ctx context.Context, at int, how steptest.Effect) context.Context {
	s.Arm(at, how)
	return s.Context(context.WithValue(ctx, markKey{}, s))
}

// spoilt returns what happens at a step.
func (s *spoiler) spoilt(ctx context.Context, op string) steptest.Effect {
	if ctx.Value(markKey{}) == nil {
		return ""
	}
	return s.TakeStep(op)
}

func (s *spoiler) take(ctx context.Context, op string, do func() error) error {
	return failed(taking(ctx, s, op, func() (struct{}, error) { return struct{}{}, do() }))
}

// taking is like take, for a step with a result.
func taking[T any](ctx context.Context, s *spoiler, op string, do func() (T, error)) (T, error) {
	return steptest.Execute(s.spoilt(ctx, op), op, do)
}

type stepStore struct {
	caisson.Store
	s *spoiler
}

func (f stepStore) Sandboxes() caisson.Table[caisson.Sandbox] {
	return stepTable[caisson.Sandbox]{f.Store.Sandboxes(), f.s, "sandbox"}
}

func (f stepStore) Snapshots() caisson.Table[caisson.Snapshot] {
	return stepTable[caisson.Snapshot]{f.Store.Snapshots(), f.s, "snapshot"}
}

func (f stepStore) Templates() caisson.Table[caisson.Template] {
	return stepTable[caisson.Template]{f.Store.Templates(), f.s, "template"}
}

func (f stepStore) Images() caisson.Table[caisson.Image] {
	return stepTable[caisson.Image]{f.Store.Images(), f.s, "image"}
}

func (f stepStore) Volumes() caisson.Table[caisson.Volume] {
	return stepTable[caisson.Volume]{f.Store.Volumes(), f.s, "volume"}
}

func (f stepStore) Accounts() caisson.AccountStore { return stepAccounts{f.Store.Accounts(), f.s} }
func (f stepStore) Events() caisson.EventStore     { return stepEvents{f.Store.Events(), f.s} }
func (f stepStore) Ledger() caisson.LedgerStore    { return stepLedger{f.Store.Ledger(), f.s} }

type stepTable[T any] struct {
	caisson.Table[T]
	s    *spoiler
	kind string
}

func (f stepTable[T]) Insert(ctx context.Context, obj *T) error {
	return f.s.take(ctx, "insert "+f.kind, func() error { return f.Table.Insert(ctx, obj) })
}

func (f stepTable[T]) Get(ctx context.Context, in caisson.Scope, ref string) (*T, error) {
	return taking(ctx, f.s, "get "+f.kind, func() (*T, error) { return f.Table.Get(ctx, in, ref) })
}

func (f stepTable[T]) List(ctx context.Context, in caisson.Scope, by caisson.Filter) (page []*T, more bool, err error) {
	err = f.s.take(ctx, "list "+f.kind, func() error {
		page, more, err = f.Table.List(ctx, in, by)
		return err
	})
	return page, more, err
}

func (f stepTable[T]) Update(ctx context.Context, in caisson.Scope, ref string, change func(*T) error) (*T, error) {
	return taking(ctx, f.s, "update "+f.kind, func() (*T, error) { return f.Table.Update(ctx, in, ref, change) })
}

func (f stepTable[T]) Delete(ctx context.Context, in caisson.Scope, ref string) error {
	return f.s.take(ctx, "delete "+f.kind, func() error { return f.Table.Delete(ctx, in, ref) })
}

type stepAccounts struct {
	caisson.AccountStore
	s *spoiler
}

func (f stepAccounts) Ensure(ctx context.Context, name string) (*caisson.Account, error) {
	return taking(ctx, f.s, "ensure account", func() (*caisson.Account, error) { return f.AccountStore.Ensure(ctx, name) })
}

func (f stepAccounts) Get(ctx context.Context, name string) (*caisson.Account, error) {
	return taking(ctx, f.s, "get account", func() (*caisson.Account, error) { return f.AccountStore.Get(ctx, name) })
}

type stepEvents struct {
	caisson.EventStore
	s *spoiler
}

func (f stepEvents) AppendAll(ctx context.Context, list []*caisson.Event) error {
	return f.s.take(ctx, "append event "+list[0].Type, func() error { return f.EventStore.AppendAll(ctx, list) })
}

type stepLedger struct {
	caisson.LedgerStore
	s *spoiler
}

func (f stepLedger) PutBudget(ctx context.Context, in caisson.Scope, b *caisson.Budget) (*caisson.Budget, error) {
	return taking(ctx, f.s, "put budget", func() (*caisson.Budget, error) { return f.LedgerStore.PutBudget(ctx, in, b) })
}

func (f stepLedger) DeleteBudget(ctx context.Context, in caisson.Scope, key string) error {
	return f.s.take(ctx, "delete budget", func() error { return f.LedgerStore.DeleteBudget(ctx, in, key) })
}

type stepRuntime struct {
	*testRuntime
	s *spoiler
}

func (r stepRuntime) Create(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec) error {
	return r.s.take(ctx, "runtime create", func() error { return r.testRuntime.Create(ctx, id, spec) })
}

func (r stepRuntime) Restore(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, dir string) error {
	return r.s.take(ctx, "runtime restore", func() error { return r.testRuntime.Restore(ctx, id, spec, dir) })
}

func (r stepRuntime) Checkpoint(ctx context.Context, id caisson.ID, dir string, keep bool) error {
	how := r.s.spoilt(ctx, "runtime checkpoint")
	switch how {
	case steptest.Fails:
		return errInjected
	case steptest.Loses:
		keep = false // before it was thawed
	}
	err := r.testRuntime.Checkpoint(ctx, id, dir, keep)
	if err == nil && how == steptest.Loses {
		err = errInjected
	}
	return err
}

func (r stepRuntime) SaveFiles(ctx context.Context, id caisson.ID, f *os.File) error {
	return r.s.take(ctx, "runtime save files", func() error { return r.testRuntime.SaveFiles(ctx, id, f) })
}

func (r stepRuntime) Destroy(ctx context.Context, id caisson.ID) error {
	return r.s.take(ctx, "runtime destroy", func() error { return r.testRuntime.Destroy(ctx, id) })
}

func (r stepRuntime) Freeze(ctx context.Context, id caisson.ID) error {
	return r.s.take(ctx, "runtime freeze", func() error { return r.testRuntime.Freeze(ctx, id) })
}

func (r stepRuntime) Thaw(ctx context.Context, id caisson.ID) error {
	return r.s.take(ctx, "runtime thaw", func() error { return r.testRuntime.Thaw(ctx, id) })
}

func (r stepRuntime) Signal(ctx context.Context, id caisson.ID, pid, signal int) error {
	return r.s.take(ctx, "runtime signal", func() error { return r.testRuntime.Signal(ctx, id, pid, signal) })
}

func (r stepRuntime) List(ctx context.Context) ([]caisson.RuntimeSandbox, error) {
	return taking(ctx, r.s, "runtime list", func() ([]caisson.RuntimeSandbox, error) { return r.testRuntime.List(ctx) })
}

func (r stepRuntime) Processes(ctx context.Context, id caisson.ID) ([]caisson.ProcessInfo, error) {
	return taking(ctx, r.s, "runtime processes", func() ([]caisson.ProcessInfo, error) { return r.testRuntime.Processes(ctx, id) })
}

func (r stepRuntime) Writers(ctx context.Context, id caisson.ID, target string) (*caisson.Writers, error) {
	return taking(ctx, r.s, "runtime writers", func() (*caisson.Writers, error) { return r.testRuntime.Writers(ctx, id, target) })
}

func (r stepRuntime) SharedRandomness(ctx context.Context, id caisson.ID) ([]string, error) {
	return taking(ctx, r.s, "runtime shared randomness", func() ([]string, error) { return r.testRuntime.SharedRandomness(ctx, id) })
}

func (r stepRuntime) Exec(ctx context.Context, id caisson.ID, e caisson.RuntimeExec) (caisson.Process, error) {
	how := r.s.spoilt(ctx, "runtime exec "+e.Command[0])
	if how == steptest.Fails {
		return nil, errInjected
	}
	p, err := r.testRuntime.Exec(ctx, id, e)
	if err == nil && how == steptest.Loses {
		p.Close()
		return nil, errInjected
	}
	if err != nil {
		return nil, err
	}
	return stepProcess{p, r.s}, nil
}

type stepProcess struct {
	caisson.Process
	s *spoiler
}

func (p stepProcess) Wait(ctx context.Context) (caisson.ExitStatus, error) {
	return taking(ctx, p.s, "runtime wait", func() (caisson.ExitStatus, error) { return p.Process.Wait(ctx) })
}

type stepWires struct {
	*wires
	s *spoiler
}

func (w stepWires) Attach(ctx context.Context, id caisson.ID, spec caisson.WireSpec) (*os.File, error) {
	how := w.s.spoilt(ctx, "wire attach")
	if how == steptest.Fails {
		return nil, errInjected
	}
	f, err := w.wires.Attach(ctx, id, spec)
	if err == nil && how == steptest.Loses {
		f.Close()
		return nil, errInjected
	}
	return f, err
}

func (w stepWires) Configure(ctx context.Context, id caisson.ID, spec caisson.WireSpec) error {
	return w.s.take(ctx, "wire configure", func() error { return w.wires.Configure(ctx, id, spec) })
}

func (w stepWires) Reattach(ctx context.Context, id caisson.ID, netns *os.File, spec caisson.WireSpec) error {
	return w.s.take(ctx, "wire reattach", func() error { return w.wires.Reattach(ctx, id, netns, spec) })
}

func (w stepWires) Detach(ctx context.Context, id caisson.ID) error {
	return w.s.take(ctx, "wire detach", func() error { return w.wires.Detach(ctx, id) })
}

type stepImages struct {
	*imagetest.Driver
	s *spoiler
}

func (i stepImages) Host(ctx context.Context) (*caisson.Image, error) {
	return taking(ctx, i.s, "host image", func() (*caisson.Image, error) { return i.Driver.Host(ctx) })
}

func (i stepImages) Pull(ctx context.Context, req caisson.PullRequest, account string, progress func(caisson.Progress)) (*caisson.Image, error) {
	return taking(ctx, i.s, "pull image", func() (*caisson.Image, error) { return i.Driver.Pull(ctx, req, account, progress) })
}

func (i stepImages) MakeLayer(ctx context.Context, account string, archive *os.File) (digest, dir string, err error) {
	err = i.s.take(ctx, "freeze image", func() error {
		digest, dir, err = i.Driver.MakeLayer(ctx, account, archive)
		return err
	})
	return digest, dir, err
}

type stepLayers struct {
	*layers
	s *spoiler
}

func (l stepLayers) Create(ctx context.Context, sb *caisson.Sandbox, req caisson.WorkspaceRequest) (*caisson.Workspace, error) {
	defer req.Directory.Close()
	return taking(ctx, l.s, "lay workspace", func() (*caisson.Workspace, error) { return l.layers.Create(ctx, sb, req) })
}

func (l stepLayers) Open(ctx context.Context, id caisson.ID) (caisson.RuntimeMount, error) {
	return taking(ctx, l.s, "open workspace", func() (caisson.RuntimeMount, error) { return l.layers.Open(ctx, id) })
}

func (l stepLayers) Capture(ctx context.Context, id caisson.ID, dir string) error {
	return l.s.take(ctx, "capture workspace", func() error { return l.layers.Capture(ctx, id, dir) })
}

func (l stepLayers) Detach(ctx context.Context, id caisson.ID) error {
	return l.s.take(ctx, "leave workspace", func() error { return l.layers.Detach(ctx, id) })
}
