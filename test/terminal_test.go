package test_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// leaveKeys are the keys that leave a terminal: Ctrl-P Ctrl-Q.
const leaveKeys = "\x10\x11"

// A desk is a command with a terminal, at which the test types.
type desk struct {
	h      *host
	cmd    *exec.Cmd
	master *os.File
	ended  chan struct{} // closed when the command has ended and all its output was read

	mu  sync.Mutex
	out bytes.Buffer // what was written to the terminal; guarded by mu
}

// sit starts a command with a terminal.
func (h *host) sit(args ...string) *desk {
	h.t.Helper()
	d := &desk{h: h, cmd: h.command(context.Background(), args...), ended: make(chan struct{})}
	d.cmd.Env = append(d.cmd.Env, "TERM=xterm")
	var err error
	if d.master, err = pty.StartWithSize(d.cmd, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		defer close(d.ended)
		b := make([]byte, 4096)
		for {
			n, err := d.master.Read(b)
			d.mu.Lock()
			d.out.Write(b[:n])
			d.mu.Unlock()
			if err != nil {
				_ = d.cmd.Wait() // the exit code is in ProcessState
				return
			}
		}
	}()
	h.t.Cleanup(d.kill)
	return d
}

// kill kills the command.
func (d *desk) kill() {
	_ = d.cmd.Process.Kill()
	<-d.ended
	d.master.Close()
}

func (d *desk) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.String()
}

// sees waits for text on the terminal.
func (d *desk) sees(want string) {
	d.h.t.Helper()
	defer func() {
		if d.h.t.Failed() {
			d.h.t.Logf("waited for %q in %q", want, d.text())
		}
	}()
	poll.Until(d.h.t, settle, func() bool { return strings.Contains(d.text(), want) })
}

// types types text.
func (d *desk) types(text string) {
	d.h.t.Helper()
	if _, err := d.master.WriteString(text); err != nil {
		d.h.t.Fatal(err)
	}
}

// leaves leaves the terminal and checks that the command says how to come back.
func (d *desk) leaves(back string) {
	d.h.t.Helper()
	d.types(leaveKeys)
	d.ends(0)
	if !strings.Contains(d.text(), "attach again with: caisson attach "+back) {
		d.h.t.Errorf("it does not say how to come back: %q", d.text())
	}
}

// ends waits for the end of the command and checks its exit code.
func (d *desk) ends(code int) {
	d.h.t.Helper()
	poll.Until(d.h.t, settle, func() bool {
		select {
		case <-d.ended:
			return true
		default:
			return false
		}
	})
	if got := d.cmd.ProcessState.ExitCode(); got != code {
		d.h.t.Errorf("%v ended with %d: %q", d.cmd.Args, got, d.text())
	}
}

// TestTerminal uses a shell in a sandbox through detaching, a crash of the daemon, and pauses.
func TestTerminal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	daemon := h.serve()
	h.ok("sandbox", "create", "host", "--name", "web")
	d := h.sit("exec", "-it", "--detach-keys", "ctrl-p,ctrl-q", "web", "--", "sh")
	d.types("stty size; secret=kept; echo begin-$((40 + 2))\n")
	d.sees("30 100")
	d.sees("begin-42")
	d.leaves("web tm-")

	again := func(text string) *desk {
		t.Helper()
		d := h.sit("attach", "web")
		d.sees("begin-42") // its screen
		d.types("echo $secret-" + text + "\n")
		d.sees("kept-" + text)
		return d
	}
	d = again("detached")
	daemon.kill()
	<-d.ended // the client cannot go on
	h.serve()
	again("restarted").leaves("web")
	h.ok("sandbox", "suspend", "web")
	h.ok("sandbox", "wake", "web")
	d = again("woken")
	h.ok("sandbox", "pause", "web")
	<-d.ended
	if !strings.Contains(d.text(), "the sandbox was paused") {
		t.Errorf("what happened is not said: %q", d.text())
	}
	h.ok("sandbox", "resume", "web")
	d = again("resumed")
	h.ok("sandbox", "snapshot", "--name", "copy", "web")
	d.sees("resumed")

	// A fork has its own copy.
	h.ok("sandbox", "fork", "--name", "other", "web")
	o := h.sit("attach", "other")
	o.sees("begin-42")
	o.types("secret=changed; exit 9\n")
	o.ends(9)
	d = again("unchanged")

	// Two viewers, of which the last one types.
	viewer := h.sit("attach", "--read-only", "web")
	viewer.sees("begin-42")
	second := again("second")
	d.sees("you can only view it")
	viewer.sees("kept-second")
	viewer.types("\x03")
	viewer.ends(130)
	d.types("exit 1\n")
	if list := shows[[]caisson.Terminal](h, "terminal", "ls", "web"); len(list) != 1 || list[0].Viewers != 2 || list[0].Exit != nil {
		t.Errorf("%+v", list)
	}
	second.types("exit 7\n")
	second.ends(7)
	d.ends(7)
	poll.Until(t, settle, func() bool { return len(shows[[]caisson.Terminal](h, "terminal", "ls", "web")) == 0 })
	h.fails(3, "no terminal", "attach", "web")
}

