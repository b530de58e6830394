package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// daemonCmd contains the commands that operate the daemon of the data directory.
type daemonCmd struct {
	Status  daemonStatusCmd  `cmd:"" help:"Show what the daemon is and what it serves."`
	Stop    daemonStopCmd    `cmd:"" help:"Stop the daemon, and wait until it has ended. Sandboxes keep running."`
	Restart daemonRestartCmd `cmd:"" help:"Stop the daemon and start it again. Sandboxes keep running."`
	Reload  daemonReloadCmd  `cmd:"" help:"Have the daemon read its configuration again."`
	Logs    daemonLogsCmd    `cmd:"" help:"Show the log of a daemon that a command has started."`
}

// localDaemon is the daemon of the data directory, which may not be running.
type localDaemon struct {
	a   *app
	cfg *config
}

// newLocalDaemon returns the daemon of the data directory. It returns Invalid if the settings select a daemon on another machine.
// Kong calls it for commands whose Run method has a parameter of type *localDaemon.
func newLocalDaemon(ctx context.Context, a *app) (*localDaemon, error) {
	cfg, err := connection(ctx, a)
	if err != nil {
		return nil, err
	}
	if cfg.Host != "" {
		return nil, caisson.Invalidf("host", "a daemon is operated on its own machine; unset CAISSON_HOST (and host in the configuration), and name its data directory with --data")
	}
	return &localDaemon{a, cfg}, nil
}

// client returns a client of the daemon. It returns Unavailable if no daemon is running.
func (d *localDaemon) client(ctx context.Context) (api, error) {
	up, err := isListening(ctx, d.cfg.SocketPath())
	if err != nil {
		return nil, err
	}
	if !up {
		return nil, caisson.Errorf(caisson.Unavailable, "no daemon runs for %s; commands start one when they need it, and caisson serve keeps one", d.cfg.DataDir)
	}
	return newClient(d.cfg, nil, nil)
}

// daemonStatusCmd shows the state of the daemon.
type daemonStatusCmd struct{}

func (c *daemonStatusCmd) Help() string {
	return "The exit code is 7 if no daemon runs.\n\n" + examples("caisson daemon status", "caisson daemon status -o json")
}

func (c *daemonStatusCmd) Run(ctx context.Context, a *app, d *localDaemon) error {
	api, err := d.client(ctx)
	if err != nil {
		return err
	}
	return asOne(a, func(s *caisson.DaemonStatus) string { return strconv.Itoa(s.PID) }, func(s *caisson.DaemonStatus) [][2]string {
		kind := "started with caisson serve"
		if s.Background {
			kind = "started by a command; ends when it is idle"
		}
		rows := [][2]string{
			{"PID", strconv.Itoa(s.PID)},
			{"Version", s.Version},
			{"Since", formatTime(s.StartedAt)},
			{"Kind", kind},
			{"Data", s.DataDir},
			{"Listens on", strings.Join(s.Listen, ", ")},
			{"Sandboxes", fmt.Sprintf("%d, of which %d run and %d are suspended", s.Sandboxes, s.Running, s.Suspended)},
			{"Runs", fmt.Sprintf("%d under way", s.Runs)},
			{"Exec", fmt.Sprintf("%d in the foreground", s.Execs)},
			{"Accounts", strings.Join(s.Accounts, ", ")},
			{"Configuration", cmp.Or(s.Settings.File, "defaults; there is no file")},
		}
		if len(s.Settings.Changed) > 0 {
			rows = append(rows, [2]string{"Not in force", strings.Join(s.Settings.Changed, ", ") + "; to apply: " + applyCommand(s.Settings.Changed)})
		}
		if s.Settings.Invalid != "" {
			rows = append(rows, [2]string{"Invalid", s.Settings.Invalid})
		}
		return rows
	})(api.Status(ctx))
}

