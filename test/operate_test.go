package test_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestOperateDaemon tests that a daemon can be shown, reloaded, restarted and stopped while a sandbox runs on: what can change at run
// time does, the rest is named, and an invalid configuration changes nothing.
func TestOperateDaemon(t *testing.T) {
	t.Parallel()
	h := &modelHost{host: newHost(t)}
	h.fails(7, "no daemon runs for "+h.data, "daemon", "status")
	h.fails(3, "no command has started a daemon", "daemon", "logs")
	if r := h.run("daemon", "stop"); r.code != 0 || !strings.Contains(r.stderr, "no daemon runs") {
		t.Error(r)
	}
	const models = "idleExit: 10m\nproviders: [{name: demo, kind: scripted}]\nmodels: [{alias: %, provider: demo, free: true}]"
	config := func(alias string, more ...string) {
		h.configure(append([]string{strings.Replace(models, "%", alias, 1)}, more...)...)
	}
	config("old")
	h.ok("sandbox", "create", "--name", "a", "host", "--", "sleep", "1000")
	first := shows[caisson.DaemonStatus](h.host, "daemon", "status")
	if first.PID != h.daemonPID() || !first.Background || first.Sandboxes != 1 || first.Running != 1 || first.Runs != 0 || first.DataDir != h.data ||
		len(first.Listen) != 1 || first.Settings.File != h.configFile() || len(first.Settings.Changed) != 0 {
		t.Errorf("%+v", first)
	}

	// A file that differs is reported by the commands that use the daemon, and changes nothing by itself.
	config("new", "logLevel: debug", "limits: {maxSandboxes: 7}")
	r := h.run("model", "ls")
	if !strings.Contains(r.stdout, "\nold ") || strings.Count(r.stderr, "the configuration has changed since the daemon read it (limits, logLevel, models)") != 1 {
		t.Error(r)
	}
	r = h.run("config", "show")
	if !strings.Contains(r.stdout, "alias: old") || strings.Contains(r.stdout, "maxSandboxes: 7") ||
		!strings.Contains(r.stderr, "# in force in the daemon with pid "+strconv.Itoa(first.PID)) || !strings.Contains(r.stderr, "other values for: limits, logLevel, models") {
		t.Error(r)
	}
	if r := h.run("config", "show", "--file"); !strings.Contains(r.stdout, "alias: new") {
		t.Error(r)
	}
	done := shows[caisson.Reloaded](h.host, "daemon", "reload")
	if strings.Join(done.Applied, " ") != "logLevel models" || strings.Join(done.NeedRestart, " ") != "limits" {
		t.Errorf("%+v", done)
	}
	if r := h.run("model", "ls"); !strings.Contains(r.stdout, "\nnew ") || !strings.Contains(r.stderr, "daemon read it (limits); to apply it: caisson daemon restart") {
		t.Error(r)
	}
	h.ok("run", "caisson", "--model", "new", "hello") // the wire process knows, too

	// An invalid one is refused, also by SIGHUP, which otherwise reloads.
	h.configure("limits: {maxSandboxes: 0}", "logLevel: loud")
	client := h.http()
	resp, err := client.Post("http://caisson/api/v1/daemon/reload", "application/json", nil)
	if err != nil || resp.StatusCode != 400 {
		t.Errorf("an invalid configuration: %v, %v", resp, err)
	}
	if err == nil {
		resp.Body.Close()
	}
	if err := syscall.Kill(first.PID, syscall.SIGHUP); err != nil {
		t.Error(err)
	}
	h.waitFor(func() bool { return strings.Count(h.daemonLog(), "the configuration is invalid") == 2 })
	h.fails(2, "logLevel", "daemon", "reload")
	h.fails(2, "logLevel", "daemon", "restart") // before it stops the daemon
	// Commands go on with the daemon.
	for _, args := range [][]string{{"ps"}, {"daemon", "status"}, {"exec", "a", "--", "true"}} {
		if r := h.run(args...); r.code != 0 || !strings.Contains(r.stderr, "the configuration is invalid; the running daemon still uses the settings that it has loaded") {
			t.Error(r)
		}
	}
	if r := h.run("doctor"); !strings.Contains(r.stdout, "configuration  failed") {
		t.Error(r)
	}
	// A port that is in use is found before the daemon is stopped, too.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config("new", "listen: "+taken.Addr().String())
	h.fails(4, "another program listens on", "daemon", "restart")
	taken.Close()
	config("newer", "limits: {maxSandboxes: 7}", "logLevel: debug")
	if got := h.ok("model", "ls", "-q"); got != "new" {
		t.Errorf("after an invalid configuration there is %s", got)
	}
	if err := syscall.Kill(first.PID, syscall.SIGHUP); err != nil {
		t.Error(err)
	}
	h.waitFor(func() bool { return h.ok("model", "ls", "-q") == "newer" })

	// A restart puts the rest in force. The sandbox runs on.
	h.ok("daemon", "restart")
	second := shows[caisson.DaemonStatus](h.host, "daemon", "status")
	if second.PID == first.PID || second.Running != 1 || len(second.Settings.Changed) != 0 || !strings.Contains(h.ok("config", "show"), "maxSandboxes: 7") {
		t.Errorf("after a restart %+v", second)
	}
	if got := h.sh("a", "ps -eo args= | grep -c '^sleep 1000'"); got != "1" {
		t.Errorf("the sandbox has %q of its process", got)
	}
	if log := h.ok("daemon", "logs", "-n", "1"); strings.Count(log, "\n") != 0 || !strings.Contains(log, "level=") {
		t.Errorf("the last line of the log is %q", log)
	}
	if r := h.run("daemon", "stop"); r.code != 0 || h.daemonPID() != 0 {
		t.Errorf("after %v there is the process %d", r, h.daemonPID())
	}
	h.ok("sandbox", "rm", "a")
	h.ok("daemon", "stop")

	// One that was started otherwise is stopped, but not restarted.
	d := h.serve()
	h.env = h.env[:len(h.env)-1] // without CAISSON_HOST
	h.fails(4, "restart it there, for example with systemctl restart caisson", "daemon", "restart")
	if r := h.run("daemon", "logs"); !strings.Contains(r.stderr, "what follows is the log of an earlier daemon") {
		t.Error(r)
	}
	hidden := h.socket() + ".hidden"
	if err := os.Rename(h.socket(), hidden); err != nil {
		t.Fatal(err)
	}
	h.fails(4, fmt.Sprintf("end it with: kill %d", d.cmd.Process.Pid), "daemon", "stop")
	if err := os.Rename(hidden, h.socket()); err != nil {
		t.Fatal(err)
	}
	h.ok("daemon", "stop")
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("a daemon that was stopped: %v", err)
	}
}

