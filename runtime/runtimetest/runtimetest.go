package runtimetest

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/guestd"
	"github.com/caisson-dev/caisson/internal/poll"
)

// opTimeout is the timeout of each operation of the runtime in the tests.
const opTimeout = 30 * time.Second

// A Harness contains the runtime to test, and functions that depend on its implementation. All fields are required unless stated
// otherwise.
type Harness struct {
	Runtime caisson.Runtime
	// Spec returns a valid spec for a sandbox with this id. The spec has an existing directory, limits on resources and no
	// command; the directory layer is the topmost layer of its root file system.
	Spec func(t *testing.T, id caisson.ID, layer string) caisson.RuntimeSpec
	// Guestd is the absolute path of guestd in every sandbox.
	Guestd string
	// Kill ends a running sandbox as if it had crashed.
	Kill func(t *testing.T, id caisson.ID)
	// Reopen returns another Runtime on the same data, as after a restart of the daemon. If it is nil, tests that open a second
	// runtime are skipped.
	Reopen func(t *testing.T) caisson.Runtime
}

// A suite is a Harness with the topmost layer of the root file systems of all sandboxes in the tests.
type suite struct {
	Harness
	layer string // directory of the layer
}

// A test is one test of the suite and its name.
type test struct {
	name string
	run  func(t *testing.T, s *suite)
}

// Test runs all tests of the suite against the runtime that open returns. If the runtime does not implement an optional
// interface, such as [caisson.Checkpointer] or [caisson.Freezer], the tests of that interface are skipped. open is called once.
func Test(t *testing.T, open func(t *testing.T) Harness) {
	s := &suite{Harness: open(t), layer: newLayer(t)}
	for _, tests := range [][]test{
		lifecycleTests, execTests, identityTests, ttyTests, signalTests, commandTests, limitTests, freezeTests,
		checkpointTests, fileTests, overlayTests, dialTests,
	} {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) { test.run(t, s) })
		}
	}
	list, err := s.Runtime.List(timeoutContext(t))
	if err != nil || len(list) != 0 {
		t.Errorf("after all tests List() = %v, %v; want nothing left", list, err)
	}
}

// Contents of /etc/passwd and /etc/group in the sandboxes of the tests.
const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nagent:x:1234:1235::/home/agent:/bin/sh\n"
	group  = "root:x:0:\nagent:x:1235:\nteam:x:1236:agent\n"
)

// newLayer creates the directory that is the topmost layer of the root file system of every sandbox in the tests.
func newLayer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range []struct {
		name, content string // a name that ends in a slash means a directory
		mode          os.FileMode
	}{
		{"etc/", "", 0o755},
		{"etc/passwd", passwd, 0o644},
		{"etc/group", group, 0o644},
		{"lower/", "", 0o755},
		{"lower/keep", "keep", 0o644},
		{"lower/gone", "gone", 0o644},
		{"lower/tree/", "", 0o755},
		{"lower/tree/leaf", "leaf", 0o644},
		{"lower/text", "no program", 0o644},
		{"mnt/", "", 0o755},
		{"mnt/read/", "", 0o755},
		{"mnt/write/", "", 0o755},
		{"shared/", "", 0o777 | os.ModeSticky},
	} {
		name := filepath.Join(dir, f.name)
		var err error
		if strings.HasSuffix(f.name, "/") {
			err = os.Mkdir(name, 0o755)
		} else {
			err = os.WriteFile(name, []byte(f.content), 0o600)
		}
		if err == nil {
			err = os.Chmod(name, f.mode)
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Chown(name, caisson.LayerUIDBase, caisson.LayerUIDBase)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A box is a sandbox that one test uses.
type box struct {
	*suite
	t    *testing.T
	id   caisson.ID
	spec caisson.RuntimeSpec // the spec with which create creates the sandbox
}

// newBox returns a box whose sandbox is not created yet. The sandbox is destroyed at the end of the test.
func (s *suite) newBox(t *testing.T) *box {
	t.Helper()
	id := caisson.NewID(caisson.SandboxPrefix)
	b := &box{suite: s, t: t, id: id, spec: s.Spec(t, id, s.layer)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		defer cancel()
		check(t, "Destroy of "+string(id), s.Runtime.Destroy(ctx, id))
	})
	return b
}

// create creates a sandbox with a test program as its command, or without a command if program is empty.
func (s *suite) create(t *testing.T, program ...string) *box {
	t.Helper()
	b := s.newBox(t)
	b.spec.Command = s.argv(program...)
	b.create()
	return b
}

// create creates the sandbox of the box with the spec b.spec.
func (b *box) create() {
	b.t.Helper()
	must(b.t, "Create", b.Runtime.Create(b.ctx(), b.id, b.spec))
}

// argv returns the command line for a test program and its arguments; nil if program is empty.
func (s *suite) argv(program ...string) []string {
	if len(program) == 0 {
		return nil
	}
	return append([]string{s.Guestd, "test"}, program...)
}

// ctx returns a context that ends with the test or after opTimeout.
func (b *box) ctx() context.Context { return timeoutContext(b.t) }

// timeoutContext returns a context that ends with the test or after opTimeout.
func timeoutContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	t.Cleanup(cancel)
	return ctx
}