// daemonStopCmd stops the daemon.
type daemonStopCmd struct {
	Timeout caisson.Duration `positive:"" help:"How long to wait for its end." default:"1m" placeholder:"DURATION"`
}

func (c *daemonStopCmd) Help() string {
	return "Sandboxes and their processes continue to run: services, terminals, interactive runs and what exec -d started. Other runs of agents that are " +
		"under way fail, and what exec runs in the foreground is killed; both are counted. The next command that needs a daemon starts one.\n\n" +
		examples("caisson daemon stop")
}

func (c *daemonStopCmd) Run(ctx context.Context, a *app, d *localDaemon) error {
	before, _ := d.status(ctx)
	pid, err := d.stop(ctx, time.Duration(c.Timeout))
	switch {
	case err != nil:
		return err
	case pid == 0:
		a.infof("caisson: no daemon runs for %s", d.cfg.DataDir)
		return nil
	}
	d.printEnded(pid, before)
	return nil
}

// status returns the status of the daemon. It returns Unavailable if no daemon is running, or if the daemon does not answer or is
// too old to report its status.
func (d *localDaemon) status(ctx context.Context) (*caisson.DaemonStatus, error) {
	api, err := d.client(ctx)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := api.Status(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = caisson.Errorf(caisson.Unavailable, "the daemon does not answer; caisson daemon stop ends it")
	}
	return s, err
}

// statusTimeout limits how long a command that operates the daemon waits for its status, because the daemon may hang.
const statusTimeout = 5 * time.Second

// printEnded prints that the daemon has ended, and how many runs and execs have ended with it. before is the status of the daemon
// before it was stopped; nil means that the status is unknown.
func (d *localDaemon) printEnded(pid int, before *caisson.DaemonStatus) {
	version, with := "", ""
	if before != nil {
		version = " (version " + safetext.Escape(before.Version) + ")"
		var list []string
		if before.Begun > 0 {
			list = append(list, plural(before.Begun, "run")+" (caisson retry starts one again)")
		}
		if before.Execs > 0 {
			list = append(list, plural(before.Execs, "program")+" of caisson exec")
		}
		if len(list) > 0 {
			with = ", and with it " + strings.Join(list, " and ")
		}
	}
	d.a.infof("caisson: the daemon with pid %d%s has ended%s", pid, version, with)
}

// stop ends the daemon, waits until its process has ended, and returns its pid. It returns 0 if no daemon is running.
func (d *localDaemon) stop(ctx context.Context, timeout time.Duration) (pid int, err error) {
	if up, err := isListening(ctx, d.cfg.SocketPath()); !up || err != nil {
		if pid := engine.LockHolder(d.cfg.DataDir); err == nil && pid > 0 {
			err = caisson.Errorf(caisson.Conflict, "the daemon with pid %d does not listen on %s any more, which may have been removed; end it with: kill %d", pid, d.cfg.SocketPath(), pid)
		}
		return 0, err
	}
	if pid, err = socketOwner(ctx, d.cfg.SocketPath()); err != nil {
		return 0, err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, fmt.Errorf("open the process %d of the daemon: %w", pid, err)
	}
	defer unix.Close(process)
	// If pid still owns the socket now, process refers to the daemon, and not to a later process with the same pid.
	if again, err := socketOwner(ctx, d.cfg.SocketPath()); err != nil || again != pid {
		return 0, caisson.Errorf(caisson.Conflict, "the daemon has just ended or been replaced; try again")
	}
	if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return pid, fmt.Errorf("stop the daemon with pid %d: %w", pid, err)
	}
	for end := time.Now().Add(timeout); ; {
		fds := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(pollStep.Milliseconds()))
		switch {
		case n > 0:
			return pid, nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return pid, err
		case ctx.Err() != nil:
			return pid, ctx.Err()
		case time.Now().After(end):
			return pid, caisson.Errorf(caisson.Unavailable, "the daemon with pid %d has not ended after %s; caisson daemon logs shows what it does, and kill -9 %d ends it (sandboxes keep running)", pid, timeout, pid)
		}
	}
}

