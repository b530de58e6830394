package runtimetest

import (
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

var freezeTests = []test{
	{"FreezeStopsTime", testFreeze},
	{"FreezeThenDestroy", testFreezeDestroy},
	{"FreezeThenCheckpoint", testFreezeCheckpoint},
	{"FreezeThenDie", testFreezeDie},
	{"FreezeThenReopen", testFreezeReopen},
}

// counterInterval is the minimum time between two numbers that the test program counter writes to a file.
const counterInterval = 20 * time.Millisecond

// freezer returns the runtime as a [caisson.Freezer]. It skips the test if the runtime does not implement that interface.
func (s *suite) freezer(t *testing.T) caisson.Freezer {
	t.Helper()
	return implemented[caisson.Freezer](t, s, "freeze")
}

// testFreeze checks that a counter does not count while its sandbox is frozen, and continues after Thaw.
func testFreeze(t *testing.T, s *suite) {
	f := s.freezer(t)
	b := s.create(t, "counter", "/count")
	b.waitUntil("it counts", func() bool { return b.count("/count") > 2 })
	begin, before := time.Now(), b.count("/count")
	must(t, "Freeze", f.Freeze(b.ctx(), b.id))
	wantKind(t, "Freeze of a frozen sandbox", f.Freeze(b.ctx(), b.id), caisson.Conflict)
	frozen := time.Now()
	b.waitUntil("some time has passed", func() bool { return time.Since(frozen) > 30*counterInterval })
	stood := time.Since(frozen)
	must(t, "Thaw", f.Thaw(b.ctx(), b.id))
	after := b.count("/count")
	// most is the maximum number of steps of the counter in the time during which the sandbox was not frozen.
	if most := int((time.Since(begin)-stood)/counterInterval) + 2; after-before > most {
		t.Errorf("it went from %d to %d, and at most %d steps are possible if it stood still for %v", before, after, most, stood)
	}
	b.waitUntil("it goes on", func() bool { return b.count("/count") > after })
	wantKind(t, "Thaw of a sandbox that is not frozen", f.Thaw(b.ctx(), b.id), caisson.Conflict)
}

// testFreezeDestroy destroys a frozen sandbox.
func testFreezeDestroy(t *testing.T, s *suite) {
	f := s.freezer(t)
	b := s.create(t, "counter", "/count")
	must(t, "Freeze", f.Freeze(b.ctx(), b.id))
	_, err := s.Runtime.Exec(b.ctx(), b.id, caisson.RuntimeExec{Command: s.argv("echo")})
	wantKind(t, "Exec in a frozen sandbox", err, caisson.Conflict)
	check(t, "Destroy of a frozen sandbox", s.Runtime.Destroy(b.ctx(), b.id))
	wantDone(t, "after Destroy", s.Runtime.Done(b.id))
}

// checkFrozen checks that the runtime reports b as frozen.
func checkFrozen(b *box, f caisson.Freezer) {
	b.t.Helper()
	wantKind(b.t, "Freeze of a frozen sandbox", f.Freeze(b.ctx(), b.id), caisson.Conflict)
}

// testFreezeCheckpoint captures a frozen sandbox, which must stay frozen.
func testFreezeCheckpoint(t *testing.T, s *suite) {
	f := s.freezer(t)
	s.checkpointer(t)
	b := s.create(t, "counter", "/count")
	b.waitUntil("it has counted", func() bool { return b.count("/count") >= 10 })
	reached := b.count("/count")
	must(t, "Freeze", f.Freeze(b.ctx(), b.id))
	kept := b.checkpoint(true)
	checkFrozen(b, f)
	left := b.checkpoint(false)
	checkFrozen(b, f)
	for what, dir := range map[string]string{"runs on": kept, "ends": left} {
		fork := b.restore(dir)
		fork.waitUntil("a fork of one that "+what+" counts on", func() bool { return fork.count("/count") > reached })
		check(t, "Destroy", s.Runtime.Destroy(b.ctx(), fork.id))
	}
	must(t, "Thaw", f.Thaw(b.ctx(), b.id))
	b.waitUntil("it counts on", func() bool { return b.count("/count") > reached })
}

// testFreezeDie ends a frozen sandbox as if it had crashed.
func testFreezeDie(t *testing.T, s *suite) {
	f := s.freezer(t)
	b := s.create(t, "sleep", "1h")
	done := s.Runtime.Done(b.id)
	must(t, "Freeze", f.Freeze(b.ctx(), b.id))
	s.Kill(t, b.id)
	wantDone(t, "after its death", done)
	if err := f.Thaw(b.ctx(), b.id); err == nil {
		t.Error("Thaw of what has died succeeds")
	}
}

// testFreezeReopen opens a second runtime on the same data, which must detect that a sandbox is frozen.
func testFreezeReopen(t *testing.T, s *suite) {
	s.freezer(t)
	b := s.create(t, "counter", "/count")
	b.waitUntil("it counts", func() bool { return b.count("/count") > 2 })
	must(t, "Freeze", s.freezer(t).Freeze(b.ctx(), b.id))
	next := b.reopen()
	f := next.freezer(t)
	checkFrozen(next, f)
	next.wantRunning()
	_, err := next.Runtime.Exec(b.ctx(), b.id, caisson.RuntimeExec{Command: s.argv("echo")})
	wantKind(t, "Exec in a frozen sandbox", err, caisson.Conflict)
	must(t, "Thaw", f.Thaw(b.ctx(), b.id))
	after := next.count("/count")
	next.waitUntil("it counts on", func() bool { return next.count("/count") > after })
	must(t, "Destroy", next.Runtime.Destroy(b.ctx(), b.id))
}
