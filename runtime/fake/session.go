package fake

import (
	"context"
	"io"
	"strings"
	"sync"
	"syscall"

	"github.com/caisson-dev/caisson"
)

// A session is the [caisson.Process] of one exec session: it holds the caller's ends of the process's streams.
type session struct {
	p          *Proc          // the process that was executed
	stdin      io.WriteCloser // nil if the process has no standard input
	stdout     *pipe          // standard output, or the output of the terminal
	stderr     io.Reader      // empty with a terminal
	stderrPipe *pipe          // source of stderr; nil with a terminal
	once       sync.Once      // makes only the first call of Close take effect
}

// newSession creates the streams or the terminal of p as e specifies.
func newSession(p *Proc, e caisson.RuntimeExec) *session {
	s := &session{p: p, stdout: newPipe()}
	if e.TTY {
		t := &tty{in: newPipe(), out: s.stdout, rows: e.Rows, cols: e.Cols}
		t.interrupt = func() { s.deliver(syscall.SIGINT) }
		p.tty, p.stdin, p.out, p.errOut = t, t.in, ttyOutput{t}, ttyOutput{t}
		s.stdout.addWriter()
		s.stderr = strings.NewReader("")
		if e.Stdin {
			s.stdin = &ttyInput{tty: t}
		}
		return s
	}
	s.stderrPipe = newPipe()
	s.stderr = pipeReader{s.stderrPipe}
	p.out, p.errOut = pipeOutput{s.stdout}, pipeOutput{s.stderrPipe}
	if e.Stdin {
		p.stdin = newPipe()
		s.stdin = &pipeWriter{pipe: p.stdin}
	}
	return s
}

func (s *session) PID() int { return s.p.pid }

// Stdin returns an untyped nil if the process has no standard input.
func (s *session) Stdin() io.WriteCloser { return s.stdin }
func (s *session) Stdout() io.Reader     { return pipeReader{s.stdout} }
func (s *session) Stderr() io.Reader     { return s.stderr }

func (s *session) Resize(rows, cols uint16) error {
	if s.p.tty == nil {
		return caisson.Errorf(caisson.Conflict, "the process has no terminal")
	}
	s.p.tty.resize(rows, cols)
	s.deliver(syscall.SIGWINCH)
	return nil
}

func (s *session) Signal(_ context.Context, signal int) error {
	if err := checkSignal(signal); err != nil {
		return err
	}
	s.deliver(syscall.Signal(signal))
	return nil
}

// deliver sends a signal to the process, unless it has ended.
func (s *session) deliver(signal syscall.Signal) {
	s.p.sandbox.mu.Lock()
	defer s.p.sandbox.mu.Unlock()
	s.p.sandbox.signal(s.p, signal)
}

func (s *session) Wait(ctx context.Context) (caisson.ExitStatus, error) { return s.p.wait(ctx) }

func (s *session) Close() error {
	s.once.Do(func() {
		s.deliver(syscall.SIGKILL)
		s.stdout.closeRead()
		if s.stderrPipe != nil {
			s.stderrPipe.closeRead()
		}
		if s.p.stdin != nil {
			s.p.stdin.closeRead()
		}
	})
	return nil
}