// exec executes e in the sandbox; its command is the name of a test program with arguments. The process is closed at the end of
// the test.
func (b *box) exec(e caisson.RuntimeExec) caisson.Process {
	b.t.Helper()
	e.Command = b.argv(e.Command...)
	p, err := b.Runtime.Exec(b.ctx(), b.id, e)
	if err != nil {
		b.t.Fatalf("Exec(%q): %v", e.Command, err)
	}
	b.t.Cleanup(func() { p.Close() })
	return p
}

// A result is what a process has left: its output and its exit status.
type result struct {
	stdout, stderr string
	status         caisson.ExitStatus
}

// finish reads the output of p and waits until p has exited.
func (b *box) finish(p caisson.Process) result {
	b.t.Helper()
	var stdout, stderr bytes.Buffer
	errs := make(chan error, 2)
	go func() { _, err := io.Copy(&stdout, p.Stdout()); errs <- err }()
	go func() { _, err := io.Copy(&stderr, p.Stderr()); errs <- err }()
	for range 2 {
		select {
		case err := <-errs:
			must(b.t, "read output", err)
		case <-b.ctx().Done():
			b.t.Fatal("the output does not end")
		}
	}
	return result{stdout.String(), stderr.String(), b.wait(p)}
}

// wait waits until p has exited and returns its exit status.
func (b *box) wait(p caisson.Process) caisson.ExitStatus {
	b.t.Helper()
	status, err := p.Wait(b.ctx())
	must(b.t, "Wait", err)
	return status
}

// run runs a test program as root, without input, and waits until it has exited.
func (b *box) run(program ...string) result {
	b.t.Helper()
	return b.finish(b.exec(caisson.RuntimeExec{Command: program}))
}

// output runs a test program, which must succeed, and returns its standard output without the last newline.
func (b *box) output(program ...string) string {
	b.t.Helper()
	r := b.run(program...)
	if !r.status.Success() {
		b.t.Fatalf("%q %v: %s", program, r.status, r.stderr)
	}
	return strings.TrimSuffix(r.stdout, "\n")
}

// wantOutput checks the output of a test program, which must succeed.
func (b *box) wantOutput(want string, program ...string) {
	b.t.Helper()
	if got := b.output(program...); got != want {
		b.t.Errorf("%q gives %q, want %q", program, got, want)
	}
}

// wantAlive checks that programs can be started in the sandbox.
func (b *box) wantAlive() {
	b.t.Helper()
	b.wantOutput("alive", "echo", "alive")
}

// files returns a client for the sandbox's files.
func (b *box) files() *guestd.Client {
	b.t.Helper()
	c := guestd.NewClient(func(ctx context.Context, args []string, stdin bool) (caisson.Process, error) {
		command := append([]string{b.Guestd}, args...)
		return b.Runtime.Exec(ctx, b.id, caisson.RuntimeExec{Command: command, Stdin: stdin})
	})
	b.t.Cleanup(func() { c.Close() })
	return c
}

// read returns the content of the sandbox's file name.
func (b *box) read(name string) string {
	b.t.Helper()
	r, err := b.files().ReadFile(b.ctx(), name, 0, 0)
	must(b.t, "read "+name, err)
	defer r.Close()
	content, err := io.ReadAll(r)
	must(b.t, "read "+name, err)
	return string(content)
}

// wantContent checks the content of a file of the sandbox.
func (b *box) wantContent(name, want string) {
	b.t.Helper()
	if got := b.read(name); got != want {
		b.t.Errorf("%s holds %q, want %q", name, got, want)
	}
}

