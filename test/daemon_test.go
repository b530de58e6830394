package test_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testbin"
)

// http returns a client of the daemon's unix socket.
func (h *host) http() *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", h.socket())
	}}
	h.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: hang}
}

// TestDaemonEndsWhenIdle tests that a daemon that a command started ends when neither a client nor a sandbox needs it,
// and that the next command starts another one with the same state.
func TestDaemonEndsWhenIdle(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure("idleExit: 300ms")
	id := h.ok("sandbox", "create", "--name", "a", "host")
	first := h.daemonPID()
	if first == 0 {
		t.Fatal("there is no daemon")
	}
	// A running sandbox keeps the daemon running. There is no condition to poll for, so wait for events meanwhile.
	if events := h.ok("events", "--for", "1s"); !strings.Contains(events, "sandbox.running") {
		t.Errorf("events: %s", events)
	}
	if h.daemonPID() != first {
		t.Error("the daemon has gone while a sandbox runs")
	}
	h.ok("sandbox", "pause", "a")
	poll.Until(t, settle, func() bool { return h.daemonPID() == 0 })
	if got := h.ok("sandbox", "ls", "-q"); got != id {
		t.Errorf("the next daemon knows %q", got)
	}
	h.ok("sandbox", "resume", "a")
	h.ok("sandbox", "rm", "a")
	poll.Until(t, settle, func() bool { return h.daemonPID() == 0 })
	h.wantRemains(nil)
}

// TestFirstCommandsStartOneDaemon tests that concurrent first commands start only one daemon.
func TestFirstCommandsStartOneDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	each(6, 6, func(int) {
		if r := h.run("exec", "--rm", "host", "--", "true"); r.code != 0 {
			t.Errorf("%v", r)
		}
	})
	if n := len(processes(func(args string) bool {
		return strings.HasPrefix(args, "caisson serve ") && strings.Contains(args+" ", " --data "+h.data+" ")
	})); n != 1 {
		t.Errorf("%d daemons", n)
	}
	// A second daemon is refused.
	h.fails(4, fmt.Sprintf("another caisson daemon with pid %d uses", h.daemonPID()), "serve", "--data", h.data)
}

// TestSandboxesOutliveTheDaemon tests that after an orderly stop sandboxes keep running, with their programs and wires,
// for the next daemon.
func TestSandboxesOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve()
	h.ok("sandbox", "create", "--name", "a", "host", "--", "sh", "-c", "while :; do echo tick; sleep 0.02; done")
	h.count("a")
	var wg sync.WaitGroup
	var r result
	wg.Go(func() { r = h.run("exec", "a", "--", "sleep", "1000") })
	poll.Until(t, settle, func() bool { return h.counted("a") > 3 })
	d.end()
	wg.Wait()
	if r.code == 0 {
		t.Errorf("the session of a daemon that ended: %v", r)
	}
	h.serve()
	n := h.counted("a")
	h.countsOn("a", n)
	size := len(h.ok("sandbox", "logs", "a"))
	poll.Until(t, settle, func() bool { return len(h.ok("sandbox", "logs", "a")) > size })
	// The wire is served again: connections are refused, not lost.
	if got := h.ok("exec", "a", "--", "bash", "-c", dial, "bash", "1.1.1.1:443"); !strings.HasPrefix(got, "1.1.1.1:443 refused ") {
		t.Errorf("%q", got)
	}
}

// TestCopiedDataDirectory tests that a daemon on a copy of a data directory does not act on the sandboxes that run under the original.
func TestCopiedDataDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve()
	h.ok("sandbox", "create", "--name", "a")
	h.ok("sandbox", "create", "--name", "b")
	h.ok("exec", "-d", "a", "--", "sh", "-c", "echo here > /tmp/mark; sleep 1000")
	poll.Until(t, settle, func() bool { return h.run("exec", "a", "--", "test", "-s", "/tmp/mark").code == 0 })
	d.end()
	copied := newHost(t)
	if out, err := exec.Command("cp", "-a", h.data, copied.data).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	other := copied.serve()
	for _, name := range []string{"a", "b"} {
		if sb := copied.show(name); sb.State == caisson.Running {
			t.Errorf("in the copy %s is %s", name, sb.State)
		}
	}
	copied.ok("sandbox", "rm", "a")
	copied.ok("sandbox", "create", "--name", "c")
	d = h.serve()
	if got := h.sh("a", "cat /tmp/mark"); got != "here" {
		t.Errorf("the sandbox of the original says %q", got)
	}
	h.sh("b", "true")
	copied.sh("c", "true")
	d.end()
	other.end()
}

// TestStartTime limits the start time of Caisson's processes. Each one runs the initialisation of all packages in its
// binary, so a slow one would affect everything.
func TestStartTime(t *testing.T) {
	const limit = 60 * time.Millisecond
	for _, tt := range []struct {
		name string
		cmd  func() *exec.Cmd
	}{
		{"version", func() *exec.Cmd { return exec.Command(testbin.Path(t, "caisson"), "version") }},
		// A helper process without arguments ends immediately.
		{"a worker", func() *exec.Cmd { return exec.Command(testbin.Path(t, "caisson-worker")) }},
		{"gVisor", func() *exec.Cmd {
			return &exec.Cmd{Path: testbin.Path(t, "caisson-sentry"), Args: []string{"runsc-sandbox", "--version"}}
		}},
	} {
		// CPU time, and the least of several values, depend little on other load of the machine.
		least := time.Hour
		for range 21 {
			cmd := tt.cmd()
			cmd.Env = []string{"HOME=" + os.TempDir()}
			_ = cmd.Run() // The exit status is irrelevant.
			least = min(least, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		}
		if least > limit {
			t.Errorf("%s takes %v to start, more than %v", tt.name, least, limit)
		} else {
			t.Logf("%s starts in %v", tt.name, least)
		}
	}
}
