package test_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// A crash is a command during which the daemon is killed. It acts on the existing sandboxes "running", "paused" and
// "stopped".
type crash struct {
	verb string
	args []string
	// prepare runs before each crash; it may be nil.
	prepare func(h *host)
	// acknowledged checks the effect of the command if it succeeded; it may be nil.
	acknowledged func(h *host, r result)
}

func crashes() []crash {
	lists := func(kind string) func(*host, result) {
		return func(h *host, r result) {
			for name := range strings.FieldsSeq(r.stdout) {
				if got := h.ok(kind, "ls", "-q"); !slices.Contains(strings.Fields(got), name) {
					h.t.Errorf("%s %s was acknowledged and is not there: %q", kind, name, got)
				}
			}
		}
	}
	state := func(name string, want caisson.State) func(*host, result) {
		return func(h *host, _ result) {
			if sb := h.show(name); sb.State != want {
				h.t.Errorf("%s was acknowledged as %s and is %s (%s)", name, want, sb.State, sb.Reason)
			}
		}
	}
	return []crash{
		{verb: "create", args: []string{"sandbox", "create", "host"}, acknowledged: lists("sandbox")},
		{verb: "create a command", args: []string{"sandbox", "create", "host", "--", "sleep", "1000"}, acknowledged: lists("sandbox")},
		{verb: "exec", args: []string{"exec", "running", "--", "sh", "-c", "sleep 0.05; echo done"}},
		{verb: "start", args: []string{"sandbox", "start", "stopped"}, acknowledged: state("stopped", caisson.Running)},
		{verb: "stop", args: []string{"sandbox", "stop", "--grace", "0s", "running"}, acknowledged: state("running", caisson.Stopped)},
		{verb: "pause", args: []string{"sandbox", "pause", "running"}, acknowledged: state("running", caisson.Paused)},
		{verb: "resume", args: []string{"sandbox", "resume", "paused"}, acknowledged: state("paused", caisson.Running)},
		{verb: "stop what is paused", args: []string{"sandbox", "stop", "paused"}, acknowledged: state("paused", caisson.Stopped)},
		{verb: "snapshot", args: []string{"sandbox", "snapshot", "running"}, acknowledged: lists("snapshot")},
		{verb: "fork", args: []string{"sandbox", "fork", "-n", "2", "running"}, acknowledged: lists("sandbox")},
		{verb: "remove", args: []string{"sandbox", "rm", "running"}, acknowledged: func(h *host, _ result) {
			h.fails(3, "running", "sandbox", "show", "running")
		}},
		{verb: "template build", args: []string{"template", "build", "t"}, prepare: func(h *host) {
			h.ok("template", "put", h.write("t.yaml", fmt.Sprintf("name: t\nimage: host\nsetup:\n- run: [sh, -c, 'echo %d > /made']\n", rand.Int())))
		}, acknowledged: func(h *host, _ result) {
			if shows[caisson.Template](h, "template", "show", "t").Built == nil {
				h.t.Error("the build was acknowledged and is gone")
			}
		}},
		{verb: "image pull", args: []string{"image", "pull", "dir:tree"}, prepare: func(h *host) {
			h.write("tree/file", fmt.Sprint(rand.Int()))
		}, acknowledged: func(h *host, _ result) {
			if got := h.ok("image", "ls"); !strings.Contains(got, "tree") {
				h.t.Errorf("the image was acknowledged and is gone: %s", got)
			}
		}},
		{verb: "copy in", args: []string{"cp", "big", "running:/root/big"}, prepare: func(h *host) { h.write("big", strings.Repeat("x", 8<<20)) },
			acknowledged: func(h *host, _ result) {
				if got := h.ok("exec", "running", "--", "stat", "-c", "%s", "/root/big"); got != fmt.Sprint(8<<20) {
					h.t.Errorf("the copy was acknowledged and has %s bytes", got)
				}
			}},
		{verb: "copy out of what is paused", args: []string{"cp", "paused:/root/file", "out"}},
	}
}

// TestPromise7DaemonKilledInTheMiddle tests that the next daemon completes or rolls back any operation during which a
// daemon was killed: each sandbox is in its reported state, acknowledged changes exist, and nothing is left when
// everything is removed.
func TestPromise7DaemonKilledInTheMiddle(t *testing.T) {
	delays := 1
	if testneed.All() {
		delays = 3
	}
	random := rand.New(rand.NewPCG(7, 7)) // Reproducible, as far as process timing allows.
	for _, c := range crashes() {
		var after []time.Duration
		for range delays {
			after = append(after, time.Duration(random.IntN(150))*time.Millisecond)
		}
		t.Run(c.verb, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			d := h.serve()
			for _, delay := range after {
				h.standard()
				if c.prepare != nil {
					c.prepare(h)
				}
				var r result
				var wg sync.WaitGroup
				wg.Go(func() { r = h.run(c.args...) })
				<-time.After(delay)
				wires := children(d.cmd.Process.Pid)
				d.kill()
				wg.Wait()
				d = h.serve()
				h.gone(wires)
				if r.code == 0 && c.acknowledged != nil {
					c.acknowledged(h, r)
				}
				h.truthful()
				h.removeAll()
				h.wantRemains(nil)
				if t.Failed() {
					t.Fatalf("killed %v after the begin of: %v", delay, r)
				}
			}
		})
	}
}

