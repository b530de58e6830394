package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
)

var lifecycleTests = []test{
	{"CreateListDestroy", testCreateListDestroy},
	{"CreateTwice", testCreateTwice},
	{"UnknownID", testUnknownID},
	{"FailedCreateLeavesNothing", testFailedCreate},
	{"CancelledCreate", testCancelledCreate},
	{"DestroyIsIdempotent", testDestroyTwice},
	{"DestroyConcurrently", testDestroyConcurrently},
	{"DestroyEndsEverything", testDestroyEndsEverything},
	{"DeathOfTheSandbox", testDeath},
	{"Reopen", testReopen},
	{"Capabilities", testCapabilities},
	{"Stats", testStats},
	{"Processes", testProcesses},
	{"Churn", testChurn},
}

// testCreateListDestroy checks the list of sandboxes, the channel of Done and the sandbox's directory before and after Destroy.
func testCreateListDestroy(t *testing.T, s *suite) {
	b := s.newBox(t)
	before := entries(t, b.spec.Dir)
	b.create()
	b.wantRunning()
	select {
	case <-s.Runtime.Done(b.id):
		t.Error("Done is closed while the sandbox runs")
	default:
	}
	done := s.Runtime.Done(b.id)
	must(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
	wantDone(t, "the channel from before Destroy", done)
	wantDone(t, "the channel from after Destroy", s.Runtime.Done(b.id))
	b.wantNotListed()
	if after := entries(t, b.spec.Dir); !slices.Equal(before, after) {
		t.Errorf("the sandbox's directory has %q after Destroy and had %q before Create", after, before)
	}
}

// entries returns the names of the files in dir.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

func testCreateTwice(t *testing.T, s *suite) {
	b := s.create(t)
	wantKind(t, "second Create", s.Runtime.Create(b.ctx(), b.id, b.spec), caisson.Conflict)
	b.wantAlive()
}

// testUnknownID calls methods of the runtime with the id of a sandbox that does not exist.
func testUnknownID(t *testing.T, s *suite) {
	rt, ctx, id := s.Runtime, timeoutContext(t), caisson.NewID(caisson.SandboxPrefix)
	_, err := rt.Exec(ctx, id, caisson.RuntimeExec{Command: s.argv("echo")})
	wantKind(t, "Exec", err, caisson.NotFound)
	_, err = rt.WaitCommand(ctx, id)
	wantKind(t, "WaitCommand", err, caisson.NotFound)
	wantKind(t, "Signal", rt.Signal(ctx, id, -1, sigTerm), caisson.NotFound)
	_, err = rt.Processes(ctx, id)
	wantKind(t, "Processes", err, caisson.NotFound)
	_, err = rt.Stats(ctx, id)
	wantKind(t, "Stats", err, caisson.NotFound)
	wantDone(t, "an unknown id", rt.Done(id))
	check(t, "Destroy", rt.Destroy(ctx, id))
	if f, ok := rt.(caisson.Freezer); ok {
		wantKind(t, "Freeze", f.Freeze(ctx, id), caisson.NotFound)
		wantKind(t, "Thaw", f.Thaw(ctx, id), caisson.NotFound)
	}
	if c, ok := rt.(caisson.Checkpointer); ok {
		wantKind(t, "Checkpoint", c.Checkpoint(ctx, id, t.TempDir(), true), caisson.NotFound)
		wantKind(t, "SaveFiles", c.SaveFiles(ctx, id, tempFile(t)), caisson.NotFound)
	}
}

// tempFile returns an empty file in a temporary directory. It is closed at the end of the test.
func tempFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, "create a file", err)
	t.Cleanup(func() { f.Close() })
	return f
}

