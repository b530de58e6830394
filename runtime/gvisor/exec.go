package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// session is an exec session. It implements [caisson.Process].
type session struct {
	s      *sandbox       // the sandbox in which the process runs
	pid    int            // PID of the process in the sandbox
	stdin  io.WriteCloser // nil if the process has no standard input
	stdout io.Reader      // standard output, or the output of the terminal
	stderr io.Reader      // empty with a TTY
	tty    *os.File       // master of the pseudo-terminal; nil without a TTY
	close  []*os.File     // this process's ends of the streams, which closeAll closes

	cancel    context.CancelFunc // makes the goroutine of wait return
	ended     chan struct{}      // closed after status and err are set
	status    caisson.ExitStatus // how the process has ended
	err       error              // why status is not set; nil if it is set
	closeOnce sync.Once          // makes only the first call of Close take effect
}

// Exec implements [caisson.Runtime].
func (r *Runtime) Exec(ctx context.Context, id caisson.ID, e caisson.RuntimeExec) (caisson.Process, error) {
	s, err := r.getRunning(id)
	if err != nil {
		return nil, err
	}
	if err := checkCommand(e.Command, e.User, false); err != nil {
		return nil, err
	}
	frozen, unlock, err := s.lockFrozen(ctx)
	if err != nil {
		return nil, err
	}
	unlock()
	if frozen {
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s is frozen", id)
	}
	p := &session{s: s, ended: make(chan struct{})}
	theirs, err := p.openStreams(e)
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	if err != nil {
		p.closeAll()
		return nil, err
	}
	args := execArgs(id, e)
	var pid int32
	if err := s.call(ctx, protocol.MethodExecuteAsync, args, &pid, theirs...); err != nil {
		p.closeAll()
		return nil, execError(e, err)
	}
	p.pid = int(pid)
	waitCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel = cancel
	go p.wait(waitCtx)
	return p, nil
}

// execArgs translates a RuntimeExec to gVisor's arguments. For a user given by name, the command is started through guestd,
// which looks the name up in the guest.
func execArgs(id caisson.ID, e caisson.RuntimeExec) *protocol.ExecArgs {
	args := &protocol.ExecArgs{
		Argv: e.Command, Envv: withPath(e.Env), WorkingDirectory: cmp.Or(e.Workdir, "/"),
		ContainerID: string(id), StdioIsPty: e.TTY, Capabilities: taskCapabilities(), GuestFDs: []int{0, 1, 2},
	}
	uid, gid, numeric := numericUser(e.User)
	if numeric {
		args.KUID, args.KGID = uid, gid
	} else {
		args.Argv = append([]string{guestdPath}, runArgs(e.User, args.WorkingDirectory, e.Command)...)
		args.WorkingDirectory = "/"
	}
	return args
}

// numericUser parses "", "0" and "UID:GID". ok is false for other values, including a UID alone, whose primary group may be in
// the guest's passwd.
func numericUser(user string) (uid, gid uint32, ok bool) {
	u, g, both := strings.Cut(user, ":")
	if !both {
		return 0, 0, u == "" || u == "0"
	}
	n, err := strconv.ParseUint(u, 10, 16)
	m, err2 := strconv.ParseUint(g, 10, 16)
	return uint32(n), uint32(m), err == nil && err2 == nil
}

// checkCommand returns Invalid if the command is empty, unless it is optional, or if a numeric id in user is not one of those
// that a sandbox has.
func checkCommand(command []string, user string, optional bool) error {
	if optional && len(command) == 0 {
		return nil
	}
	if len(command) == 0 || command[0] == "" {
		return caisson.Invalidf("command", "is empty; name a program")
	}
	for part := range strings.SplitSeq(user, ":") {
		digits := part != "" && strings.Trim(part, "0123456789") == ""
		if n, err := strconv.ParseUint(part, 10, 64); digits && (err != nil || n >= caisson.UIDRange) {
			return caisson.Invalidf("user", "%.40s is not an id in the sandbox; use 0 to %d", part, caisson.UIDRange-1)
		}
	}
	return nil
}

// taskCapabilities returns the capabilities of processes started with exec, in gVisor's form.
func taskCapabilities() *protocol.TaskCapabilities {
	var set uint64
	for _, name := range capabilities {
		if c, ok := capabilityNumbers[name]; ok {
			set |= 1 << c
		}
	}
	return &protocol.TaskCapabilities{PermittedCaps: set, EffectiveCaps: set, BoundingCaps: set}
}

// capabilityNumbers maps the names in capabilities to their numbers in Linux.
var capabilityNumbers = map[string]int{
	"CAP_AUDIT_WRITE": unix.CAP_AUDIT_WRITE, "CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE,
	"CAP_FOWNER": unix.CAP_FOWNER, "CAP_FSETID": unix.CAP_FSETID, "CAP_KILL": unix.CAP_KILL, "CAP_MKNOD": unix.CAP_MKNOD,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_SETFCAP": unix.CAP_SETFCAP,
	"CAP_SETGID": unix.CAP_SETGID, "CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_SETUID": unix.CAP_SETUID,
	"CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT,
}

