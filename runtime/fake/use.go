package fake

import (
	"context"
	"errors"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
)

// Exec implements [caisson.Runtime].
func (r *Runtime) Exec(ctx context.Context, id caisson.ID, e caisson.RuntimeExec) (caisson.Process, error) {
	s, err := r.findFor(OpExec, id)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.requireRunning(); err != nil {
		return nil, err
	}
	p, err := s.newProc(e)
	if err != nil {
		return nil, err
	}
	p.origin = originExec
	session := newSession(p, e)
	switch err := s.start(p); {
	case errors.Is(err, syscall.EAGAIN):
		return nil, caisson.Errorf(caisson.Exhausted, "the sandbox has reached its limit of processes; end one first")
	case err != nil:
		return nil, s.notRunning()
	}
	return session, nil
}

// WaitCommand implements [caisson.Runtime].
func (r *Runtime) WaitCommand(ctx context.Context, id caisson.ID) (caisson.ExitStatus, error) {
	s, err := r.findFor(OpWaitCommand, id)
	if err != nil {
		return caisson.ExitStatus{}, err
	}
	s.mu.Lock()
	p := s.command
	s.mu.Unlock()
	if p == nil {
		return caisson.ExitStatus{}, caisson.Errorf(caisson.Conflict, "sandbox %s has no command to wait for", id)
	}
	return p.wait(ctx)
}

// wait waits until p has exited and returns its exit status.
func (p *Proc) wait(ctx context.Context) (caisson.ExitStatus, error) {
	select {
	case <-p.exited:
		return p.status, nil
	default:
	}
	select {
	case <-p.exited:
		return p.status, nil
	case <-ctx.Done():
		return caisson.ExitStatus{}, ctx.Err()
	}
}

// Done implements [caisson.Runtime].
func (r *Runtime) Done(id caisson.ID) <-chan struct{} {
	if s, err := r.find(id); err == nil {
		return s.done
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

// Signal implements [caisson.Runtime]. Signals to init other than SIGKILL are ignored.
func (r *Runtime) Signal(_ context.Context, id caisson.ID, pid, signal int) error {
	s, err := r.findFor(OpSignal, id)
	if err != nil {
		return err
	}
	if err := checkSignal(signal); err != nil {
		return err
	}
	if pid != -1 && pid < 1 {
		return caisson.Invalidf("pid", "%d is not a process; use -1 for all", pid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return s.notRunning()
	}
	if pid == -1 {
		for _, p := range s.table {
			if p.pid != initPID {
				s.signal(p, syscall.Signal(signal))
			}
		}
		return nil
	}
	p, ok := s.table[pid]
	if !ok {
		return caisson.Errorf(caisson.NotFound, "no process %d in sandbox %s", pid, id)
	}
	s.signal(p, syscall.Signal(signal))
	return nil
}

// checkSignal returns Invalid if signal is not a Linux signal number.
func checkSignal(signal int) error {
	if signal < 1 || signal > 64 {
		return caisson.Invalidf("signal", "%d is not a signal; use 1 to 64", signal)
	}
	return nil
}

// Processes implements [caisson.Runtime].
func (r *Runtime) Processes(_ context.Context, id caisson.ID) ([]caisson.ProcessInfo, error) {
	s, err := r.findFor(OpProcesses, id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return nil, s.notRunning()
	}
	out := make([]caisson.ProcessInfo, 0, len(s.table))
	for _, p := range s.table {
		out = append(out, caisson.ProcessInfo{
			PID: p.pid, PPID: p.ppid, UID: p.user.uid, Command: path.Base(p.args[0]), CPUTime: "0s", Threads: 1,
		})
	}
	slices.SortFunc(out, func(a, b caisson.ProcessInfo) int { return a.PID - b.PID })
	return out, nil
}

// Stats implements [caisson.Runtime]. It reports a hundredth of the elapsed time as CPU time.
func (r *Runtime) Stats(_ context.Context, id caisson.ID) (*caisson.Stats, error) {
	s, err := r.findFor(OpStats, id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return nil, s.notRunning()
	}
	now := time.Now()
	return &caisson.Stats{
		At: now, CPUNanos: 1 + int64(now.Sub(s.started)/100), Memory: caisson.Size(baseMemory + s.memory),
		MemoryMax: s.spec.Resources.Memory, PIDs: len(s.table),
	}, nil
}

// Written returns the size of the sandbox's files that differ from its image. Returns NotFound if the sandbox does not exist,
// and Conflict unless it is running and not frozen.
func (r *Runtime) Written(id caisson.ID) (caisson.Size, error) {
	s, err := r.find(id)
	if err != nil {
		return 0, err
	}
	if err := s.requireRunning(); err != nil {
		return 0, err
	}
	s.tree.mu.Lock()
	defer s.tree.mu.Unlock()
	n, err := s.tree.usedBytesLocked()
	return caisson.Size(n), err
}

// Freeze implements [caisson.Freezer].
func (r *Runtime) Freeze(ctx context.Context, id caisson.ID) error {
	s, err := r.findFor(OpFreeze, id)
	if err != nil {
		return err
	}
	if err := s.requireRunning(); err != nil {
		return err
	}
	return s.freeze(ctx)
}

// freeze blocks every process between two calls of [Proc.Step] and flushes the mounted directories.
func (s *sandbox) freeze(ctx context.Context) error {
	if _, err := s.barrier.close(ctx); err != nil {
		return err
	}
	err := s.tree.overlays.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = s.running
	return caisson.Wrap(err, caisson.Internal, "cannot write the upper layers of sandbox %s", s.id)
}

// Thaw implements [caisson.Freezer].
func (r *Runtime) Thaw(_ context.Context, id caisson.ID) error {
	s, err := r.findFor(OpThaw, id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.running:
		return s.notRunning()
	case !s.frozen:
		return caisson.Errorf(caisson.Conflict, "sandbox %s is not frozen", id)
	}
	s.frozen = false
	s.barrier.open()
	return nil
}

// requireRunning returns Conflict if the sandbox is frozen or not running.
func (s *sandbox) requireRunning() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.running:
		return s.notRunning()
	case s.frozen:
		return caisson.Errorf(caisson.Conflict, "sandbox %s is frozen; thaw it first", s.id)
	}
	return nil
}

// notRunning returns the error for a sandbox that is not running.
func (s *sandbox) notRunning() error {
	return caisson.Errorf(caisson.Conflict, "sandbox %s is not running", s.id)
}
