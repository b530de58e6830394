package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

const (
	// initPID is the PID of init, the first process of every sandbox.
	initPID = 1
	// commandPID is the PID of the sandbox's command, the only process that init starts.
	commandPID = 2
)

// Processes implements [caisson.Runtime]. It omits the command's zombie, which init keeps for its exit status.
func (r *Runtime) Processes(ctx context.Context, id caisson.ID) ([]caisson.ProcessInfo, error) {
	s, err := r.getRunning(id)
	if err != nil {
		return nil, err
	}
	return s.processes(ctx)
}

// processes returns the processes of a running sandbox, without the command's zombie.
func (s *sandbox) processes(ctx context.Context) ([]caisson.ProcessInfo, error) {
	cid := string(s.id)
	var procs []*protocol.Process
	if err := s.call(ctx, protocol.MethodProcesses, &cid, &procs); err != nil {
		return nil, err
	}
	list := make([]caisson.ProcessInfo, 0, len(procs))
	for _, p := range procs {
		if p == nil {
			continue
		}
		if p.PID == commandPID && s.state.HasCommand {
			if state, err := s.processState(ctx, commandPID); err == nil && state == 'Z' {
				continue
			}
		}
		list = append(list, caisson.ProcessInfo{
			PID: int(p.PID), PPID: int(p.PPID), UID: int(p.UID), Command: p.Cmd, CPUTime: p.Time, Threads: len(p.Threads),
		})
	}
	return list, nil
}

// processState returns the state of a process from /proc/PID/stat in the guest: R, S, D, T or Z. gVisor's list of processes
// does not contain it, but gVisor can read files of the guest even while the sandbox is frozen.
func (s *sandbox) processState(ctx context.Context, pid int) (byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	opts := &protocol.ReadOpts{ContainerID: string(s.id), Path: fmt.Sprintf("/proc/%d/stat", pid), Size: 4096}
	err = s.call(ctx, protocol.MethodRead, opts, nil, w)
	w.Close()
	if err != nil {
		return 0, err
	}
	// The content was written completely, because a pipe has room for more than 4096 bytes. If the sentry keeps its end of
	// the pipe open, the read fails at the deadline.
	if err := r.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	data, err := io.ReadAll(io.LimitReader(r, 4096))
	if err != nil {
		return 0, err
	}
	return parseState(data)
}

// parseState parses the state in the content of /proc/PID/stat. The second field is the command's name in parentheses and may
// contain any bytes.
func parseState(data []byte) (byte, error) {
	rest, ok := bytes.CutPrefix(data[bytes.LastIndexByte(data, ')')+1:], []byte(" "))
	if !ok || len(rest) == 0 {
		return 0, fmt.Errorf("malformed process state %.40q", data)
	}
	return rest[0], nil
}

// waitForCommand waits until init has started the command. From then on, the command's PID is not reused, because init does
// not reap it.
func (s *sandbox) waitForCommand(ctx context.Context) error {
	if !s.state.HasCommand {
		return nil
	}
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		_, err := s.processState(ctx, commandPID)
		var remote remoteError
		if !errors.As(err, &remote) {
			return err // err is nil if the command exists
		}
		select {
		case <-time.After(wait):
		case <-s.done:
			return fmt.Errorf("the sandbox ended before its command began: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// WaitCommand implements [caisson.Runtime].
func (r *Runtime) WaitCommand(ctx context.Context, id caisson.ID) (caisson.ExitStatus, error) {
	s, err := r.get(id)
	if err != nil {
		return caisson.ExitStatus{}, err
	}
	if !s.state.HasCommand {
		return caisson.ExitStatus{}, caisson.Errorf(caisson.Conflict, "sandbox %s has no command to wait for", id)
	}
	if st := s.exit.Load(); st != nil {
		return *st, nil
	}
	st, err := s.waitPID(ctx, commandPID)
	if err == nil && !st.Unknown {
		s.exit.Store(&st) // Later calls return the stored status, which cannot be read again after the sandbox has stopped.
	}
	return st, err
}

// waitPID waits until a process of the sandbox has exited. If it does not exist, or the sandbox stops, the status is unknown.
func (s *sandbox) waitPID(ctx context.Context, pid int) (caisson.ExitStatus, error) {
	var ws uint32
	err := s.call(ctx, protocol.MethodWaitPID, &protocol.WaitPIDArgs{PID: int32(pid), CID: string(s.id)}, &ws)
	var remote remoteError
	switch {
	case err == nil:
		return exitStatus(unix.WaitStatus(ws)), nil
	case ctx.Err() != nil:
		return caisson.ExitStatus{}, context.Cause(ctx)
	case errors.As(err, &remote):
		return caisson.ExitStatus{Code: -1, Unknown: true}, nil // the process no longer exists
	}
	return caisson.ExitStatus{Code: -1, Unknown: true, Reason: s.statusReason()}, nil
}

// exitStatus converts the status that wait(2) returns in the guest.
func exitStatus(ws unix.WaitStatus) caisson.ExitStatus {
	if ws.Signaled() {
		return caisson.ExitStatus{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return caisson.ExitStatus{Code: ws.ExitStatus()}
}
