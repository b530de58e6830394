package runtimetest

import (
	"io"
	"os"
	"testing"

	"github.com/caisson-dev/caisson"
)

var checkpointTests = []test{
	{"CheckpointMemory", testCheckpointMemory},
	{"CheckpointAndEnd", testCheckpointAndEnd},
	{"RestoreTwice", testRestoreTwice},
	{"RestoreSessions", testRestoreSessions},
	{"RestoreRefused", testRestoreRefused},
}

// checkpointer returns the runtime as a [caisson.Checkpointer]. It skips the test if the runtime does not implement that
// interface.
func (s *suite) checkpointer(t *testing.T) caisson.Checkpointer {
	t.Helper()
	return implemented[caisson.Checkpointer](t, s, "capture memory")
}

// checkpoint captures the memory and the files of b into a new directory, and returns the directory. keep decides whether b
// continues to run.
func (b *box) checkpoint(keep bool) (dir string) {
	b.t.Helper()
	dir = b.t.TempDir()
	must(b.t, "Checkpoint", b.checkpointer(b.t).Checkpoint(b.ctx(), b.id, dir, keep))
	return dir
}

// restore creates a new sandbox, a fork, from the checkpoint of b in dir, and returns it.
func (b *box) restore(dir string) *box {
	b.t.Helper()
	fork := b.newBox(b.t)
	fork.spec.Command, fork.spec.Resources = b.spec.Command, b.spec.Resources
	must(b.t, "Restore", b.checkpointer(b.t).Restore(b.ctx(), fork.id, fork.spec, dir))
	return fork
}

// testCheckpointMemory checks that a counter whose number is only in memory continues in a fork and in the captured sandbox.
func testCheckpointMemory(t *testing.T, s *suite) {
	s.checkpointer(t)
	b := s.create(t, "counter", "/count")
	b.write("/before", "written before", 0o644)
	b.waitUntil("it has counted", func() bool { return b.count("/count") >= 10 })
	reached := b.count("/count")
	dir := b.checkpoint(true)
	fork := b.restore(dir)

	last := reached
	fork.waitUntil("the fork counts on", func() bool {
		n := fork.count("/count")
		if n != 0 && n < last {
			t.Fatalf("the fork's counter went from %d to %d", last, n)
		}
		last = max(n, last)
		return n > reached+5
	})
	fork.wantContent("/before", "written before")
	if hostname(b) == hostname(fork) || hostname(fork) != fork.spec.Hostname {
		t.Errorf("the fork is called %q, the original %q", hostname(fork), hostname(b))
	}

	// Changes after the restore in the fork and in the captured sandbox are independent.
	fork.write("/after", "of the fork", 0o644)
	b.wantAbsent("/after")
	must(t, "Signal", s.Runtime.Signal(b.ctx(), fork.id, -1, sigKill))
	if got, err := s.Runtime.WaitCommand(b.ctx(), fork.id); err != nil || got.Signal != sigKill {
		t.Errorf("the fork's command ended with %v, %v", got, err)
	}
	stopped := fork.count("/count")
	b.waitUntil("the original has gone further alone", func() bool { return b.count("/count") > stopped+3 })
	if got := fork.count("/count"); got != stopped {
		t.Errorf("the fork's number went from %d to %d with its counter ended", stopped, got)
	}
}

// testCheckpointAndEnd checks that a counter continues in a fork of a sandbox that was ended when it was captured.
func testCheckpointAndEnd(t *testing.T, s *suite) {
	s.checkpointer(t)
	b := s.create(t, "counter", "/count")
	b.waitUntil("it has counted", func() bool { return b.count("/count") >= 3 })
	dir := b.checkpoint(false)
	must(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
	fork := b.restore(dir)
	n := fork.count("/count")
	fork.waitUntil("it counts on", func() bool { return fork.count("/count") > max(n, 3) })
}

// testRestoreTwice checks that several forks of one checkpoint are independent.
func testRestoreTwice(t *testing.T, s *suite) {
	s.checkpointer(t)
	b := s.create(t, "counter", "/count")
	dir := b.checkpoint(true)
	one, two := b.restore(dir), b.restore(dir)
	one.write("/lower/keep", "changed", 0o644)
	two.wantContent("/lower/keep", "keep")
	must(t, "Destroy", s.Runtime.Destroy(b.ctx(), one.id))
	n := two.count("/count")
	two.waitUntil("the other goes on", func() bool { return two.count("/count") > n })
	// A restore does not change the checkpoint, so another fork can be restored from it.
	b.restore(dir).wantContent("/lower/keep", "keep")
}

// testRestoreSessions checks that processes of exec sessions are missing in a fork, that other processes continue there, and that
// exec sessions of the captured sandbox continue.
func testRestoreSessions(t *testing.T, s *suite) {
	s.checkpointer(t)
	b := s.create(t, "sleep", "1h")
	session := b.exec(caisson.RuntimeExec{Command: []string{"cat"}, Stdin: true})
	child := b.startDetached("counter", "/count")
	b.waitUntil("the child counts", func() bool { return b.count("/count") >= 3 })
	reached := b.count("/count")
	fork := b.restore(b.checkpoint(true))

	fork.waitUntil("the session is gone in the fork", func() bool {
		_, there := fork.processes()[session.PID()]
		return !there
	})
	if _, there := fork.processes()[child]; !there {
		t.Errorf("process %d, in a session of its own, is not in the fork: %v", child, fork.processes())
	}
	fork.waitUntil("it counts on", func() bool { return fork.count("/count") > reached })

	if _, err := io.WriteString(session.Stdin(), "still here"); err != nil {
		t.Errorf("write to the original's session: %v", err)
	}
	session.Stdin().Close()
	if r := b.finish(session); r.stdout != "still here" || !r.status.Success() {
		t.Errorf("the original's session gave %+v", r)
	}
}

// testRestoreRefused restores from directories without a whole checkpoint, and over an existing sandbox.
func testRestoreRefused(t *testing.T, s *suite) {
	c := s.checkpointer(t)
	b := s.newBox(t)
	before := entries(t, b.spec.Dir)
	if err := c.Restore(b.ctx(), b.id, b.spec, t.TempDir()); err == nil {
		t.Fatal("Restore from an empty directory succeeded")
	}
	b.wantNotListed()
	if after := entries(t, b.spec.Dir); len(after) != len(before) {
		t.Errorf("the sandbox's directory has %q, and had %q before", after, before)
	}
	b.create()
	dir := b.checkpoint(true)
	wantKind(t, "Restore over a sandbox", c.Restore(b.ctx(), b.id, b.spec, dir), caisson.Conflict)
	must(t, "remove a file of a checkpoint", os.Remove(dir+"/"+entries(t, dir)[0]))
	other := s.newBox(t)
	if err := c.Restore(b.ctx(), other.id, other.spec, dir); err == nil {
		t.Error("Restore from a part of a checkpoint succeeded")
	}
}
