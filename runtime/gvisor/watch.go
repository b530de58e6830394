package gvisor

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher waits for processes to exit, whether they are children or not, with a single thread: a pidfd becomes readable when
// its process exits.
type watcher struct {
	epoll int // epoll descriptor with stop and all pidfds
	stop  int // eventfd; writing to it makes run return

	mu    sync.Mutex
	procs map[int32]func() // functions to call at the exit of a process, by its pidfd; nil after close; guarded by mu
	ended chan struct{}    // closed when run has returned
}

// newWatcher returns a watcher and starts its goroutine.
func newWatcher() (*watcher, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	w := &watcher{epoll: epoll, stop: stop, procs: map[int32]func(){}, ended: make(chan struct{})}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(stop)}); err != nil {
		return nil, err
	}
	go w.run()
	return w, nil
}

// add makes the watcher call onExit when process pid has exited, and reap the process if it is a child. onExit may be nil. It
// is called on the watcher's goroutine and must not block. Returns an error if there is no such process.
func (w *watcher) add(pid int, onExit func()) error {
	fd, err := unix.PidfdOpen(pid, 0) // a pidfd is always close-on-exec
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.procs == nil {
		unix.Close(fd)
		return os.ErrClosed
	}
	w.procs[int32(fd)] = onExit
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		delete(w.procs, int32(fd))
		unix.Close(fd)
		return err
	}
	return nil
}

// run calls the onExit functions of processes that exit. It is the watcher's goroutine.
func (w *watcher) run() {
	defer close(w.ended)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, e := range events[:max(n, 0)] {
			if int(e.Fd) == w.stop {
				return
			}
			w.mu.Lock()
			onExit, ok := w.procs[e.Fd]
			delete(w.procs, e.Fd)
			w.mu.Unlock()
			if !ok {
				continue // The exit was handled before; the descriptor's number may be in use for another file now.
			}
			unix.Waitid(unix.P_PIDFD, int(e.Fd), nil, unix.WEXITED|unix.WNOHANG, nil) // fails with ECHILD if it is not a child
			// Close alone does not remove the pidfd from the epoll set while a child between fork and exec has a copy of it.
			unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, int(e.Fd), nil)
			unix.Close(int(e.Fd))
			if onExit != nil {
				onExit()
			}
		}
	}
}

// close stops the watcher. No onExit function is called after close returns.
func (w *watcher) close() error {
	unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-w.ended
	w.mu.Lock()
	defer w.mu.Unlock()
	for fd := range w.procs {
		unix.Close(int(fd))
	}
	w.procs = nil
	unix.Close(w.stop)
	return unix.Close(w.epoll)
}
