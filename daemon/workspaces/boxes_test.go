package workspaces_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/poll"
)

// boxes are sandboxes without isolation: their workspaces are the real layers on a kernel overlay, and their processes
// run on the host.
type boxes struct {
	w *world

	mu     sync.Mutex
	dirs   map[string]string     // guarded by mu
	last   caisson.CreateRequest // guarded by mu
	refuse error                 // error of Create
	inside func(dir string)      // called before the command
	made   int                   // guarded by mu
	stays  bool                  // Remove fails
}

func (b *boxes) Create(ctx context.Context, req caisson.CreateRequest) (*caisson.Sandbox, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil || !caller.MayUseHost() {
		return nil, errors.Join(err, errors.New("it may not use the host's"))
	}
	b.mu.Lock()
	b.last, b.made = req, b.made+1
	b.mu.Unlock()
	if b.refuse != nil {
		return nil, errors.Join(b.refuse, req.Workspace.Directory.Close())
	}
	sb := &caisson.Sandbox{ID: caisson.NewID(caisson.SandboxPrefix), Account: caller.Account, State: caisson.Running, Labels: req.Labels}
	if err := b.w.store.Sandboxes().Insert(ctx, sb); err != nil {
		return nil, err
	}
	ws, err := b.w.core.Layers().Create(ctx, sb, *req.Workspace)
	if err != nil {
		return nil, err
	}
	sb.Spec.Workspace = ws.ID
	m, err := b.w.core.Layers().Open(ctx, ws.ID)
	if err != nil {
		return nil, err
	}
	defer m.Source.Close()
	defer m.Overlay.Upper.Close()
	defer m.Overlay.Work.Close()
	defer m.Overlay.Mask.Close()
	dir := b.w.t.TempDir()
	options := "redirect_dir=off,metacopy=off,index=off,nfs_export=off,lowerdir=" + m.Overlay.Mask.Name() + ":" + m.Source.Name() +
		",upperdir=" + m.Overlay.Upper.Name() + ",workdir=" + m.Overlay.Work.Name()
	if err := unix.Mount("caisson-test", dir, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return nil, err
	}
	b.w.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	b.mu.Lock()
	b.dirs[string(sb.ID)] = dir
	b.mu.Unlock()
	return sb, nil
}

func (b *boxes) Exec(_ context.Context, ref string, req caisson.ExecRequest) (caisson.Process, error) {
	b.mu.Lock()
	dir := b.dirs[ref]
	b.mu.Unlock()
	if b.inside != nil {
		b.inside(dir)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(req.Timeout))
	cmd := exec.CommandContext(ctx, req.Command[0], req.Command[1:]...)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	r, out, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Start()
	out.Close()
	if err != nil {
		cancel()
		r.Close()
		return nil, err
	}
	return &boxProcess{cmd: cmd, ctx: ctx, cancel: cancel, out: r}, nil
}

func (b *boxes) Remove(ctx context.Context, ref string) error {
	if b.stays {
		return caisson.Errorf(caisson.Internal, "it stays")
	}
	b.mu.Lock()
	dir := b.dirs[ref]
	delete(b.dirs, ref)
	b.mu.Unlock()
	sb, err := b.w.store.Sandboxes().Get(ctx, caisson.AllAccounts(), ref)
	if err != nil {
		return err
	}
	if dir != "" {
		// A job that is starting has the descriptors open for a moment.
		poll.Until(b.w.t, patience, func() bool { return unix.Unmount(dir, 0) == nil })
	}
	if err := b.w.core.Layers().Detach(ctx, sb.Spec.Workspace); err != nil {
		return err
	}
	return b.w.store.Sandboxes().Delete(ctx, caisson.AllAccounts(), ref)
}

// boxProcess is a process on the host in place of one in the sandbox.
type boxProcess struct {
	caisson.Process
	cmd    *exec.Cmd
	ctx    context.Context
	cancel func()
	out    *os.File
}

func (p *boxProcess) Stdout() io.Reader { return p.out }
func (p *boxProcess) Stderr() io.Reader { return eof{} }

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

func (p *boxProcess) Signal(_ context.Context, signal int) error {
	return unix.Kill(-p.cmd.Process.Pid, unix.Signal(signal))
}

func (p *boxProcess) Wait(context.Context) (caisson.ExitStatus, error) {
	err := p.cmd.Wait()
	var s caisson.ExitStatus
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		s.Code = exit.ExitCode()
		if s.Code < 0 {
			s.Code, s.Signal = 137, 9
		}
		if p.ctx.Err() != nil {
			s.Reason = "time limit"
		}
		err = nil
	}
	return s, err
}

func (p *boxProcess) Close() error {
	p.cancel()
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
	return p.out.Close()
}

// commands configures these checks for the core of w, and returns the sandboxes that they run in.
func (w *world) commands(list ...workspaces.Command) *boxes {
	w.t.Helper()
	b := &boxes{w: w, dirs: map[string]string{}}
	w.checks, w.boxes = list, b
	w.must(w.core.Close())
	w.open()
	return b
}

// nothingLeft fails the test if a check has left files or sandboxes.
func (w *world) nothingLeft(t *testing.T, want ...*caisson.Workspace) {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(w.data, "workspaces"))
	w.must(err)
	if len(list) != len(want) {
		t.Errorf("%d directories of workspaces are left, want %d", len(list), len(want))
	}
	found, _, err := w.store.Sandboxes().List(w.t.Context(), caisson.AllAccounts(), caisson.Filter{Labels: map[string]string{"caisson/check": "commands"}})
	w.must(err)
	if len(found) != 0 {
		t.Errorf("%d sandboxes are left", len(found))
	}
	page, _, err := w.gate.ListWorkspaces(w.ctx(), caisson.WorkspaceFilter{})
	w.must(err)
	if len(page) != len(want) {
		t.Errorf("%d workspaces, want %d", len(page), len(want))
	}
}
