package terminal

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// killGrace is the time between SIGHUP and SIGKILL for a program that is killed.
const killGrace = 2 * time.Second

// maxRest is the maximum number of bytes of output that are read after the program's end, as other processes may still write.
const maxRest = 1 << 20

// A ptyProgram is a [Program] that runs as a process at a pseudoterminal.
type ptyProgram struct {
	cmd    *exec.Cmd     // the process of the program
	fd     int           // file descriptor of the field master
	master *os.File      // the end of the pseudoterminal that this process uses
	slave  *os.File      // the program's end, kept open so that the terminal does not hang up if the program closes it
	ended  chan struct{} // closed when the program has ended
	rest   int           // number of bytes that may still be read after the program's end

	closing sync.RWMutex // held for reading while fd is used; Close holds it for writing, after which fd may be another file's
	closed  bool         // master is closed; guarded by closing
}

// Start starts cmd, in a new session of processes, at a new pseudoterminal of the given size that belongs to the user uid.
func Start(cmd *exec.Cmd, rows, cols uint16, uid int) (_ Program, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("open /dev/ptmx", err)
	}
	p := &ptyProgram{cmd: cmd, fd: fd, master: os.NewFile(uintptr(fd), "/dev/ptmx"), ended: make(chan struct{}), rest: maxRest}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, os.NewSyscallError("unlock the terminal", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, os.NewSyscallError("find the terminal", err)
	}
	name := "/dev/pts/" + strconv.Itoa(n)
	if p.slave, err = os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, err
	}
	if err := os.Chown(name, uid, -1); err != nil && uid != os.Getuid() {
		return nil, err
	}
	if err := p.Resize(rows, cols); err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.slave, p.slave, p.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		cmd.Wait() // the exit status is in cmd.ProcessState
		close(p.ended)
		p.master.SetReadDeadline(time.Unix(1, 0)) // makes a call of Read that waits return
	}()
	return p, nil
}

// PID implements [Program]: it returns the pid of the program.
func (p *ptyProgram) PID() int { return p.cmd.Process.Pid }

// Read implements [Program]. After the program has ended, it returns io.EOF even if another process still has the terminal open.
func (p *ptyProgram) Read(b []byte) (int, error) {
	select {
	case <-p.ended:
	default:
		n, err := p.master.Read(b)
		if n > 0 {
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			<-p.ended
			return 0, err // the terminal has hung up, because the session's leader has exited; all output was read before
		}
	}
	for p.rest > 0 {
		n, err := unix.Read(p.fd, b[:min(len(b), p.rest)])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 { // all output was read, or the terminal has hung up
			break
		}
		p.rest -= n
		return n, nil
	}
	return 0, io.EOF
}

// Write implements [Program]: it writes to the pseudoterminal.
func (p *ptyProgram) Write(b []byte) (int, error) { return p.master.Write(b) }

// control calls f with the file descriptor of master. Returns os.ErrClosed if master is closed.
func (p *ptyProgram) control(f func(fd int) error) error {
	p.closing.RLock()
	defer p.closing.RUnlock()
	if p.closed {
		return os.ErrClosed
	}
	return f(p.fd)
}

// Resize implements [Program]. The kernel sends SIGWINCH to the foreground process group.
func (p *ptyProgram) Resize(rows, cols uint16) error {
	return p.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// Signal implements [Program]. If there is no foreground process group, the program's group gets the signal.
func (p *ptyProgram) Signal(signal int) error {
	return p.control(func(fd int) error {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		if err != nil || group <= 1 {
			group = p.PID()
		}
		select {
		case <-p.ended:
			return os.ErrProcessDone
		default:
			return unix.Kill(-group, syscall.Signal(signal))
		}
	})
}

// Exit implements [Program]. It waits until the program has ended.
func (p *ptyProgram) Exit() caisson.ExitStatus {
	<-p.ended
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		return caisson.ExitStatus{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
	case ok && status.Exited():
		return caisson.ExitStatus{Code: status.ExitStatus()}
	}
	return caisson.ExitStatus{Code: 255}
}

// Kill implements [Program]: it sends SIGHUP to the program's process group, and SIGKILL if it has not ended after killGrace.
func (p *ptyProgram) Kill() {
	p.signalGroup(unix.SIGHUP)
	go func() {
		select {
		case <-p.ended:
		case <-time.After(killGrace):
			p.signalGroup(unix.SIGKILL)
		}
	}()
}

// signalGroup sends a signal to the program's process group, unless the program has ended.
func (p *ptyProgram) signalGroup(signal syscall.Signal) {
	select {
	case <-p.ended: // send no signal, because the program's pid may be another process's
	default:
		unix.Kill(-p.PID(), signal)
	}
}

// Close implements [Program]: it closes both ends of the pseudoterminal. It is idempotent.
func (p *ptyProgram) Close() error {
	p.closing.Lock()
	defer p.closing.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	if p.slave != nil {
		p.slave.Close()
	}
	return p.master.Close()
}
