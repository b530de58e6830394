package fake_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/runtime/fake"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
	"github.com/caisson-dev/caisson/runtime/runtimetest"
)

func TestRuntime(t *testing.T) {
	runtimetest.Test(t, func(t *testing.T) runtimetest.Harness {
		r := open(t, t.TempDir())
		return runtimetest.Harness{
			Runtime: r, Guestd: guest.Path,
			Spec:   func(t *testing.T, id caisson.ID, layer string) caisson.RuntimeSpec { return spec(t, id, layer) },
			Reopen: func(*testing.T) caisson.Runtime { return r.Reopen() },
			Kill: func(t *testing.T, id caisson.ID) {
				if err := r.Kill(id); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func open(t *testing.T, dir string) *fake.Runtime {
	t.Helper()
	r, err := fake.New(fake.Config{Dir: dir, Programs: guest.Programs()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func spec(t *testing.T, id caisson.ID, layers ...string) caisson.RuntimeSpec {
	t.Helper()
	dir := filepath.Join(t.TempDir(), string(id))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return caisson.RuntimeSpec{
		Hostname: string(id), Dir: dir, Resources: caisson.DefaultResources(), Rootfs: caisson.Rootfs{Layers: layers},
	}
}

func newID() caisson.ID { return caisson.NewID(caisson.SandboxPrefix) }

// create returns a running sandbox with a test program as its command, or without a command.
func create(t *testing.T, r *fake.Runtime, program ...string) caisson.ID {
	t.Helper()
	id := newID()
	s := spec(t, id)
	if len(program) > 0 {
		s.Command = append([]string{guest.Path, "test"}, program...)
	}
	if err := r.Create(t.Context(), id, s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Destroy(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	return id
}

func TestFailNext(t *testing.T) {
	r := open(t, t.TempDir())
	ctx, id, broken := t.Context(), create(t, r, "sleep", "1h"), errors.New("broken on purpose")
	for op, call := range map[fake.Op]func() error{
		fake.OpCreate:      func() error { return r.Create(ctx, newID(), spec(t, newID())) },
		fake.OpExec:        func() error { _, err := r.Exec(ctx, id, caisson.RuntimeExec{}); return err },
		fake.OpWaitCommand: func() error { _, err := r.WaitCommand(ctx, id); return err },
		fake.OpSignal:      func() error { return r.Signal(ctx, id, -1, 10) },
		fake.OpProcesses:   func() error { _, err := r.Processes(ctx, id); return err },
		fake.OpStats:       func() error { _, err := r.Stats(ctx, id); return err },
		fake.OpDestroy:     func() error { return r.Destroy(ctx, id) },
		fake.OpList:        func() error { _, err := r.List(ctx); return err },
		fake.OpCheckpoint:  func() error { return r.Checkpoint(ctx, id, t.TempDir(), true) },
		fake.OpRestore:     func() error { return r.Restore(ctx, newID(), spec(t, newID()), t.TempDir()) },
		fake.OpSaveFiles:   func() error { return r.SaveFiles(ctx, id, nil) },
		fake.OpFreeze:      func() error { return r.Freeze(ctx, id) },
		fake.OpThaw:        func() error { return r.Thaw(ctx, id) },
	} {
		r.FailNext(op, broken)
		if err := call(); !errors.Is(err, broken) {
			t.Errorf("%s: %v, want the fault", op, err)
		}
	}
	if list, err := r.List(ctx); err != nil || len(list) != 1 || !list[0].Running {
		t.Errorf("after faults List() = %v, %v; want the one sandbox, running, and no fault left", list, err)
	}
}

// TestRemains opens a fake runtime on the records of another one, which simulates a process that has exited.
func TestRemains(t *testing.T) {
	dir := t.TempDir()
	id := create(t, open(t, dir))
	r := open(t, dir)
	list, err := r.List(t.Context())
	if err != nil || len(list) != 1 || list[0] != (caisson.RuntimeSandbox{ID: id}) {
		t.Errorf("List() = %v, %v; want remains of %s", list, err, id)
	}
	if _, err := r.Stats(t.Context(), id); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("Stats of remains: %v", err)
	}
	if err := r.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if list, err := open(t, dir).List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("after Destroy List() = %v, %v", list, err)
	}
}

func TestCheckpointNeedsMemory(t *testing.T) {
	r := open(t, t.TempDir())
	id, dir := create(t, r, "ignore-term"), t.TempDir()
	if err := r.Checkpoint(t.Context(), id, dir, false); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("Checkpoint of a program without a memory: %v, want a conflict", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("it left %v, %v", files, err)
	}
	p, err := r.Exec(t.Context(), id, caisson.RuntimeExec{Command: []string{guest.Path, "test", "echo"}})
	if err != nil {
		t.Fatalf("the sandbox does not run on: %v", err)
	}
	p.Close()
}

func TestExecAtTheLimit(t *testing.T) {
	r := open(t, t.TempDir())
	id := newID()
	s := spec(t, id)
	s.Resources.PIDs = 1
	if err := r.Create(t.Context(), id, s); err != nil {
		t.Fatal(err)
	}
	defer r.Destroy(t.Context(), id)
	_, err := r.Exec(t.Context(), id, caisson.RuntimeExec{Command: []string{guest.Path, "test", "echo"}})
	if caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("Exec beyond the limit: %v", err)
	}
}

// TestNothingGoesOn destroys a sandbox with processes that are blocked in every possible way, and checks that no goroutine is
// left.
func TestNothingGoesOn(t *testing.T) {
	r := open(t, t.TempDir())
	id := create(t, r, "counter", "/count")
	for _, e := range []caisson.RuntimeExec{
		{Command: []string{guest.Path, "test", "cat"}, Stdin: true},
		{Command: []string{guest.Path, "test", "cat"}, Stdin: true, TTY: true},
		{Command: []string{guest.Path, "test", "tty"}, TTY: true},
		{Command: []string{guest.Path, "test", "ignore-term"}},
		{Command: []string{guest.Path, "files"}, Stdin: true},
		{Command: []string{guest.Path, "run", "--", guest.Path, "test", "sleep", "1h"}},
		{Command: []string{guest.Path, "run", "--detach", "--log", "/log", "--", guest.Path, "test", "sleep", "1h"}},
		{Command: []string{guest.Path, "test", "echo", strings.Repeat("more than a pipe takes", 10000)}},
	} {
		if _, err := r.Exec(t.Context(), id, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Freeze(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, time.Minute, func() bool {
		buf := make([]byte, 1<<20)
		stacks := string(buf[:runtime.Stack(buf, true)])
		return !strings.Contains(stacks, "runtime/fake.(")
	})
}

func TestRunWithoutDetach(t *testing.T) {
	r := open(t, t.TempDir())
	id := create(t, r)
	p, err := r.Exec(t.Context(), id, caisson.RuntimeExec{
		Command: []string{guest.Path, "run", "--user", "5:6", "--", guest.Path, "test", "cat"}, Stdin: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	io.WriteString(p.Stdin(), "through")
	p.Stdin().Close()
	out, err := io.ReadAll(p.Stdout())
	status, waitErr := p.Wait(t.Context())
	if err := errors.Join(err, waitErr); err != nil || string(out) != "through" || !status.Success() {
		t.Errorf("got %q, %v, %v", out, status, err)
	}
}
