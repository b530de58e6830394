package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/internal/safetext"
)

const (
	startTimeout = 60 * time.Second // how long a command waits for a new daemon, including its migrations and reconciliation
	maxDaemonLog = 10 << 20         // size in bytes above which a log is renamed to NAME.1 at the next start of a daemon
	// needRoot is the text of the error of commands that need root.
	needRoot = "caisson requires root: run it with sudo"
	// minimalPath is the search path of a daemon that a command starts.
	minimalPath    = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	daemonLogName  = "daemon.log" // file in the data directory to which a daemon in the background writes its log
	startLockName  = "start.lock" // file in the data directory that is locked while a command starts the daemon
	maxReadyLength = 4096         // maximum length in bytes of the line with which a daemon reports that it is ready
)

// ensureDaemon starts a daemon for cfg's data directory unless one is listening on its socket. If several commands call it at the
// same time, one starts the daemon and the others wait.
func ensureDaemon(ctx context.Context, cfg *config) error {
	up, err := isListening(ctx, cfg.SocketPath())
	if up || err != nil {
		return err
	}
	unlock, err := lockStart(ctx, cfg)
	if err != nil {
		return err
	}
	defer unlock()
	if up, err := isListening(ctx, cfg.SocketPath()); up || err != nil {
		return err
	}
	return startDaemon(ctx, cfg)
}

// lockStart creates the data directory and waits for the lock that every command holds while it starts a daemon for that
// directory. The lock is held until unlock is called.
func lockStart(ctx context.Context, cfg *config) (unlock func(), err error) {
	if os.Geteuid() != 0 {
		return nil, caisson.Errorf(caisson.Denied, needRoot)
	}
	if err := engine.PrepareDataDir(cfg.DataDir); err != nil {
		return nil, err
	}
	if unlock, err = lockFile(ctx, filepath.Join(cfg.DataDir, startLockName)); err != nil {
		return nil, engine.DataDirError(cfg.DataDir, err)
	}
	return unlock, nil
}

// isListening reports whether a process accepts connections on the unix socket. It returns an error if this process has no
// permission to connect.
func isListening(ctx context.Context, socket string) (bool, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		conn.Close()
		return true, nil
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return false, caisson.Errorf(caisson.Denied, needRoot)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOTDIR):
		return false, nil
	default:
		return false, caisson.Errorf(caisson.Unavailable, "cannot reach the daemon: %v", err)
	}
}

// lockFile creates the file name if it does not exist, and waits for an exclusive lock on it. The lock is held until unlock is
// called or this process exits.
func lockFile(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return await(ctx, func() (func(), error) { // if ctx ends, f stays open until flock returns; the program exits soon
		for {
			switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err {
			case nil:
				return func() { f.Close() }, nil
			case unix.EINTR:
			default:
				f.Close()
				return nil, fmt.Errorf("lock %s: %w", name, err)
			}
		}
	})
}

// startDaemon starts "caisson serve" in a new session and waits until it is ready.
func startDaemon(ctx context.Context, cfg *config) error {
	log, err := openDaemonLog(filepath.Join(cfg.DataDir, daemonLogName))
	if err != nil {
		return engine.DataDirError(cfg.DataDir, err)
	}
	defer log.Close()
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	defer readyEnd.Close()
	cmd := exec.Command("/proc/self/exe", daemonArgs(cfg)...)
	cmd.Args[0] = "caisson"
	cmd.Dir = "/"
	cmd.Env = append([]string{minimalPath, readyVar + "=3"}, cfg.fromEnv...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{readyEnd} // the daemon gets readyEnd as descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	readyEnd.Close()
	if err := awaitReady(ctx, ready, log.Name()); err != nil {
		// The daemon has not become ready. Kill it: if it hangs, it must not keep the data directory locked.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	return cmd.Process.Release()
}

// daemonArgs returns the arguments of the daemon that a command starts.
func daemonArgs(cfg *config) []string {
	args := []string{"serve", "--background", "--data", cfg.DataDir}
	if cfg.File != "" || cfg.fileMissing {
		args = append(args, "--config", cfg.lookedFor)
	}
	return args
}

// awaitReady waits until the new daemon writes a line to the pipe ready: "ok", or the reason why it cannot serve, which
// awaitReady returns as an error. log is the name of the daemon's log, for errors.
func awaitReady(ctx context.Context, ready *os.File, log string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })()
	line, err := bufio.NewReader(io.LimitReader(ready, maxReadyLength)).ReadString('\n')
	kind, reason, ok := strings.Cut(strings.TrimSpace(line), "\t")
	if !ok {
		kind, reason = "", kind
	}
	if exitCodes[caisson.Kind(kind)] <= exitCodes[caisson.Internal] { // the kind is Internal or unknown
		kind = string(caisson.Unavailable)
	}
	reason = safetext.Escape(reason)
	switch {
	case reason == "ok":
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return caisson.Errorf(caisson.Unavailable, "the daemon was not ready after %s; see %s", startTimeout, log)
	case reason == "":
		return caisson.Errorf(caisson.Unavailable, "the daemon ended while it started; see %s", log)
	default:
		return caisson.Errorf(caisson.Kind(kind), "the daemon did not start: %s; see %s", reason, log)
	}
}

// openDaemonLog opens the daemon's log for appending. A log larger than maxDaemonLog is first renamed to NAME.1, so that at most
// two logs are kept.
func openDaemonLog(name string) (*os.File, error) {
	if info, err := os.Lstat(name); err == nil && info.Size() > maxDaemonLog {
		if err := os.Rename(name, name+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
}
