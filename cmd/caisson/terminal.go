package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// signalTimeout is the time limit for sending a signal to a process.
const signalTimeout = 5 * time.Second

// safeWriter returns a writer to w. If w is a terminal, the writer filters output that could deceive the user or control the
// terminal, unless --raw-tty was given. The caller must call the returned function at the end of the output.
func (a *app) safeWriter(w io.Writer, mode safetext.Mode) (io.Writer, func() error) {
	if !isTerminal(w) || a.globals.RawTTY {
		return w, func() error { return nil }
	}
	f := safetext.NewFilter(w, mode)
	return f, f.Close
}

// copySafely copies r to w. If w is a terminal, it filters what could deceive the user, unless --raw-tty was given.
func copySafely(a *app, w io.Writer, r io.Reader, mode safetext.Mode) error {
	out, end := a.safeWriter(w, mode)
	_, err := io.Copy(out, r)
	if endErr := end(); err == nil {
		err = endErr
	}
	return err
}

// console connects a process in a sandbox with the user's terminal or other standard streams.
type console struct{ *app }

// copyOutput copies the output r of p to w, which may be a terminal. If writing fails, p is killed, because its output would be
// lost.
func (a console) copyOutput(w io.Writer, p caisson.Process, r io.Reader, mode safetext.Mode) error {
	defer a.restoreOnPanic()
	if err := copySafely(a.app, w, r, mode); err != nil {
		_ = p.Close() // the first error is more useful than that of Close
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// copyInput copies standard input to p and closes it at the end. It may outlive the process, because reading a terminal cannot be
// interrupted.
func (a console) copyInput(p caisson.Process) {
	defer a.restoreOnPanic()
	stdin := p.Stdin()
	if stdin == nil {
		return
	}
	_, _ = io.Copy(stdin, a.in) // the error is ignored: a process may close its input
	_ = stdin.Close()
}

// rawTerminal connects the terminal to p in raw mode: keys are passed on unchanged, and p is notified of every change of size.
// The caller must call restore, also after a panic; it may be called more than once.
func (a console) rawTerminal(ctx context.Context, p caisson.Process) (restore func(), err error) {
	in, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil, usagef("exec", "standard input is not a terminal; leave out -t")
	}
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("set the terminal to raw mode: %w", err)
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-resized:
				if rows, cols := terminalSize(a.in, a.out); rows > 0 {
					_ = p.Resize(rows, cols) // the error is ignored: the next change of size tries again
				}
			case <-done:
				return
			}
		}
	}()
	// In raw mode, keys such as Ctrl-C send no signals, so that a signal comes from another process. It ends the connection to p.
	release := a.interrupts.setHandler(func(s os.Signal) {
		a.interrupts.setCancelledBy(s)
		_ = p.Close()
	})
	var once sync.Once
	a.restore = func() {
		once.Do(func() {
			release()
			signal.Stop(resized)
			close(done)
			_ = term.Restore(int(in.Fd()), old)
		})
	}
	return a.restore, nil
}

// restoreOnPanic restores the terminal after a panic of a goroutine other than the command's, before the panic ends the program.
// It must be deferred.
func (a *app) restoreOnPanic() {
	if r := recover(); r != nil {
		if a.restore != nil {
			a.restore()
		}
		panic(r)
	}
}

// terminalSize returns the size in characters of the first of fs that is a terminal, or 0, 0 if none is one.
func terminalSize(fs ...any) (rows, cols uint16) {
	for _, f := range fs {
		if file, ok := f.(*os.File); ok {
			if w, h, err := term.GetSize(int(file.Fd())); err == nil && w > 0 && h > 0 && w < 1<<16 && h < 1<<16 {
				return uint16(h), uint16(w)
			}
		}
	}
	return 0, 0
}

// forwardInterrupts sends the first signal that this program receives to p, and kills p at the second one, until release is
// called.
func (a console) forwardInterrupts(ctx context.Context, p caisson.Process) (release func()) {
	sent := false
	return a.interrupts.setHandler(func(s os.Signal) {
		sig, ok := s.(syscall.Signal)
		if sent || !ok {
			a.interrupts.setCancelledBy(s)
			_ = p.Close()
			return
		}
		sent = true
		ctx, cancel := context.WithTimeout(ctx, signalTimeout)
		defer cancel()
		if err := p.Signal(ctx, int(sig)); err != nil {
			_ = p.Close()
		}
	})
}
