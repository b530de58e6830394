package gvisor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// signalTimeout is the timeout for delivering a signal if the caller passes no context: when a terminal is used or resized, and
// when an exec session is closed.
const signalTimeout = 5 * time.Second

// sendSignal makes gVisor deliver a signal to a process or, depending on mode, to the foreground process group of its terminal.
func sendSignal(ctx context.Context, s *sandbox, pid, signal int, mode protocol.SignalMode) error {
	return s.call(ctx, protocol.MethodSignal,
		&protocol.SignalArgs{CID: string(s.id), Signo: int32(signal), PID: int32(pid), Mode: mode}, nil)
}

// Signal implements [caisson.Runtime].
func (r *Runtime) Signal(ctx context.Context, id caisson.ID, pid, signal int) error {
	s, err := r.getRunning(id)
	if err != nil {
		return err
	}
	if signal < 1 || signal > 64 {
		return caisson.Invalidf("signal", "%d is not a signal; use 1 to 64", signal)
	}
	if pid > 0 {
		return signalError(sendSignal(ctx, s, pid, signal, protocol.SignalProcess), pid)
	}
	if pid != -1 {
		return caisson.Invalidf("pid", "%d is not a process id; use -1 for all", pid)
	}
	// The sandbox is frozen, so that no process can escape the signal by forking.
	return s.whileFrozen(ctx, false, func() error { return s.signalAll(ctx, signal) })
}

// signalAll sends a signal to all processes except init. The sandbox must be frozen.
func (s *sandbox) signalAll(ctx context.Context, signal int) error {
	procs, err := s.processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range procs {
		if p.PID == initPID {
			continue
		}
		if err := sendSignal(ctx, s, p.PID, signal, protocol.SignalProcess); err != nil && !isNoProcess(err) {
			return err
		}
	}
	return nil
}

// isNoProcess reports whether err is gVisor's error for a process that does not exist. The text is compared, because gVisor's
// errors have no codes.
func isNoProcess(err error) bool {
	var remote remoteError
	return errors.As(err, &remote) && (strings.Contains(remote.msg, "no such process") || strings.Contains(remote.msg, "no thread group"))
}

// signalError returns NotFound if err means that the process does not exist, else err.
func signalError(err error, pid int) error {
	if err != nil && isNoProcess(err) {
		return caisson.Wrap(err, caisson.NotFound, "the sandbox has no process %d", pid)
	}
	return err
}
