package coder

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/poll"
)

func TestShell(t *testing.T) {
	b := newBench(t)
	for _, row := range []struct {
		command string
		failed  bool
		want    string
	}{
		{"echo out; echo err >&2", false, "exit 0\nout\nerr\n"},
		{"exit 3", true, "exit 3\n"},
		{"kill -9 $$", true, "killed by signal 9 (killed)\n"},
		{"pwd", false, "exit 0\n" + b.dir + "\n"},
		{"cat", false, "exit 0\n"},
		{"test -t 0 || test -t 1 || echo no terminal", false, "exit 0\nno terminal\n"},
		{`printf 'a\000\001\377b\033[31mc\r\n'`, false, "exit 0\na\uFFFDbc\n"},
		{"none-such", true, "not found"},
		{"if", true, "exit 2"},
	} {
		b.want(b.call("shell", in{"command": row.command}), row.failed, row.want)
	}
	b.want(b.call("shell", in{"command": ""}), true, "empty")
	b.want(b.call("shell", in{"command": strings.Repeat("x", 200<<10)}), true, "128 KiB")
	b.want(b.call("shell", in{"command": "true\x00"}), true, "could not be started")
}

func TestShellOutputIsBounded(t *testing.T) {
	b := newBench(t)
	r := b.call("shell", in{"command": "echo first; head -c 1000000000 /dev/zero; echo; echo last"})
	b.want(r, false, "exit 0\nfirst\n", "bytes left out]", "\nlast\n")
	r = b.call("shell", in{"command": "seq 1 100000"})
	b.want(r, false, "exit 0\n1\n2\n", "\n99999\n100000\n")
}

func TestShellEnds(t *testing.T) {
	b := newBench(t)
	r := b.call("shell", in{"command": "echo begun; sleep 600 & sleep 600", "timeout": "1"})
	b.want(r, true, "timed out after 1s", "begun")
	r = b.call("shell", in{"command": "trap '' TERM; echo deaf; while :; do sleep 0.1; done", "timeout": 1})
	b.want(r, true, "timed out after 1s", "deaf")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		poll.Until(t, time.Minute, func() bool { _, err := os.Stat(b.path("up")); return err == nil })
		cancel()
	}()
	r = b.callUntil(ctx, "shell", in{"command": "touch up; sleep 600"})
	b.want(r, true, "ended with the task")
}

// TestShellLeavesTheBackgroundRunning: a background process that has the pipe open does not block the tool, can continue to
// write, and is killed at the end of the task.
func TestShellLeavesTheBackgroundRunning(t *testing.T) {
	b := newBench(t)
	r := b.call("shell", in{"command": "(while :; do echo tick; echo x >> ticks; sleep 0.05; done) & echo $! > pid; echo started"})
	b.want(r, false, "exit 0; something that it started is still running", "started")
	size := func() int64 {
		info, err := os.Stat(b.path("ticks"))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	before := size()
	poll.Until(t, time.Minute, func() bool { return size() > before+10 })
	var pid int
	data, err := os.ReadFile(b.path("pid"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(data), &pid); err != nil {
		t.Fatal(err)
	}
	b.box.shell.close()
	poll.Until(t, time.Minute, func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(status), ") Z ")
	})
	poll.Until(t, time.Minute, func() bool {
		b.box.shell.mu.Lock()
		defer b.box.shell.mu.Unlock()
		return len(b.box.shell.openGroups) == 0
	})
}

func TestShellIsNotThere(t *testing.T) {
	r := startFailure(&os.PathError{Op: "fork/exec", Path: shellProgram, Err: syscall.ENOENT}, t.TempDir())
	if !r.failed || !strings.Contains(r.text, "There is no /bin/sh") {
		t.Errorf("%+v", r)
	}
	s := &shell{dir: filepath.Join(t.TempDir(), "gone")}
	if r := s.run(t.Context(), []byte(`{"command":"true"}`)); !r.failed || !strings.Contains(r.text, "workspace is gone") {
		t.Errorf("%+v", r)
	}
}

func TestCapture(t *testing.T) {
	for total := range 40 {
		for piece := 1; piece < 15; piece++ {
			c := newOutputBuffer(5, 7)
			var all string
			for i := range total {
				all += string(rune('a' + i%26))
			}
			for rest := all; rest != ""; {
				n := min(piece, len(rest))
				if k, err := io.WriteString(c, rest[:n]); k != n || err != nil {
					t.Fatal(k, err)
				}
				rest = rest[n:]
			}
			want := all
			if total > 12 {
				want = fmt.Sprintf("%s\n[%d bytes left out]\n%s", all[:5], total-12, all[total-7:])
			}
			if got := c.String(); got != want {
				t.Fatalf("%d in pieces of %d: %q, want %q", total, piece, got, want)
			}
		}
	}
}