// testFailedCreate checks that a Create that fails leaves nothing behind, and can be repeated with a valid spec.
func testFailedCreate(t *testing.T, s *suite) {
	damaged := tempFile(t)
	_, err := damaged.WriteString("this is no archive, whatever one may think of it")
	must(t, "write a file", err)
	for _, c := range []struct {
		name   string
		damage func(spec *caisson.RuntimeSpec)
	}{
		{"layer missing", func(spec *caisson.RuntimeSpec) {
			spec.Rootfs.Layers = append([]string{filepath.Join(spec.Dir, "no-layer")}, spec.Rootfs.Layers...)
		}},
		{"files damaged", func(spec *caisson.RuntimeSpec) { spec.Files = damaged.Name() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := s.newBox(t)
			good, before := b.spec, entries(t, b.spec.Dir)
			c.damage(&b.spec)
			err := s.Runtime.Create(b.ctx(), b.id, b.spec)
			if err == nil {
				t.Fatal("Create succeeded")
			}
			b.wantNotListed()
			wantDone(t, "after a failed Create", s.Runtime.Done(b.id))
			if after := entries(t, b.spec.Dir); !slices.Equal(before, after) {
				t.Errorf("the sandbox's directory has %q, and had %q before", after, before)
			}
			check(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
			b.spec = good
			b.create()
			b.wantAlive()
		})
	}
}

// testCancelledCreate calls Create with a cancelled context.
func testCancelledCreate(t *testing.T, s *suite) {
	b := s.newBox(t)
	ctx, cancel := context.WithCancel(b.ctx())
	cancel()
	if err := s.Runtime.Create(ctx, b.id, b.spec); !errors.Is(err, context.Canceled) {
		t.Errorf("Create with a cancelled context: %v", err)
	}
	check(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
	b.wantNotListed()
	b.create()
}

// testDestroyTwice checks that Destroy succeeds for a sandbox that has been destroyed.
func testDestroyTwice(t *testing.T, s *suite) {
	b := s.create(t, "sleep", "1h")
	for i := range 2 {
		check(t, fmt.Sprint("Destroy number ", i+1), s.Runtime.Destroy(b.ctx(), b.id))
	}
	_, err := s.Runtime.Exec(b.ctx(), b.id, caisson.RuntimeExec{Command: s.argv("echo")})
	wantKind(t, "Exec after Destroy", err, caisson.NotFound)
}

// testDestroyConcurrently calls Destroy several times concurrently for one sandbox.
func testDestroyConcurrently(t *testing.T, s *suite) {
	b := s.create(t, "sleep", "1h")
	ctx := b.ctx()
	var g errgroup.Group
	for range 8 {
		g.Go(func() error { return s.Runtime.Destroy(ctx, b.id) })
	}
	check(t, "one of several Destroys", g.Wait())
	b.wantNotListed()
}

// testDestroyEndsEverything checks that Destroy ends exec sessions and calls of WaitCommand.
func testDestroyEndsEverything(t *testing.T, s *suite) {
	b := s.create(t, "ignore-term")
	p := b.exec(caisson.RuntimeExec{Command: []string{"cat"}, Stdin: true})
	type answer struct {
		status caisson.ExitStatus
		err    error
	}
	waited, ctx := make(chan answer, 1), b.ctx()
	go func() {
		status, err := s.Runtime.WaitCommand(ctx, b.id)
		waited <- answer{status, err}
	}()
	must(t, "Destroy", s.Runtime.Destroy(ctx, b.id))
	if r := b.finish(p); r.status.Success() {
		t.Errorf("a session ended with %v by Destroy", r.status)
	}
	if a := <-waited; a.err == nil && a.status.Success() || ctx.Err() != nil {
		t.Errorf("WaitCommand said %v, %v after Destroy; want a bad end or an error, at once", a.status, a.err)
	}
}

// testDeath checks the results of methods of the runtime for a sandbox that has crashed.
func testDeath(t *testing.T, s *suite) {
	b := s.create(t, "sleep", "1h")
	p := b.exec(caisson.RuntimeExec{Command: []string{"cat"}, Stdin: true})
	done := s.Runtime.Done(b.id)
	s.Kill(t, b.id)
	wantDone(t, "the channel from before the death", done)
	if status, err := s.Runtime.WaitCommand(b.ctx(), b.id); err != nil || !status.Unknown && status.Reason == "" {
		t.Errorf("WaitCommand = %+v, %v; want an unknown end, or a reason", status, err)
	}
	if status := b.wait(p); status.Success() {
		t.Errorf("a session ended with %v", status)
	}
	if found, ok := b.listEntry(); !ok || found.Running {
		t.Errorf("List says %+v, %v; want remains", found, ok)
	}
	_, err := s.Runtime.Exec(b.ctx(), b.id, caisson.RuntimeExec{Command: s.argv("echo")})
	wantKind(t, "Exec", err, caisson.Conflict)
	_, err = s.Runtime.Stats(b.ctx(), b.id)
	wantKind(t, "Stats", err, caisson.Conflict)
	_, err = s.Runtime.Processes(b.ctx(), b.id)
	wantKind(t, "Processes", err, caisson.Conflict)
	wantKind(t, "Signal", s.Runtime.Signal(b.ctx(), b.id, -1, sigTerm), caisson.Conflict)
	wantKind(t, "Create over the remains", s.Runtime.Create(b.ctx(), b.id, b.spec), caisson.Conflict)
	check(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
	b.wantNotListed()
}

// testReopen opens a second runtime on the same data, as after a restart of the daemon. It must manage the sandboxes of the first
// one.
func testReopen(t *testing.T, s *suite) {
	b := s.create(t, "sleep", "1h")
	done := s.Runtime.Done(b.id)
	next := b.reopen()
	next.wantRunning()
	wantKind(t, "Create", next.Runtime.Create(b.ctx(), b.id, b.spec), caisson.Conflict)
	next.wantAlive()
	check(t, "Signal", next.Runtime.Signal(b.ctx(), b.id, -1, sigTerm))
	if got, err := next.Runtime.WaitCommand(b.ctx(), b.id); err != nil || got.Signal != sigTerm {
		t.Errorf("the command ended with %v, %v", got, err)
	}
	nextDone := next.Runtime.Done(b.id)
	must(t, "Destroy", next.Runtime.Destroy(b.ctx(), b.id))
	wantDone(t, "of the first runtime", done)
	wantDone(t, "of the second runtime", nextDone)
}

// testCapabilities checks that the runtime's capabilities are complete and match the interfaces that it implements.
func testCapabilities(t *testing.T, s *suite) {
	c := s.Runtime.Capabilities()
	if c.Name == "" || c.Version == "" || c.CPU == "" {
		t.Errorf("%+v lacks a name, version or processor", c)
	}
	if _, ok := s.Runtime.(caisson.Checkpointer); c.Memory && !ok {
		t.Error("it says that it can capture memory and is no Checkpointer")
	}
}

func testStats(t *testing.T, s *suite) {
	b := s.create(t, "sleep", "1h")
	st, err := s.Runtime.Stats(b.ctx(), b.id)
	must(t, "Stats", err)
	if st.At.IsZero() || st.CPUNanos <= 0 || st.Memory <= 0 || st.Memory > st.MemoryMax || st.PIDs < 2 {
		t.Errorf("%+v is not plausible", *st)
	}
	if st.MemoryMax != b.spec.Resources.Memory {
		t.Errorf("memoryMax is %v, the limit is %v", st.MemoryMax, b.spec.Resources.Memory)
	}
	b.output("echo", "work")
	if next, err := s.Runtime.Stats(b.ctx(), b.id); err != nil || next.CPUNanos < st.CPUNanos || !next.At.After(st.At) {
		t.Errorf("%+v, %v cannot follow %+v", next, err, *st)
	}
}

// testProcesses checks the list of the processes in a sandbox.
func testProcesses(t *testing.T, s *suite) {
	b := s.create(t, "sleep", "1h")
	p := b.exec(caisson.RuntimeExec{Command: []string{"cat"}, Stdin: true, User: "1234:1235"})
	if p.PID() <= 1 {
		t.Errorf("a session has pid %d", p.PID())
	}
	byPID := b.processes()
	if init := byPID[1]; init.PID != 1 {
		t.Errorf("no init in %v", byPID)
	}
	if cat := byPID[p.PID()]; cat.UID != 1234 || cat.Threads < 1 || cat.Command != filepath.Base(s.Guestd) {
		t.Errorf("the session is listed as %+v", cat)
	}
	if len(byPID) != 3 {
		t.Errorf("%d processes, want init, command and session: %v", len(byPID), byPID)
	}
	p.Close()
	b.waitUntil("the session has left the list", func() bool { return len(b.processes()) == 2 })
}

// processes returns the processes that run in the sandbox, by PID.
func (b *box) processes() map[int]caisson.ProcessInfo {
	b.t.Helper()
	list, err := b.Runtime.Processes(b.ctx(), b.id)
	must(b.t, "Processes", err)
	byPID := map[int]caisson.ProcessInfo{}
	for _, p := range list {
		byPID[p.PID] = p
	}
	return byPID
}

// testChurn concurrently creates many sandboxes, executes a program in each, and destroys them.
func testChurn(t *testing.T, s *suite) {
	var g errgroup.Group
	for i := range 20 {
		b := s.newBox(t)
		ctx := b.ctx()
		g.Go(func() error {
			if err := s.Runtime.Create(ctx, b.id, b.spec); err != nil {
				return fmt.Errorf("create: %w", err)
			}
			p, err := s.Runtime.Exec(ctx, b.id, caisson.RuntimeExec{Command: s.argv("exit", fmt.Sprint(i))})
			if err != nil {
				return fmt.Errorf("exec: %w", err)
			}
			defer p.Close()
			if status, err := p.Wait(ctx); err != nil || status.Code != i {
				return fmt.Errorf("exit %d ended with %v, %w", i, status, err)
			}
			return s.Runtime.Destroy(ctx, b.id)
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