// wantAbsent checks that a file does not exist in the sandbox.
func (b *box) wantAbsent(name string) {
	b.t.Helper()
	if _, err := b.files().StatFile(b.ctx(), name); caisson.KindOf(err) != caisson.NotFound {
		b.t.Errorf("%s, which is not there: %v", name, err)
	}
}

// write creates or replaces a file of the sandbox.
func (b *box) write(name, content string, mode uint32) {
	b.t.Helper()
	_, err := b.files().WriteFile(b.ctx(), name, mode, strings.NewReader(content))
	must(b.t, "write "+name, err)
}

// count returns the number in the file that the test program counter writes, or 0 if the file has no number yet.
func (b *box) count(name string) int {
	b.t.Helper()
	if _, err := b.files().StatFile(b.ctx(), name); caisson.KindOf(err) == caisson.NotFound {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(b.read(name))) // n is 0 if the counter is just replacing the file's content
	return n
}

// startDetached starts a test program that does not end with its exec session, and returns its PID.
func (b *box) startDetached(program ...string) int {
	b.t.Helper()
	command := append([]string{b.Guestd, "run", "--detach", "--"}, b.argv(program...)...)
	p, err := b.Runtime.Exec(b.ctx(), b.id, caisson.RuntimeExec{Command: command})
	if err != nil {
		b.t.Fatalf("Exec(%q): %v", command, err)
	}
	defer p.Close()
	r := b.finish(p)
	pid, err := strconv.Atoi(strings.TrimSpace(r.stdout))
	if err != nil {
		b.t.Fatalf("%q gave %+v, want a pid", command, r)
	}
	return pid
}

// waitUntil polls cond until it is true, and fails the test after opTimeout. what describes the condition in the test's log.
func (b *box) waitUntil(what string, cond func() bool) {
	b.t.Helper()
	b.t.Log("waiting until", what)
	poll.Until(b.t, opTimeout, cond)
}

// listEntry returns the sandbox's entry in the result of List; ok is false if there is none.
func (b *box) listEntry() (found caisson.RuntimeSandbox, ok bool) {
	b.t.Helper()
	list, err := b.Runtime.List(b.ctx())
	must(b.t, "List", err)
	i := slices.IndexFunc(list, func(s caisson.RuntimeSandbox) bool { return s.ID == b.id })
	if i < 0 {
		return found, false
	}
	return list[i], true
}

// wantRunning checks that List reports the sandbox as running.
func (b *box) wantRunning() {
	b.t.Helper()
	if found, ok := b.listEntry(); !ok || !found.Running {
		b.t.Errorf("List says %+v, %v; want it running", found, ok)
	}
}

// wantNotListed checks that List does not report the sandbox.
func (b *box) wantNotListed() {
	b.t.Helper()
	if found, ok := b.listEntry(); ok {
		b.t.Errorf("List says %+v, want nothing", found)
	}
}

// reopen returns b as a sandbox of a second runtime on the same data. It skips the test if Harness.Reopen is nil.
func (b *box) reopen() *box {
	b.t.Helper()
	if b.Reopen == nil {
		b.t.Skip("the harness cannot reopen this runtime")
	}
	s := *b.suite
	s.Runtime = b.Reopen(b.t)
	return &box{suite: &s, t: b.t, id: b.id, spec: b.spec}
}

// implemented returns the runtime as a T, which is an optional interface. It skips the test if the runtime does not implement T;
// what names the missing ability in the message.
func implemented[T any](t *testing.T, s *suite, what string) T {
	t.Helper()
	i, ok := s.Runtime.(T)
	if !ok {
		t.Skip("this runtime cannot " + what)
	}
	return i
}

// must ends the test if err is not nil. what names the operation that returned it.
func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// check fails the test if err is not nil, and continues. what names the operation that returned it.
func check(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// wantKind fails the test unless err is of kind k and its message contains all of mentions.
func wantKind(t *testing.T, what string, err error, k caisson.Kind, mentions ...string) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != k {
		t.Errorf("%s: error %v, want one of kind %s", what, err, k)
		return
	}
	for _, m := range mentions {
		if !strings.Contains(caisson.MessageOf(err), m) {
			t.Errorf("%s: message %q does not mention %q", what, caisson.MessageOf(err), m)
		}
	}
}

// wantDone fails the test unless the channel c is closed within opTimeout. what names the channel.
func wantDone(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-timeoutContext(t).Done():
		t.Errorf("%s: Done is not closed", what)
	}
}
