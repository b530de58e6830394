package runtimetest

import (
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

var freezeTests = []test{
	{"FreezeStopsTime", testFreeze},
	{"FreezeThenDestroy", testFreezeDestroy},
}

// counterInterval is the least that a counter waits between two numbers.
const counterInterval = 20 * time.Millisecond

func (s *suite) freezer(t *testing.T) caisson.Freezer {
	t.Helper()
	f, ok := s.Runtime.(caisson.Freezer)
	if !ok {
		t.Skip("this runtime cannot freeze")
	}
	return f
}

func testFreeze(t *testing.T, s *suite) {
	f := s.freezer(t)
	b := s.create(t, "counter", "/count")
	b.until("it counts", func() bool { return b.count("/count") > 2 })
	begin, before := time.Now(), b.count("/count")
	if err := f.Freeze(b.ctx(), b.id); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	wantKind(t, "Freeze of a frozen sandbox", f.Freeze(b.ctx(), b.id), caisson.Conflict)
	frozen := time.Now()
	b.until("some time has passed", func() bool { return time.Since(frozen) > 30*counterInterval })
	stood := time.Since(frozen)
	if err := f.Thaw(b.ctx(), b.id); err != nil {
		t.Fatalf("Thaw: %v", err)
	}
	after := b.count("/count")
	// What it can have counted at most, while it was not frozen.
	if most := int((time.Since(begin)-stood)/counterInterval) + 2; after-before > most {
		t.Errorf("it went from %d to %d, and at most %d steps are possible if it stood still for %v", before, after, most, stood)
	}
	b.until("it goes on", func() bool { return b.count("/count") > after })
	wantKind(t, "Thaw of a sandbox that is not frozen", f.Thaw(b.ctx(), b.id), caisson.Conflict)
}

func testFreezeDestroy(t *testing.T, s *suite) {
	f := s.freezer(t)
	b := s.create(t, "counter", "/count")
	if err := f.Freeze(b.ctx(), b.id); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	_, err := s.Runtime.Exec(b.ctx(), b.id, caisson.RuntimeExec{Command: s.argv("echo")})
	wantKind(t, "Exec in a frozen sandbox", err, caisson.Conflict)
	if err := s.Runtime.Destroy(b.ctx(), b.id); err != nil {
		t.Errorf("Destroy of a frozen sandbox: %v", err)
	}
	wantDone(t, "after Destroy", s.Runtime.Done(b.id))
}
