package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// screen is a terminal with a command on it.
type screen struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	tty    *os.File
	before unix.Termios
	mu     sync.Mutex
	seen   bytes.Buffer // guarded by mu
}

// onScreen runs the command line on a terminal of its own, with a daemon that has a sandbox called web.
func onScreen(t *testing.T, args ...string) *screen {
	testneed.Root(t)
	dir := t.TempDir()
	env := append(append(os.Environ(), "TERM=xterm"), home(t, dir)...)
	t.Cleanup(func() { endDaemon(t, filepath.Join(dir, "data")) })
	create := exec.Command("caisson", "sandbox", "create", "--name", "web")
	create.Env = env
	if out, err := create.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	master, tty, err := pty.Open()
	if err != nil {
		testneed.Skip(t, "pty", err.Error())
	}
	s := &screen{t: t, cmd: exec.Command("caisson", args...), master: master, tty: tty}
	t.Cleanup(func() { master.Close(); tty.Close() })
	s.before = s.termios()
	s.cmd.Env = env
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = tty, tty, tty
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			s.mu.Lock()
			s.seen.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *screen) termios() unix.Termios {
	s.t.Helper()
	st, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *st
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.String()
}

func (s *screen) raw() bool { return s.termios().Lflag&unix.ICANON == 0 }

func (s *screen) await(what string, cond func() bool) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("waiting for %s; on the screen: %q", what, s.text())
		}
	}()
	poll.Until(s.t, 2*time.Minute, cond)
}

func TestTerminalSession(t *testing.T) {
	s := onScreen(t, "exec", "-it", "web", "--", "cat")
	s.await("raw mode", s.raw)
	// cat sends back what it gets: colours pass, the clipboard and questions do not.
	if _, err := io.WriteString(s.master, "in \x1b[31mred\x1b[m \x1b]52;c;ZXZpbA==\x07\x1b[6n\x1b[21t and end"); err != nil {
		t.Fatal(err)
	}
	s.await("the answer", func() bool { return strings.Contains(s.text(), "and end") })
	if got := s.text(); !strings.Contains(got, "in \x1b[31mred\x1b[m  and end") {
		t.Errorf("on the screen: %q", got)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err := s.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("ended with %v", err)
	}
	if s.termios() != s.before {
		t.Error("the terminal was not given back as it was")
	}
}

func TestTerminalRaw(t *testing.T) {
	s := onScreen(t, "exec", "--raw-tty", "-it", "web", "--", "cat")
	s.await("raw mode", s.raw)
	if _, err := io.WriteString(s.master, "\x1b]0;title\x07 end"); err != nil {
		t.Fatal(err)
	}
	s.await("everything", func() bool { return strings.Contains(s.text(), "\x1b]0;title\x07 end") })
	s.cmd.Process.Signal(syscall.SIGTERM)
	s.cmd.Wait()
}

func TestTerminalResize(t *testing.T) {
	s := onScreen(t, "exec", "-it", "web", "--", "size")
	s.await("raw mode", s.raw)
	rows := uint16(20)
	s.await("the new size", func() bool { // until the program looks
		if rows++; rows > 2000 {
			rows = 20
		}
		if err := pty.Setsize(s.master, &pty.Winsize{Rows: rows, Cols: 77}); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(s.text(), " 77")
	})
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if s.termios() != s.before {
		t.Error("the terminal was not given back as it was")
	}
}

func TestTerminalColours(t *testing.T) {
	s := onScreen(t, "sandbox", "ls")
	if err := s.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	s.await("a colour", func() bool { return strings.Contains(s.text(), "\x1b[32mrunning\x1b[00m") })
	s = onScreen(t, "sandbox", "ls", "--no-color")
	if err := s.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	s.await("the listing", func() bool { return strings.Contains(s.text(), "running") })
	if strings.Contains(s.text(), "\x1b") {
		t.Errorf("colours in spite of --no-color: %q", s.text())
	}
}

// memoryProcess is a process that ends when it is killed or closed, and remembers its signals.
type memoryProcess struct {
	signals chan int
	ended   chan struct{}
	once    sync.Once
}

func (p *memoryProcess) PID() int                    { return 1 }
func (p *memoryProcess) Stdin() io.WriteCloser       { return nil }
func (p *memoryProcess) Stdout() io.Reader           { return p }
func (p *memoryProcess) Stderr() io.Reader           { return strings.NewReader("") }
func (p *memoryProcess) Resize(uint16, uint16) error { return nil }

func (p *memoryProcess) Read([]byte) (int, error) {
	<-p.ended
	return 0, io.EOF
}

func (p *memoryProcess) Signal(_ context.Context, signal int) error {
	p.signals <- signal
	return nil
}

func (p *memoryProcess) Wait(context.Context) (caisson.ExitStatus, error) {
	<-p.ended
	return caisson.ExitStatus{Code: 137, Signal: 9}, nil
}

func (p *memoryProcess) Close() error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func TestSecondInterruptEndsTheSession(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal)
	a := &app{stdio: stdio{in: strings.NewReader(""), out: io.Discard, err: io.Discard}, interrupts: newInterrupts(cancel)}
	go a.interrupts.run(ctx, signals)
	defer close(signals)
	p := &memoryProcess{signals: make(chan int, 4), ended: make(chan struct{})}
	result := make(chan error, 1)
	go func() {
		_, err := console{a}.attach(ctx, p, caisson.ExecRequest{})
		result <- err
	}()
	poll.Until(t, 2*time.Minute, func() bool {
		a.interrupts.mu.Lock()
		defer a.interrupts.mu.Unlock()
		return a.interrupts.handler != nil
	})
	signals <- os.Interrupt
	if got := <-p.signals; got != int(syscall.SIGINT) {
		t.Errorf("the process got signal %d", got)
	}
	select {
	case err := <-result:
		t.Fatalf("the first interrupt ended the session: %v", err)
	default:
	}
	signals <- os.Interrupt
	if err := <-result; err != nil {
		t.Errorf("attach: %v", err)
	}
	if got := a.exitCode(processExit(137)); got != 137 {
		t.Errorf("exit code of a process that was seen to end: %d", got)
	}
	if got := a.exitCode(errors.New("session closed")); got != 130 {
		t.Errorf("exit code of an abandoned session: %d", got)
	}
	if ctx.Err() != nil {
		t.Error("the command was cancelled, so it could not clean up")
	}
}