// pollStep is the interval at which a command that waits for the end of the daemon, or for new lines in its log, checks for them.
const pollStep = 200 * time.Millisecond

// socketOwner returns the pid of the process that listens on a unix socket, according to the kernel.
func socketOwner(ctx context.Context, socket string) (int, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, caisson.Wrap(err, caisson.Unavailable, "cannot reach the daemon: %v", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if peerErr != nil {
		return 0, peerErr
	}
	if peer.Pid <= 0 {
		return 0, caisson.Errorf(caisson.Unavailable, "the daemon runs in another pid namespace, such as a container's; stop it there")
	}
	return int(peer.Pid), nil
}

// daemonRestartCmd restarts the daemon.
type daemonRestartCmd struct {
	Timeout caisson.Duration `positive:"" help:"How long to wait for its end." default:"1m" placeholder:"DURATION"`
}

func (c *daemonRestartCmd) Help() string {
	return "The new daemon is this binary, even if the old one was another. Only for a daemon that a command has started; one of a service manager is " +
		"restarted there. See daemon stop for what becomes of runs and of what exec runs.\n\n" + examples("caisson daemon restart")
}

func (c *daemonRestartCmd) Run(ctx context.Context, a *app, d *localDaemon) error {
	before, err := d.status(ctx)
	if err := d.checkStart(before); err != nil {
		return err
	}
	switch {
	case err == nil && !before.Background:
		return caisson.Errorf(caisson.Conflict, "the daemon with pid %d was started with caisson serve; restart it there, for example with systemctl restart caisson", before.PID)
	case err != nil && caisson.KindOf(err) != caisson.Unavailable: // an old daemon without this request is Unavailable, too
		return err
	}
	// Without the lock, another command that is running could start a daemon of its own build before startDaemon does.
	unlock, err := lockStart(ctx, d.cfg)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := d.stop(ctx, time.Duration(c.Timeout))
	if err != nil {
		return err
	}
	if old != 0 {
		d.printEnded(old, before)
	}
	if err := startDaemon(ctx, d.cfg); err != nil {
		return err
	}
	now, err := d.status(ctx)
	if err == nil {
		a.infof("caisson: a daemon with pid %d (version %s) serves %s", now.PID, safetext.Escape(now.Version), d.cfg.DataDir)
	}
	return err
}

// checkStart returns an error if a new daemon could not start with the present configuration. It is called before the old daemon
// is stopped. s is the status of the old daemon, or nil if it is unknown.
func (d *localDaemon) checkStart(s *caisson.DaemonStatus) error {
	cfg, err := loadConfig(d.a.globals, d.a.getenv)
	if err != nil {
		return err
	}
	if err := cfg.validate(); err != nil || s == nil {
		return err
	}
	for setting, addr := range map[string]string{"listen": cfg.Listen, "gateway.listen": cfg.Gateway.Listen, "ingress.listen": cfg.Ingress.Listen, "ssh.listen": cfg.SSH.Listen} {
		if addr == "" || slices.ContainsFunc(s.Listen, func(l string) bool { return strings.HasSuffix(l, addr) }) {
			continue
		}
		l, err := reach.Listen(setting, addr)
		if err != nil {
			return err
		}
		l.Close()
	}
	return nil
}

// daemonReloadCmd has the daemon read its configuration again.
type daemonReloadCmd struct{}

func (c *daemonReloadCmd) Help() string {
	return "Providers, models and the level of the log change at once; files of agents are read when they are used. What else has changed is " +
		"named, and takes effect when the daemon is restarted. An invalid configuration changes nothing. SIGHUP does the same.\n\n" +
		examples("caisson daemon reload")
}

func (c *daemonReloadCmd) Run(ctx context.Context, a *app, d *localDaemon) error {
	api, err := d.client(ctx)
	if err != nil {
		return err
	}
	done, err := api.Reload(ctx)
	if err != nil {
		return err
	}
	if a.globals.Output != "table" {
		return a.encode(done)
	}
	st, err := api.Status(ctx)
	if err != nil {
		return err
	}
	if d.cfg.File != "" && readsOtherFile(st, d.cfg.File) {
		a.infof("caisson: %s", otherFileNote(a, st, d.cfg.File))
	}
	if len(done.Applied) > 0 {
		a.infof("caisson: in force now: %s", strings.Join(done.Applied, ", "))
	}
	if len(done.NeedRestart) > 0 {
		a.infof("caisson: needs caisson daemon restart: %s", strings.Join(done.NeedRestart, ", "))
	}
	if len(done.Applied)+len(done.NeedRestart) == 0 {
		a.infof("caisson: nothing has changed")
	}
	return nil
}

// readsOtherFile reports whether the configuration file of the daemon with the status st is not file. A daemon that has found no
// file reads the default file when it reloads.
func readsOtherFile(st *caisson.DaemonStatus, file string) bool {
	return cmp.Or(st.Settings.File, defaultConfigFile) != file
}

// otherFileNote returns the message that the configuration file of the daemon with the status st is not file, and how to change
// that.
func otherFileNote(a *app, st *caisson.DaemonStatus, file string) string {
	restart := "caisson daemon restart"
	if a.globals.Config != "" {
		restart += " --config " + quoteCommand([]string{file})
	}
	return fmt.Sprintf("the daemon with pid %d reads %s; to have it read %s: %s", st.PID, cmp.Or(st.Settings.File, "no file"), file, restart)
}

// daemonLogsCmd shows the daemon's log.
type daemonLogsCmd struct {
	Follow bool `help:"Follow the log: print new lines as they are written." short:"f"`
	Lines  int  `help:"Begin this many lines before the end." short:"n" default:"100" placeholder:"N"`
}

func (c *daemonLogsCmd) Help() string {
	return "A daemon that was started with caisson serve writes its log to its standard error: journalctl -u caisson.\n\n" +
		examples("caisson daemon logs", "caisson daemon logs -f -n 10")
}

// logTail is the number of bytes at the end of a log in which "caisson daemon logs" looks for the last lines.
const logTail = 4 << 20

func (c *daemonLogsCmd) Run(ctx context.Context, a *app, d *localDaemon) (err error) {
	name := filepath.Join(d.cfg.DataDir, daemonLogName)
	f, err := os.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return caisson.Errorf(caisson.NotFound, "there is no %s: no command has started a daemon for this directory; one of a service has its log in journalctl -u caisson", name)
	case errors.Is(err, fs.ErrPermission):
		return caisson.Errorf(caisson.Denied, needRoot)
	case err != nil:
		return err
	}
	defer f.Close()
	if s, err := d.status(ctx); err == nil && !s.Background {
		a.infof("caisson: the daemon with pid %d was started with caisson serve and writes its log to its standard error, for example journalctl -u caisson; what follows is the log of an earlier daemon", s.PID)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	tail := make([]byte, min(info.Size(), logTail))
	if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	out, end := a.safeWriter(a.out, safetext.Log)
	defer func() { err = errors.Join(err, end()) }()
	if _, err := out.Write(lastLines(tail, c.Lines)); err != nil || !c.Follow {
		return err
	}
	if _, err := f.Seek(info.Size(), io.SeekStart); err != nil {
		return err
	}
	tick := time.NewTicker(pollStep)
	defer tick.Stop()
	for r := bufio.NewReader(f); ; {
		if _, err := r.WriteTo(out); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// lastLines returns the last n lines of text.
func lastLines(text []byte, n int) []byte {
	at := len(text)
	for ; n > 0 && at > 0; n-- {
		at = bytes.LastIndexByte(text[:at-1], '\n') + 1
	}
	return text[at:]
}
