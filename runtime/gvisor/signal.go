package gvisor

import (
	"context"
	"errors"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/boot"

	"github.com/caisson-dev/caisson"
)

const signalTimeout = 5 * time.Second

func sendSignal(ctx context.Context, s *sandbox, pid, signal int, mode boot.SignalDeliveryMode) error {
	return s.call(ctx, boot.ContMgrSignal,
		&boot.SignalArgs{CID: string(s.id), Signo: int32(signal), PID: int32(pid), Mode: mode}, nil)
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
		return signalError(sendSignal(ctx, s, pid, signal, boot.DeliverToProcess), pid)
	}
	if pid != -1 {
		return caisson.Invalidf("pid", "%d is not a process id; use -1 for all", pid)
	}
	// The sandbox is frozen, so that no process can escape the signal by forking.
	return s.whileFrozen(ctx, false, func() error { return s.signalAll(ctx, signal) })
}

func (s *sandbox) signalAll(ctx context.Context, signal int) error {
	procs, err := s.processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range procs {
		if p.PID == initPID {
			continue
		}
		if err := sendSignal(ctx, s, p.PID, signal, boot.DeliverToProcess); err != nil && !isNoProcess(err) {
			return err
		}
	}
	return nil
}

func isNoProcess(err error) bool {
	var remote remoteError
	return errors.As(err, &remote) && (strings.Contains(remote.msg, "no such process") || strings.Contains(remote.msg, "no thread group"))
}

func signalError(err error, pid int) error {
	if err != nil && isNoProcess(err) {
		return caisson.Wrap(err, caisson.NotFound, "the sandbox has no process %d", pid)
	}
	return err
}
