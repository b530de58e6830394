package runtimetest

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
)

const (
	sigInt  = int(syscall.SIGINT)
	sigKill = int(syscall.SIGKILL)
	sigTerm = int(syscall.SIGTERM)
)

var signalTests = []test{
	{"SignalDeath", testSignalDeath},
	{"SignalIgnored", testSignalIgnored},
	{"SignalPID", testSignalPID},
	{"SignalAll", testSignalAll},
	{"SignalRefused", testSignalRefused},
}

// testSignalDeath checks the exit status of processes that a signal has ended.
func testSignalDeath(t *testing.T, s *suite) {
	b := s.create(t)
	for _, sig := range []int{sigTerm, sigInt, sigKill} {
		p := b.exec(caisson.RuntimeExec{Command: []string{"sleep", "1h"}})
		check(t, fmt.Sprint("Signal ", sig), p.Signal(b.ctx(), sig))
		if got := b.wait(p); got != (caisson.ExitStatus{Code: 128 + sig, Signal: sig}) {
			t.Errorf("signal %d ended it with %+v", sig, got)
		}
	}
}

// testSignalIgnored sends SIGTERM and then SIGKILL to a process that ignores SIGTERM.
func testSignalIgnored(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"ignore-term"}})
	wantLine(b, lines(p.Stdout()), "ready")
	for _, sig := range []int{sigTerm, sigKill} {
		check(t, fmt.Sprint("Signal ", sig), p.Signal(b.ctx(), sig))
	}
	if got := b.wait(p); got.Signal != sigKill {
		t.Errorf("ended with %+v, want SIGKILL and not the SIGTERM before it", got)
	}
}

// testSignalPID checks that a signal to one process does not affect others.
func testSignalPID(t *testing.T, s *suite) {
	b := s.create(t)
	first := b.exec(caisson.RuntimeExec{Command: []string{"sleep", "1h"}})
	second := b.exec(caisson.RuntimeExec{Command: []string{"sleep", "1h"}})
	must(t, "Signal", s.Runtime.Signal(b.ctx(), b.id, first.PID(), sigTerm))
	if got := b.wait(first); got.Signal != sigTerm {
		t.Errorf("ended with %+v", got)
	}
	if _, ok := b.processes()[second.PID()]; !ok {
		t.Error("the signal to one process ended another")
	}
}

// testSignalAll sends a signal to all processes of a sandbox, which must not end the sandbox itself.
func testSignalAll(t *testing.T, s *suite) {
	b := s.create(t, "sleep", "1h")
	p := b.exec(caisson.RuntimeExec{Command: []string{"sleep", "1h"}})
	must(t, "Signal", s.Runtime.Signal(b.ctx(), b.id, -1, sigKill))
	if got := b.wait(p); got.Signal != sigKill {
		t.Errorf("the session ended with %+v", got)
	}
	if got, err := s.Runtime.WaitCommand(b.ctx(), b.id); err != nil || got.Signal != sigKill {
		t.Errorf("the command ended with %+v, %v", got, err)
	}
	b.wantAlive()
}

// testSignalRefused sends invalid signals, and signals to processes that do not exist.
func testSignalRefused(t *testing.T, s *suite) {
	b := s.create(t)
	wantKind(t, "an unknown process", s.Runtime.Signal(b.ctx(), b.id, 30000, sigTerm), caisson.NotFound)
	for _, sig := range []int{-1, 0, 65, 1 << 20} {
		wantKind(t, "no signal", s.Runtime.Signal(b.ctx(), b.id, -1, sig), caisson.Invalid)
	}
	for _, pid := range []int{0, -2} {
		wantKind(t, "no process id", s.Runtime.Signal(b.ctx(), b.id, pid, sigTerm), caisson.Invalid)
	}
	p := b.exec(caisson.RuntimeExec{Command: []string{"exit", "0"}})
	b.wait(p)
	if err := p.Signal(b.ctx(), sigTerm); err != nil && caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("a signal to a session that has ended: %v; want none, or that it was not found", err)
	}
}
