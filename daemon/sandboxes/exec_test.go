package sandboxes_test

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func TestExecRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := string(w.create(caisson.CreateRequest{}).ID)
	ok := command("echo")
	for _, c := range []struct {
		field string
		req   caisson.ExecRequest
	}{
		{"command", caisson.ExecRequest{}},
		{"command", caisson.ExecRequest{Command: []string{""}}},
		{"command", caisson.ExecRequest{Command: []string{"a", "\x00"}}},
		{"command", caisson.ExecRequest{Command: []string{"nowhere"}}},
		{"env", caisson.ExecRequest{Command: ok, Env: map[string]string{"": ""}}},
		{"workdir", caisson.ExecRequest{Command: ok, Workdir: "x"}},
		{"workdir", caisson.ExecRequest{Command: ok, Workdir: "/nowhere"}},
		{"user", caisson.ExecRequest{Command: ok, User: "-x"}},
		{"user", caisson.ExecRequest{Command: ok, User: "nobody-here"}},
		{"detach", caisson.ExecRequest{Command: ok, Detach: true, TTY: true}},
		{"detach", caisson.ExecRequest{Command: ok, Detach: true, Stdin: true}},
		{"timeout", caisson.ExecRequest{Command: ok, Timeout: -1}},
		{"timeout", caisson.ExecRequest{Command: ok, Detach: true, Timeout: 1}},
		{"", caisson.ExecRequest{Command: []string{"nowhere"}, Detach: true}},
		{"", caisson.ExecRequest{Command: ok, User: "nobody-here", Detach: true}},
	} {
		_, err := w.Processes().Exec(w.ctx(), id, c.req)
		wantKind(t, err, caisson.Invalid)
		if c.field != "" && caisson.FieldOf(err) != c.field {
			t.Errorf("%+v: the field is %q, want %q (%v)", c.req, caisson.FieldOf(err), c.field, err)
		}
	}
	if list := got(w.Processes().ListProcesses(w.ctx(), id))(t); len(list) != 1 {
		t.Errorf("processes are left: %v", list)
	}
}

func TestExecDefaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{Env: map[string]string{"A": "1", "B": "2"}, Workdir: "/tmp", User: "agent"})
	id := string(sb.ID)
	out, status := w.run(id, caisson.ExecRequest{Command: command("env"), Env: map[string]string{"B": "3", "C": "4"}})
	want := []string{"A=1", "B=3", "C=4", "PATH=" + sb.Spec.Env["PATH"]}
	if lines := strings.Split(strings.TrimSpace(out), "\n"); !slices.Equal(lines, want) || !status.Success() {
		t.Errorf("environment %q, want %q (%v)", lines, want, status)
	}
	for _, c := range []struct{ user, workdir, owner, path string }{
		{"", "", "1234 1234", "/tmp/f"}, {"0", "/root", "0 0", "/root/f"},
	} {
		w.run(id, caisson.ExecRequest{Command: command("fill", "f", "0"), User: c.user, Workdir: c.workdir})
		out, _ := w.run(id, caisson.ExecRequest{Command: command("stat", c.path)})
		if !strings.Contains(out, " "+c.owner+" ") {
			t.Errorf("stat of %s says %q, want owner %s", c.path, out, c.owner)
		}
	}
	if out, status := w.run(id, caisson.ExecRequest{Command: command("exit", "7")}); status.Code != 7 || out != "" {
		t.Errorf("%q, %v", out, status)
	}
	p := got(w.Processes().Exec(w.ctx(), id, caisson.ExecRequest{Command: command("cat"), Stdin: true}))(t)
	defer p.Close()
	got(io.WriteString(p.Stdin(), "hello"))(t)
	must(t, p.Stdin().Close())
	if b := got(io.ReadAll(p.Stdout()))(t); string(b) != "hello" {
		t.Errorf("cat says %q", b)
	}
}

func TestExecTimeLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := string(w.create(caisson.CreateRequest{}).ID)
	_, status := w.run(id, caisson.ExecRequest{Command: command("sleep", "1h"), Timeout: caisson.Duration(30 * time.Millisecond)})
	if status.Reason != "time limit" || status.Signal != 9 || status.String() != "ended by signal 9 (time limit)" {
		t.Errorf("status %+v", status)
	}
	_, status = w.run(id, caisson.ExecRequest{Command: command("echo"), Timeout: caisson.Duration(time.Hour)})
	if !status.Success() || status.Reason != "" {
		t.Errorf("status %+v", status)
	}
	p := got(w.Processes().Exec(w.ctx(), id, caisson.ExecRequest{Command: command("sleep", "1h"), Timeout: caisson.Duration(time.Hour)}))(t)
	must(t, p.Signal(w.ctx(), 9))
	if status := got(p.Wait(w.ctx()))(t); status.Signal != 9 || status.Reason != "" {
		t.Errorf("somebody else's kill: %+v", status)
	}
	must(t, p.Close())
}

