package drive_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/drive"
	"github.com/caisson-dev/caisson/guest/task"
)

func init() {
	others["env"] = func() {
		cwd, _ := os.Getwd()
		fmt.Printf("%s %s %s", os.Getenv("ADDED"), os.Getenv("HOME"), cwd)
	}
	others["stdin"] = func() {
		n, _ := io.Copy(io.Discard, os.Stdin)
		fmt.Print(n)
	}
}

// TestOrder: lines are written in the documented order.
func TestOrder(t *testing.T) {
	k := Task(t, caisson.DriverExec, "exec/answer")
	r := Do(t, k)
	want := []string{task.LineMark, caisson.EventStatus, task.LineMark, task.LineMark, caisson.EventFinal, task.LineChanges, task.LineEnd}
	if d := cmp.Diff(want, r.Types()); d != "" {
		t.Error(d)
	}
}

func TestEnvironment(t *testing.T) {
	k := Task(t, caisson.DriverExec, "env")
	k.Env["ADDED"] = "1"
	k.Track = ""
	r := Do(t, k)
	if want := "1 " + Home(k) + " " + k.Workdir; r.Text != want {
		t.Errorf("%q, want %q", r.Text, want)
	}
}

func TestStdin(t *testing.T) {
	k := Task(t, caisson.DriverExec, "stdin")
	k.PromptMode, k.Prompt = caisson.PromptStdin, strings.Repeat("x", 1<<20)
	if r := Do(t, k); r.Text != "1048576" {
		t.Errorf("%q, %v", r.Text, r.End.Error)
	}
	k.PromptMode = "" // without a prompt on its input, the program does not wait for input
	k.Prompt = "x"
	if r := Do(t, k); r.Text != "0" {
		t.Errorf("%q, %v", r.Text, r.End.Error)
	}
}

// TestNotReady: an agent whose service does not become ready is not started.
func TestNotReady(t *testing.T) {
	k := Task(t, caisson.DriverExec, "exec/answer")
	k.Ready, k.ReadyTime = "http://127.0.0.1:1/ready", caisson.Duration(200*time.Millisecond)
	r := Do(t, k)
	if r.Code() != caisson.RunAgentError || r.Text != "" || !strings.Contains(r.End.Error.Message, "not ready within 200ms") {
		t.Errorf("text %q, %v", r.Text, r.End.Error)
	}
	k.ReadyTime, k.Time = caisson.Duration(time.Minute), caisson.Duration(200*time.Millisecond)
	if r := Do(t, k); r.Code() != caisson.RunTimeout || !strings.Contains(r.End.Error.Message, "was not ready within") {
		t.Errorf("%v", r.End.Error)
	}
}

// TestBackground: background programs keep running, with or without their own session, and other processes are killed.
func TestBackground(t *testing.T) {
	k := Task(t, caisson.DriverExec, "")
	self, mark := k.Command[0], "DRIVETEST_BACKGROUND="+t.TempDir()
	k.Command = []string{"/bin/sh", "-c", `cp "$(command -v sleep)" keeper; cp keeper stray
		for p in keeper stray; do
			env -i ` + mark + ` ./$p 3000 > /dev/null 2>&1 &
			env -i ` + mark + ` setsid ./$p 3001 > /dev/null 2>&1 &
		done
		until [ "$(cat /proc/[0-9]*/comm 2>/dev/null | grep -cE '^(keeper|stray)$')" -ge 4 ]; do :; done; echo`}
	k.Background = []string{"keeper"}
	r := StartAs(t, self, k).Wait()
	left := Survivors(mark)
	for _, p := range left {
		var pid int
		if _, err := fmt.Sscanf(p, "/proc/%d ", &pid); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if r.End.Error != nil || len(left) != 2 || strings.Contains(strings.Join(left, ""), "stray") {
		t.Errorf("%v; what runs on is %q", r.End.Error, left)
	}
}

func TestNotStarted(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, c := range map[string]struct {
		change     func(*task.Task)
		code, want string
	}{
		"no program":  {func(k *task.Task) { k.Command = []string{missing} }, caisson.RunAgentError, "no such file"},
		"not in PATH": {func(k *task.Task) { k.Command = []string{"missing-program"} }, caisson.RunAgentError, "not found in $PATH"},
		"not in its own PATH": {
			func(k *task.Task) { k.Command, k.Env["PATH"] = []string{"sh"}, "/none" }, caisson.RunAgentError, "not found in $PATH",
		},
		"no command":  {func(k *task.Task) { k.Command = nil; k.PromptMode = caisson.PromptStdin }, caisson.RunAgentError, "no command"},
		"long prompt": {func(k *task.Task) { k.Prompt = strings.Repeat("x", 1<<20) }, caisson.RunAgentError, "by stdin or file"},
		"nul":         {func(k *task.Task) { k.Prompt = "\x00" }, caisson.RunInvalid, "NUL"},
		"dialect":     {func(k *task.Task) { k.Driver, k.Events = caisson.DriverJSONL, map[string]string{"dialect": "x"} }, caisson.RunInvalid, "no dialect"},
		"driver":      {func(k *task.Task) { k.Driver = "x" }, caisson.RunInvalid, "no driver"},
		"directory":   {func(k *task.Task) { k.Workdir = os.Args[0] }, caisson.RunInternal, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			k := Task(t, caisson.DriverExec, "exec/answer")
			self := k.Command[0]
			c.change(k)
			s := StartAs(t, self, k)
			if r := s.Wait(); r.Code() != c.code || !strings.Contains(r.End.Error.Message, c.want) {
				t.Errorf("%v, want %s: %s", r.End.Error, c.code, c.want)
			}
		})
	}
}

func TestBadTask(t *testing.T) {
	for _, in := range []string{"", "{}", "\n", strings.Repeat("x", 1<<20)} {
		var out bytes.Buffer
		if code := drive.Main(nil, strings.NewReader(in), &out, drive.Drivers()); code != 0 {
			t.Errorf("exit code %d", code)
		}
		r := task.NewReader(&out, 0)
		if l, err := r.Next(); err != nil || l.Type != task.LineEnd || l.Error.Code != caisson.RunInvalid {
			t.Errorf("%+v, %v", l, err)
		}
	}
}
