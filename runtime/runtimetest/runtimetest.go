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

// opTimeout is the timeout of each operation.
const opTimeout = 30 * time.Second

// A Harness is a runtime under test with implementation-specific functions. All fields are required unless stated otherwise.
type Harness struct {
	Runtime caisson.Runtime
	// Spec returns a valid spec without a command for a sandbox with the id: with an existing directory, with limits, and with
	// layer on top of all other layers that the root file system needs.
	Spec func(t *testing.T, id caisson.ID, layer string) caisson.RuntimeSpec
	// Guestd is the absolute path of the program of package guestd in every sandbox.
	Guestd string
	// Kill stops a running sandbox as if its main process had crashed.
	Kill func(t *testing.T, id caisson.ID)
	// Reopen returns another Runtime on the same data, as after a restart of the daemon. If it is nil, the tests that need it
	// are skipped.
	Reopen func(t *testing.T) caisson.Runtime
}

// A suite is a Harness with the layer that all tests share.
type suite struct {
	Harness
	layer string
}

// A test is one test of the suite with its name.
type test struct {
	name string
	run  func(t *testing.T, s *suite)
}

// Test runs the tests against the runtime that open returns. If the runtime is not a [caisson.Checkpointer] or
// [caisson.Freezer], the tests of these interfaces are skipped. open is called once.
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

// Contents of the layer's /etc/passwd and /etc/group.
const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nagent:x:1234:1235::/home/agent:/bin/sh\n"
	group  = "root:x:0:\nagent:x:1235:\nteam:x:1236:agent\n"
)

// newLayer creates the topmost layer of every sandbox in the tests.
func newLayer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range []struct {
		name, content string // a name that ends in a slash is a directory
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

// A box is a sandbox of one test.
type box struct {
	*suite
	t    *testing.T
	id   caisson.ID
	spec caisson.RuntimeSpec
}

// newBox returns a box whose sandbox has not been created yet. The sandbox is destroyed at the end of the test.
func (s *suite) newBox(t *testing.T) *box {
	t.Helper()
	id := caisson.NewID(caisson.SandboxPrefix)
	b := &box{suite: s, t: t, id: id, spec: s.Spec(t, id, s.layer)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		defer cancel()
		if err := s.Runtime.Destroy(ctx, id); err != nil {
			t.Errorf("Destroy(%s): %v", id, err)
		}
	})
	return b
}

// create returns a running sandbox with a test program as its command, or without a command.
func (s *suite) create(t *testing.T, program ...string) *box {
	t.Helper()
	b := s.newBox(t)
	b.spec.Command = s.argv(program...)
	b.create()
	return b
}

// create creates the sandbox with b.spec.
func (b *box) create() {
	b.t.Helper()
	if err := b.Runtime.Create(b.ctx(), b.id, b.spec); err != nil {
		b.t.Fatalf("Create: %v", err)
	}
}

// argv returns the command line of a test program, or nil if there are no arguments.
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

// exec starts e, whose command is a test program. The process is closed at the end of the test.
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

// A result is the output and the exit status of a process.
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
			if err != nil {
				b.t.Fatalf("read output: %v", err)
			}
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
	if err != nil {
		b.t.Fatalf("Wait: %v", err)
	}
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

// read returns the content of a file of the sandbox.
func (b *box) read(name string) string {
	b.t.Helper()
	r, err := b.files().ReadFile(b.ctx(), name, 0, 0)
	if err != nil {
		b.t.Fatalf("read %s: %v", name, err)
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		b.t.Fatalf("read %s: %v", name, err)
	}
	return string(content)
}

// write creates or replaces a file of the sandbox.
func (b *box) write(name, content string, mode uint32) {
	b.t.Helper()
	if _, err := b.files().WriteFile(b.ctx(), name, mode, strings.NewReader(content)); err != nil {
		b.t.Fatalf("write %s: %v", name, err)
	}
}

// count returns the current number of a counter, or 0 if it has not started.
func (b *box) count(name string) int {
	b.t.Helper()
	if _, err := b.files().StatFile(b.ctx(), name); caisson.KindOf(err) == caisson.NotFound {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(b.read(name))) // The file is empty while the counter replaces its content: 0.
	return n
}

// detached starts a test program that keeps running when its exec session ends, and returns its PID.
func (b *box) detached(program ...string) int {
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

// until polls cond until it is true. what describes the condition in the test's log.
func (b *box) until(what string, cond func() bool) {
	b.t.Helper()
	b.t.Log("waiting until", what)
	poll.Until(b.t, opTimeout, cond)
}

// listed returns the sandbox's entry in the result of List.
func (b *box) listed() (found caisson.RuntimeSandbox, ok bool) {
	b.t.Helper()
	list, err := b.Runtime.List(b.ctx())
	if err != nil {
		b.t.Fatalf("List: %v", err)
	}
	i := slices.IndexFunc(list, func(s caisson.RuntimeSandbox) bool { return s.ID == b.id })
	if i < 0 {
		return found, false
	}
	return list[i], true
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

// wantDone fails the test unless c is closed within opTimeout.
func wantDone(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-timeoutContext(t).Done():
		t.Errorf("%s: Done is not closed", what)
	}
}