// TestRestartStartsThisBinary tests that the daemon that "caisson daemon restart" starts is of the binary that was called, even while commands
// of another one, which start daemons of theirs, wait for the end of a run; and that it says what has ended with the old daemon.
func TestRestartStartsThisBinary(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	old := h.bin
	newer := filepath.Join(h.dir, "newer")
	data, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(newer, data, 0o700); err != nil {
		t.Fatal(err)
	}
	h.ok("sandbox", "create", "--name", "a")
	h.ok("sandbox", "create", "--name", "asleep")
	h.ok("sandbox", "suspend", "asleep")
	h.begin("exec", "a", "--", "sleep", "1000")
	h.begin("run", "shell", "sleep 1000")
	var first caisson.DaemonStatus
	poll.Until(t, settle, func() bool {
		first = shows[caisson.DaemonStatus](h, "daemon", "status")
		return first.Execs == 1 && first.Begun == 1 && first.Sandboxes == 3 && first.Running == 2
	})
	if first.Suspended != 1 {
		t.Errorf("%+v", first)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				h.runOf(old, "sandbox", "ls")
			}
		}
	}()
	r := h.runOf(newer, "daemon", "restart")
	close(stop)
	<-stopped
	second := shows[caisson.DaemonStatus](h, "daemon", "status")
	if exe, err := os.Readlink("/proc/" + strconv.Itoa(second.PID) + "/exe"); err != nil || exe != newer {
		t.Errorf("the daemon is %s, %v", exe, err)
	}
	want := fmt.Sprintf("caisson: the daemon with pid %d (version %s) has ended, and with it 1 run (caisson retry starts one again) and 1 program of caisson exec\n"+
		"caisson: a daemon with pid %d (version %s) serves %s\n", first.PID, first.Version, second.PID, second.Version, h.data)
	if r.code != 0 || r.stderr != want {
		t.Errorf("%v, want %s", r, want)
	}
}

// runOf runs a command of another binary to its end. It is safe for concurrent use.
func (h *host) runOf(bin string, args ...string) result {
	other := *h
	other.bin = bin
	return other.run(args...)
}
