package guestd

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file has the functions with which [Main] fills the fields of a [ProcessEnv].

// notify implements ProcessEnv.Notify: it makes signals to this process arrive on the returned channel.
func notify(signals ...syscall.Signal) <-chan syscall.Signal {
	in, out := make(chan os.Signal, 16), make(chan syscall.Signal)
	for _, s := range signals {
		signal.Notify(in, s)
	}
	go func() { // this goroutine runs until the process exits
		for s := range in {
			out <- s.(syscall.Signal)
		}
	}()
	return out
}

// terminalSize implements ProcessEnv.TerminalSize: it returns the size of the terminal at standard input.
func terminalSize() (rows, cols uint16, err error) {
	size, err := unix.IoctlGetWinsize(int(os.Stdin.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, err
	}
	return size.Row, size.Col, nil
}

// spawn implements ProcessEnv.Spawn: it forks a child that sleeps. The child does not execute a program: tests exhaust the limit
// on processes and threads, and a Go program that cannot start a thread crashes.
func spawn() (kill func(), err error) {
	parent := os.Getpid()
	pid := fork(uintptr(parent))
	if pid < 0 {
		return nil, syscall.Errno(-pid)
	}
	return func() {
		syscall.Kill(pid, syscall.SIGKILL)
		var status syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
				return
			}
		}
	}, nil
}

// fork forks a child of the process parent that sleeps until it is killed or parent exits. It returns the child's pid, or a
// negative errno. In the child, which has only one thread, fork does not return and makes only raw system calls, because the Go
// runtime does not work after a fork.
//
//go:norace
//go:noinline
func fork(parent uintptr) int {
	pid, _, number := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if number != 0 {
		return -int(number)
	}
	if pid != 0 {
		return int(pid)
	}
	syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0)
	if now, _, _ := syscall.RawSyscall(syscall.SYS_GETPPID, 0, 0, 0); now != parent {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
	for {
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}