// execError converts the error of a program that could not be started. gVisor's errors have no codes, so their text is compared.
func execError(e caisson.RuntimeExec, err error) error {
	var remote remoteError
	if !errors.As(err, &remote) {
		return err
	}
	for _, s := range []string{"no such file", "not found", "permission denied", "is a directory", "not a directory", "exec format", "error finding executable", "failed to load"} {
		if strings.Contains(remote.msg, s) {
			return caisson.Wrap(err, caisson.Invalid, "cannot execute %.200q in the sandbox; check the name, PATH, its permissions and the working directory", e.Command[0])
		}
	}
	if strings.Contains(remote.msg, "has stopped") || strings.Contains(remote.msg, "not started") {
		return caisson.Wrap(err, caisson.Conflict, "the sandbox has stopped")
	}
	return fmt.Errorf("exec: %w", err)
}

// openStreams creates the process's standard streams. theirs are the process's ends: three files, of which some may be equal. The
// caller must close theirs, also after an error.
func (p *session) openStreams(e caisson.RuntimeExec) (theirs []*os.File, err error) {
	if e.TTY {
		master, slave, err := openPTY(e.Rows, e.Cols)
		if err != nil {
			return nil, err
		}
		p.tty, p.stdin, p.stdout, p.stderr = master, &ttyInput{f: master, signal: p.sendTerminalSignal}, ttyOutput{master}, strings.NewReader("")
		p.close = []*os.File{master}
		return []*os.File{slave, slave, slave}, nil
	}
	if e.Stdin {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		p.stdin, p.close = w, append(p.close, w)
		theirs = append(theirs, r)
	} else {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, null)
	}
	for _, out := range []*io.Reader{&p.stdout, &p.stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		*out, p.close = r, append(p.close, r)
		theirs = append(theirs, w)
	}
	return theirs, nil
}

// wait waits until the process has exited and sets p.status and p.err. It is the session's goroutine.
func (p *session) wait(ctx context.Context) {
	defer close(p.ended)
	defer p.cancel()
	p.status, p.err = p.s.waitPID(ctx, p.pid)
}

// PID implements [caisson.Process].
func (p *session) PID() int { return p.pid }

// Stdin implements [caisson.Process].
func (p *session) Stdin() io.WriteCloser { return p.stdin }

// Stdout implements [caisson.Process].
func (p *session) Stdout() io.Reader { return p.stdout }

// Stderr implements [caisson.Process].
func (p *session) Stderr() io.Reader { return p.stderr }

// Resize implements [caisson.Process]. gVisor reads the terminal's size from the host but does not notice changes, so Resize
// sends SIGWINCH to the foreground process group.
func (p *session) Resize(rows, cols uint16) error {
	if p.tty == nil {
		return caisson.Errorf(caisson.Conflict, "the process has no terminal")
	}
	if err := setSize(p.tty, rows, cols); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), signalTimeout)
	defer cancel()
	return p.Signal(ctx, int(unix.SIGWINCH))
}

// sendTerminalSignal delivers a signal that a key of the terminal sends. Errors are ignored: the processes may have exited.
func (p *session) sendTerminalSignal(signal unix.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), signalTimeout)
	defer cancel()
	_ = p.Signal(ctx, int(signal))
}

// Signal implements [caisson.Process].
func (p *session) Signal(ctx context.Context, signal int) error {
	select {
	case <-p.ended: // the PID may have been reused
		return caisson.Errorf(caisson.NotFound, "process %d has ended", p.pid)
	default:
	}
	mode := protocol.SignalProcess
	if p.tty != nil {
		mode = protocol.SignalForegroundGroup
	}
	err := sendSignal(ctx, p.s, p.pid, signal, mode)
	var remote remoteError
	if errors.As(err, &remote) && mode != protocol.SignalProcess {
		// There is no foreground process group until the process has acquired the terminal.
		err = sendSignal(ctx, p.s, p.pid, signal, protocol.SignalProcess)
	}
	return signalError(err, p.pid)
}

// Wait implements [caisson.Process].
func (p *session) Wait(ctx context.Context) (caisson.ExitStatus, error) {
	select {
	case <-p.ended:
		return p.status, p.err
	case <-ctx.Done():
		return caisson.ExitStatus{}, context.Cause(ctx)
	}
}

// Close implements [caisson.Process].
func (p *session) Close() error {
	p.closeOnce.Do(func() {
		select {
		case <-p.ended:
		default:
			ctx, cancel := context.WithTimeout(context.Background(), signalTimeout)
			defer cancel()
			sendSignal(ctx, p.s, p.pid, int(unix.SIGKILL), protocol.SignalProcess) // fails if the process has just exited
			select {
			case <-p.ended:
			case <-ctx.Done():
				p.cancel()
			}
		}
		p.closeAll()
	})
	return nil
}

// closeAll closes this process's ends of the streams.
func (p *session) closeAll() {
	for _, f := range p.close {
		f.Close()
	}
}
