package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"golang.org/x/sys/unix"
)

// The delay before the wire process is started again. It doubles from minBackoff to maxBackoff, and is reset when a process has
// run for longer than backoffReset.
const (
	minBackoff   = 50 * time.Millisecond
	maxBackoff   = 5 * time.Second
	backoffReset = 30 * time.Second
)

// Run keeps a wire process running until ctx ends; then it stops the process and returns nil. It may be called only once.
func (m *Manager) Run(ctx context.Context, handlers Handlers) error {
	switch {
	case handlers.Settings == nil:
		return caisson.Invalidf("settings", "a function that returns the settings of the wire process is required")
	case m.cfg.Listen != nil && handlers.Runs == nil:
		return caisson.Invalidf("runs", "a function that returns the runs on other machines is required")
	}
	m.mu.Lock()
	again := m.running
	if !again {
		m.running, m.handlers = true, handlers
	}
	m.mu.Unlock()
	if again {
		return caisson.Errorf(caisson.Conflict, "the wires are run already")
	}
	// The kernel kills the wire process when the thread that started it exits (Pdeathsig), so that thread must be locked.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pause := minBackoff
	for {
		start := time.Now()
		err := m.supervise(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(start) > backoffReset {
			pause = minBackoff
		}
		m.log.ErrorContext(ctx, "wire process exited; connections of sandboxes are lost", "err", err, "again", pause)
		if !sleep(ctx, pause) {
			return nil
		}
		pause = min(2*pause, maxBackoff)
	}
}

// supervise starts a wire process, gives it all wires, and returns when it has exited, with the reason.
func (m *Manager) supervise(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, remote, err := socketPair()
	if err != nil {
		return err
	}
	defer conn.Close()
	feed, remoteFeed, err := socketPair()
	if err != nil {
		remote.Close()
		return err
	}
	defer feed.Close()
	output := &excerpt.Head{Limit: 4 << 10}
	cmd := m.command(ctx, output, remote, remoteFeed)
	err = cmd.Start()
	remote.Close()
	remoteFeed.Close()
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	var wait sync.WaitGroup
	defer wait.Wait() // runs after the deferred cancel, without which serve would not return
	defer cancel()
	wait.Go(func() { m.serve(ctx, newLink(conn, cmd.Process.Pid, cancel), feed) })
	err = cmd.Wait()
	if text := output.String(); text != "" {
		err = errors.Join(err, fmt.Errorf("its output: %q", text))
	}
	if err == nil {
		err = errors.New("exited unexpectedly")
	}
	return err
}

// command returns the command of the wire process, which inherits only one end of the control connection and of the feed.
func (m *Manager) command(ctx context.Context, output *excerpt.Head, remotes ...*os.File) *exec.Cmd {
	cmd := exec.CommandContext(ctx, m.cfg.Exe)
	cmd.Args = []string{processName, strconv.FormatUint(uint64(m.cfg.UID), 10)}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stderr = output
	cmd.ExtraFiles = remotes
	cmd.WaitDelay = time.Second
	// The process has its own session (setsid), so that signals of a terminal do not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// serve makes l the Manager's link until ctx ends. It sends the process the settings, a journal and all wires.
func (m *Manager) serve(ctx context.Context, l *link, feed *net.UnixConn) {
	stop := context.AfterFunc(ctx, func() { l.conn.Close(); feed.Close() }) // interrupts pending reads
	defer stop()
	c, err := l.hello()
	if err != nil {
		if ctx.Err() != nil { // the daemon ends, or the process has exited, and Run logs the process's output
			return
		}
		m.log.WarnContext(ctx, "wire process does not start", "err", err)
		l.kill()
		return
	}
	m.log.DebugContext(ctx, "wire process is up", "pid", l.pid, "landlock", c.Landlock, "seccomp", c.Seccomp)
	if c.Landlock == 0 || !c.Seccomp {
		m.log.WarnContext(ctx, "this kernel cannot confine the wire process fully", "landlock", c.Landlock, "seccomp", c.Seccomp)
	}
	ses := &processState{m: m, link: l, tools: newToolLimiter(), pendingStreams: newStreamLimiter(), pendingDials: newDialLimiter()}
	if m.cfg.Ledger != nil {
		// The process may have exited, but the rows that it wrote to journals must still be read.
		defer func() {
			for _, id := range l.journals.removeAll() {
				ses.finishJournal(ctx, id)
			}
		}()
	}
	m.mu.Lock()
	refreshes := m.refreshes
	m.mu.Unlock()
	if err := ses.prepare(ctx); err != nil {
		if ctx.Err() == nil {
			m.log.ErrorContext(ctx, "wire process cannot be prepared", "err", err)
		}
		l.kill()
		return
	}
	var listening sync.WaitGroup
	defer listening.Wait() // waits before the deferred call above finishes the journals
	listening.Go(func() {
		if err := ses.listen(ctx, feed); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "wire process sent a malformed message; it is stopped", "err", err)
		}
		l.kill() // the process cannot work without its feed
	})
	m.mu.Lock()
	m.link, m.confinement = l, c
	changed := m.refreshes != refreshes
	close(m.up)
	m.mu.Unlock()
	if changed { // Refresh was called after prepare began and sent nothing, because there was no link yet
		if err := m.sendSettings(ctx, l); err != nil && ctx.Err() == nil {
			m.log.ErrorContext(ctx, "wire process cannot be given new settings", "err", err)
			if !errors.Is(err, errSettings) {
				l.kill()
			}
		}
	}
	if err := ses.serveRemote(ctx); err != nil && ctx.Err() == nil {
		m.log.ErrorContext(ctx, "wire process cannot serve other machines", "err", err)
		l.kill()
	}
	if err := ses.serveIngress(ctx); err != nil && ctx.Err() == nil {
		m.log.ErrorContext(ctx, "wire process cannot serve routes", "err", err)
		l.kill()
	}
	m.reattachAll(ctx, l)
	<-ctx.Done()
	m.mu.Lock()
	m.link = nil
	m.up = make(chan struct{})
	m.mu.Unlock()
}