// TestTerminalEnds checks that the end of a program is not lost: if it ends at once, if it cannot be started, and if it leaves others
// behind.
func TestTerminalEnds(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve()
	h.ok("sandbox", "create", "host", "--name", "web")
	for script, code := range map[string]int{
		"exit 3":    3,
		"echo said": 0,
		"(trap '' HUP; sleep 3000) & echo said; exit 4": 4,
		"kill -9 $$": 137,
	} {
		d := h.sit("exec", "-it", "--detach-keys", "ctrl-p,ctrl-q", "web", "--", "sh", "-c", script)
		d.ends(code)
		if strings.Contains(script, "said") {
			d.sees("said")
		}
	}
	d := h.sit("exec", "-it", "--detach-keys", "ctrl-p,ctrl-q", "-u", "1000", "web", "--", "nonsense")
	d.ends(127)
	d.sees("nonsense")
	d = h.sit("exec", "-it", "--detach-keys", "ctrl-p,ctrl-q", "-u", "1000", "-w", "/tmp", "web", "--", "sh", "-c", "id -u; pwd; : > /dev/tty && echo fine; read line")
	d.sees("1000")
	d.sees("/tmp")
	d.sees("fine")
	d.leaves("web")
	h.ok("terminal", "rm", "web", h.ok("terminal", "ls", "-q", "web"))
	h.fails(3, "no terminal", "terminal", "rm", "web", "tm-aaaaaaaaaaaaaaaa")
	// As on Linux: programs that write at an offset try again without one.
	d = h.sit("exec", "-it", "--detach-keys", "ctrl-p,ctrl-q", "web", "--", "sh", "-c", "command -v python3 || exit 7; "+
		`python3 -c "
import errno, os
for call in (lambda: os.pwrite(1, b'x', 0), lambda: os.pread(0, 1, 0), lambda: os.pwritev(1, [b'x'], 0), lambda: os.preadv(0, [bytearray(1)], 0)):
    try: call()
    except OSError as e: print(errno.errorcode[e.errno])
"`)
	<-d.ended
	if code := d.cmd.ProcessState.ExitCode(); code != 7 && strings.Count(d.text(), "ESPIPE") != 4 {
		t.Errorf("%d: %q", code, d.text())
	}
	h.fails(2, "needs -it", "exec", "--detach-keys", "ctrl-p", "web", "--", "true")
}

// TestInteractiveRun uses an agent's own interface: the edits are in the workspace, through a crash of the daemon.
func TestInteractiveRun(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	daemon := h.serve()
	h.write("work/given.txt", "given\n")
	work := filepath.Join(h.dir, "work")
	h.ok("agent", "add", h.write("agent.yaml", `
id: typist
name: Typist
driver: exec
image: host
command: [sh, -c, "{prompt}"]
interactive: [sh, -c, 'echo workspace $CAISSON_WORKSPACE; while read -r line; do eval "$line"; done']
models: ["-"]
limits: {memory: 512M}
`))
	d := h.sit("run", "-it", "typist", "-C", work)
	d.sees("workspace /workspace")
	d.types("cat given.txt; echo edited > given.txt; word=kept\n")
	d.sees("given\r\n")
	d.types(leaveKeys)
	d.ends(0)
	id := regexp.MustCompile(`caisson attach (rn-[a-z2-7]{16})`).FindStringSubmatch(d.text())
	if id == nil {
		t.Fatalf("it does not say how to come back: %q", d.text())
	}
	run := id[1]
	daemon.kill()
	h.serve()
	if r := shows[caisson.Run](h, "runs", "show", run); r.State.Ended() {
		t.Fatalf("%+v", r.Result)
	}
	d = h.sit("attach", run)
	d.sees("workspace /workspace")
	d.types("echo $word > more.txt; echo $word-here; ")
	d.types("exit 0\n")
	d.sees("kept-here")
	d.ends(0)
	if r := shows[caisson.Run](h, "runs", "show", run); r.State != caisson.RunSucceeded || r.Result.Exit == nil || r.Result.Exit.Code != 0 {
		t.Errorf("%+v", r.Result)
	}
	diff := h.ok("diff", run)
	for _, want := range []string{"given.txt", "more.txt", "+edited", "+kept"} {
		if !strings.Contains(diff, want) {
			t.Errorf("no %q in %s", want, diff)
		}
	}
	h.ok("sync", "--yes", run)
	for name, want := range map[string]string{"given.txt": "edited\n", "more.txt": "kept\n"} {
		if got, err := os.ReadFile(filepath.Join(work, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// Cancelling ends the program.
	other := h.ok("run", "-dit", "typist")
	poll.Until(t, settle, func() bool { return shows[caisson.Run](h, "runs", "show", other).Terminal != "" })
	h.ok("cancel", other)
	if r := shows[caisson.Run](h, "runs", "show", other); r.Result == nil || r.Result.Error == nil || r.Result.Error.Code != caisson.RunAborted {
		t.Errorf("%+v", r.Result)
	}
}