// standard creates the sandboxes "running", "paused" and "stopped", each with a file.
func (h *host) standard() {
	h.t.Helper()
	for _, name := range []string{"running", "paused", "stopped"} {
		h.ok("sandbox", "create", "--name", name, "host")
		h.sh(name, "echo "+name+" > /root/file")
	}
	h.ok("sandbox", "pause", "paused")
	h.ok("sandbox", "stop", "--grace", "0s", "stopped")
}

// gone waits until the wire process of a killed daemon has ended too.
func (h *host) gone(wires map[int]string) {
	h.t.Helper()
	for pid, args := range wires {
		if strings.HasPrefix(args, "caisson-wire") {
			poll.Until(h.t, settle, func() bool {
				_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
				return err != nil
			})
		}
	}
}

// truthful checks that each sandbox is in its reported state: a running one can be used, a paused or stopped one can be
// resumed with its files, a failed one has a reason, and no operation is in progress.
func (h *host) truthful() {
	h.t.Helper()
	for _, sb := range shows[[]caisson.Sandbox](h, "sandbox", "ls") {
		id := string(sb.ID)
		switch sb.State {
		case caisson.Running:
		case caisson.Paused:
			h.ok("sandbox", "resume", id)
		case caisson.Created, caisson.Stopped:
			h.ok("sandbox", "start", id)
		case caisson.Failed:
			if sb.Reason == "" {
				h.t.Errorf("%s failed without a reason", id)
			}
			h.t.Errorf("%s %s failed: %s", id, sb.Name, sb.Reason)
			continue
		default:
			h.t.Errorf("%s %s is left %s", id, sb.Name, sb.State)
			continue
		}
		want := sb.Name
		if want == "" && sb.Parent == "" {
			h.ok("exec", id, "--", "true")
			continue
		} else if want == "" {
			want = "running" // A fork of it.
		}
		if got := h.run("exec", id, "--", "cat", "/root/file"); got.stdout != want+"\n" {
			h.t.Errorf("%s %s, which was %s, has lost its file: %v", id, sb.Name, sb.State, got)
		}
	}
}

// TestPromise7Reboot tests that after a reboot, when no processes and cgroups exist but the data directory does,
// running sandboxes have failed with a reason, and paused and stopped ones can be resumed.
func TestPromise7Reboot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve()
	h.standard()
	h.ok("exec", "running", "--", "true")
	h.ok("sandbox", "create", "--name", "command", "host", "--", "sleep", "1000")
	h.ok("sandbox", "snapshot", "--name", "snap", "running")
	h.ok("sandbox", "create", "--name", "counts", "host")
	h.count("counts")
	h.countsOn("counts", 5)
	h.ok("sandbox", "pause", "counts")

	d.kill()
	for pid := range h.sandboxProcesses() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	poll.Until(t, settle, func() bool { return len(h.sandboxProcesses()) == 0 })
	for _, root := range h.cgroupRoots() {
		groups, _ := filepath.Glob(root + "/*") // The pattern is valid.
		for _, g := range append(groups, root) {
			if info, err := os.Stat(g); err == nil && info.IsDir() {
				poll.Until(t, settle, func() bool { return syscall.Rmdir(g) != syscall.EBUSY })
			}
		}
	}
	h.serve()
	for _, name := range []string{"running", "command"} {
		if sb := h.show(name); sb.State != caisson.Failed || !strings.Contains(sb.Reason, "restarted") {
			t.Errorf("%s is %s (%s)", name, sb.State, sb.Reason)
		}
		h.fails(4, "can only be removed", "exec", name, "--", "true")
		h.ok("sandbox", "rm", name)
	}
	h.ok("sandbox", "resume", "counts")
	n := h.counted("counts")
	h.countsOn("counts", n)
	h.ok("sandbox", "fork", "--name", "running", "snap")
	h.ok("sandbox", "rm", "counts")
	h.truthful()
}

// TestPromise7SandboxKilledFromTheHost tests that a sandbox whose processes are killed from the host has failed with a
// reason and leaves nothing else behind.
func TestPromise7SandboxKilledFromTheHost(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve()
	for _, kind := range []string{"runsc-sandbox", "runsc-gofer"} {
		id := h.ok("sandbox", "create", "host", "--", "sleep", "1000")
		var r result
		var wg sync.WaitGroup
		wg.Go(func() { r = h.run("exec", id, "--", "sleep", "1000") })
		poll.Until(t, settle, func() bool {
			return strings.Contains(h.run("ps", id).stdout, "1000") || strings.Count(h.run("ps", id).stdout, "sleep") > 1
		})
		for pid, args := range h.sandboxProcesses() {
			if strings.HasPrefix(args, kind) && strings.Contains(args, id) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if kind == "runsc-gofer" {
			// The sandbox may keep running without its gofer until it needs a file, so access one.
			h.run("exec", id, "--", "ls", "-R", "/usr/share/doc")
		}
		sb := h.waitState(id, caisson.Failed)
		if sb.Reason == "" {
			t.Errorf("%s was killed and the reason is empty", kind)
		}
		wg.Wait()
		if r.code == 0 {
			t.Errorf("the process in it ended with success: %v", r)
		}
		h.fails(4, "can only be removed", "exec", id, "--", "true")
		h.ok("sandbox", "rm", id)
	}
}