func TestDetach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sb := w.create(caisson.CreateRequest{User: "agent", Workdir: "/tmp"})
	id := string(sb.ID)
	p := got(w.Processes().Exec(w.ctx(), id, caisson.ExecRequest{Command: command("counter", "n"), Detach: true}))(t)
	if status := got(p.Wait(w.ctx()))(t); !status.Success() || p.PID() < 3 || p.Stdin() != nil {
		t.Errorf("status %v, pid %d", status, p.PID())
	}
	if b := got(io.ReadAll(io.MultiReader(p.Stdout(), p.Stderr())))(t); len(b) != 0 {
		t.Errorf("its session says %q", b)
	}
	must(t, p.Close())
	for name, err := range map[string]error{"resize": p.Resize(1, 1), "signal": p.Signal(w.ctx(), 9)} {
		if caisson.KindOf(err) != caisson.Conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	count := func() int {
		n, err := strconv.Atoi(strings.TrimSpace(w.read(id, "/tmp/n")))
		if err != nil {
			return -1
		}
		return n
	}
	waitFor(t, func() bool { return count() > 3 })
	if out, _ := w.run(id, caisson.ExecRequest{Command: command("stat", "/tmp/n")}); !strings.Contains(out, " 1234 1234 ") {
		t.Errorf("its user: %q", out)
	}
	before := count()
	got(w.Sandboxes().Pause(w.ctx(), id))(t)
	got(w.Sandboxes().Resume(w.ctx(), id))(t)
	waitFor(t, func() bool { return count() > before })
	list := got(w.Processes().ListProcesses(w.ctx(), id))(t)
	if !slices.ContainsFunc(list, func(i caisson.ProcessInfo) bool { return i.PID == p.PID() }) {
		t.Errorf("%d is not in %v", p.PID(), list)
	}
	must(t, w.Processes().Kill(w.ctx(), id, p.PID(), 9))
	waitFor(t, func() bool {
		return !slices.ContainsFunc(got(w.Processes().ListProcesses(w.ctx(), id))(t), func(i caisson.ProcessInfo) bool { return i.PID == p.PID() })
	})
	wantKind(t, w.Processes().Kill(w.ctx(), id, p.PID(), 9), caisson.NotFound)
	wantKind(t, w.Processes().Kill(w.ctx(), id, 1, 9), caisson.Invalid)
	wantKind(t, w.Processes().Kill(w.ctx(), id, -1, 99), caisson.Invalid)
	if s := got(w.Processes().Stats(w.ctx(), id))(t); s.MemoryMax != sb.Spec.Resources.Memory || s.PIDs < 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestExecInForkAtOnce: a fork can be used as soon as it is returned, by several callers at once.
func TestExecInForkAtOnce(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	sb := w.counting()
	for _, f := range got(w.Snapshots().Fork(w.ctx(), string(sb.ID), caisson.ForkRequest{Count: 3}))(t) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				p, err := w.Processes().Exec(w.ctx(), string(f.ID), caisson.ExecRequest{Command: command("echo", "hello")})
				if err != nil {
					t.Error(err)
					return
				}
				defer p.Close()
				out, err := io.ReadAll(p.Stdout())
				if status, werr := p.Wait(w.ctx()); err != nil || werr != nil || !status.Success() || string(out) != "hello\n" {
					t.Errorf("it said %q, %v; %v, %v", out, err, status, werr)
				}
			})
		}
		wg.Wait()
	}
}

// TestRemoveEndsSessions: readers of a process's output, and callers of Wait, return when its sandbox is removed, in
// whatever state that is.
func TestRemoveEndsSessions(t *testing.T) {
	t.Parallel()
	for _, suspended := range []bool{false, true} {
		w := newWorld(t)
		sb := w.create(caisson.CreateRequest{})
		p := got(w.Processes().Exec(w.ctx(), string(sb.ID), caisson.ExecRequest{Command: command("sleep", "1h"), Stdin: true}))(t)
		defer p.Close()
		var wg sync.WaitGroup
		for _, r := range []io.Reader{p.Stdout(), p.Stderr()} {
			wg.Go(func() { io.Copy(io.Discard, r) })
		}
		wg.Go(func() {
			if status, err := p.Wait(w.ctx()); err != nil || !status.Unknown || status.Reason != "the sandbox was removed" {
				t.Errorf("its process has ended with %+v, %v", status, err)
			}
		})
		if suspended {
			got(w.Sandboxes().Suspend(w.ctx(), string(sb.ID)))(t)
		}
		must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
		ended := make(chan struct{})
		go func() { wg.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(removeWait):
			t.Fatal("a session of a sandbox that is gone has not ended")
		}
	}
}