// prepare sends the process the settings and a journal, before the first wire.
func (s *processState) prepare(ctx context.Context) error {
	switch err := s.m.sendSettings(ctx, s.link); {
	case errors.Is(err, errSettings):
		// The process continues, because access of sandboxes to the network, other than to models, does not depend on the
		// settings.
		s.m.log.ErrorContext(ctx, "the model gateway refuses its settings; sandboxes have no models until they are changed", "err", err)
	case err != nil:
		return fmt.Errorf("settings: %w", err)
	}
	if s.m.cfg.Ledger == nil {
		return nil
	}
	if err := s.newJournal(ctx); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// reattachAll gives l's process the wires that an earlier process held. A sandbox may still be entering its namespace, so
// reattachAll retries until all wires are attached or detached, or ctx ends.
func (m *Manager) reattachAll(ctx context.Context, l *link) {
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		m.mu.Lock()
		wires := maps.Clone(m.wires)
		m.mu.Unlock()
		missing := 0
		for id, a := range wires {
			if err := m.reattachOne(ctx, l, id, a); err != nil {
				missing++
				m.log.WarnContext(ctx, "cannot reattach a wire yet", "sandbox", id, "err", err)
			}
		}
		if missing == 0 || !sleep(ctx, pause) {
			return
		}
	}
}

// reattachOne gives l's process the wire of sandbox id, unless it has it already or the wire was detached.
func (m *Manager) reattachOne(ctx context.Context, l *link, id caisson.ID, a *wireState) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.detached || a.link == l || ctx.Err() != nil {
		return nil
	}
	ns, err := m.cfg.NetNS(id)
	if err != nil {
		return err
	}
	defer ns.Close()
	return m.reopenTAP(ctx, l, id, a, ns)
}

// socketPair returns both ends of a SOCK_SEQPACKET connection.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	local, remote := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer local.Close() // net.FileConn duplicates the descriptor
	c, err := net.FileConn(local)
	if err != nil {
		remote.Close()
		return nil, nil, fmt.Errorf("control connection: %w", err)
	}
	return c.(*net.UnixConn), remote, nil
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
