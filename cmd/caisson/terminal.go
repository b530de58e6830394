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

// signalTimeout bounds how long a signal may take to reach a process.
const signalTimeout = 5 * time.Second

// safeWriter returns w, behind a filter if it is a terminal, and a function to end the output with.
func (a *app) safeWriter(w io.Writer, mode safetext.Mode) (io.Writer, func() error) {
	if !isTerminal(w) || a.globals.RawTTY {
		return w, func() error { return nil }
	}
	f := safetext.NewFilter(w, mode)
	return f, f.Close
}

// console is what connects a process inside to the person at this terminal.
type console struct{ *app }

// drain copies what p writes to w, which may be a terminal. If w takes no more, p is ended: nobody would see what it does.
func (a console) drain(w io.Writer, p caisson.Process, r io.Reader, mode safetext.Mode) error {
	defer a.mend()
	out, end := a.safeWriter(w, mode)
	_, err := io.Copy(out, r)
	if endErr := end(); err == nil {
		err = endErr
	}
	if err != nil {
		_ = p.Close() // the error at hand says more
		return fmt.Errorf("pass output on: %w", err)
	}
	return nil
}

// feed copies standard input to p and tells it where it ends. It may outlive the process: reading a terminal cannot be
// interrupted.
func (a console) feed(p caisson.Process) {
	defer a.mend()
	stdin := p.Stdin()
	if stdin == nil {
		return
	}
	_, _ = io.Copy(stdin, a.in) // a process that has stopped reading is no error
	_ = stdin.Close()
}

// rawTerminal gives the terminal to p: keys go there as they are, and it hears of every change of size. restore must be
// called, also after a panic; it may be called more than once.
func (a console) rawTerminal(ctx context.Context, p caisson.Process) (restore func(), err error) {
	in, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil, usagef("exec", "standard input is not a terminal; leave out -t")
	}
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("take over the terminal: %w", err)
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-resized:
				if rows, cols := terminalSize(a.in, a.out); rows > 0 {
					_ = p.Resize(rows, cols) // the next change tries again
				}
			case <-done:
				return
			}
		}
	}()
	// A signal from elsewhere ends the session; keys make none while the terminal is raw.
	release := a.interrupts.take(func(s os.Signal) {
		a.interrupts.abandon(s)
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

// mend gives the terminal back before a panic of a goroutine other than the command's ends the program.
func (a *app) mend() {
	if r := recover(); r != nil {
		if a.restore != nil {
			a.restore()
		}
		panic(r)
	}
}

// terminalSize returns the size of the first of fs that is a terminal, or 0, 0.
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

// forwardInterrupts passes the first interrupt on to p as the signal it is and kills p at the second.
func (a console) forwardInterrupts(ctx context.Context, p caisson.Process) (release func()) {
	sent := false
	return a.interrupts.take(func(s os.Signal) {
		sig, ok := s.(syscall.Signal)
		if sent || !ok {
			a.interrupts.abandon(s)
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
