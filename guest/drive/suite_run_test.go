package drive_test

// The conformance suite of drivers has agents that behave well or badly. The agents and the program that drives them are the test
// binary, executed again, so that processes, pipes and signals are real.

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/drive"
	"github.com/caisson-dev/caisson/guest/task"
)

// Environment variables of the test binary when it is executed again.
const (
	roleEnv  = "DRIVETEST_ROLE"  // "drive", or the name of a fake agent
	traceEnv = "DRIVETEST_TRACE" // identifies all processes of one test
)

// testTimeout is the timeout of a test that hangs.
const testTimeout = 4 * time.Minute

// Main is called by TestMain. It runs the tests, or one of the programs that they start. Agents are the fake agents by name.
func Main(m *testing.M, drivers map[string]drive.Driver, agents map[string]func()) int {
	runChild()
	role := os.Getenv(roleEnv)
	if role == "" {
		return m.Run()
	}
	os.Unsetenv(roleEnv)
	if role == "drive" {
		return drive.Main(nil, os.Stdin, os.Stdout, drivers)
	}
	agents[role]()
	return 0
}

// A Result is the result of a task.
type Result struct {
	Lines []task.Line
	Text  string            // concatenation of all text_delta
	Logs  map[string]string // by stream
	End   *task.Line        // nil if there is none
	Final bool              // whether there was assistant_final
	Exit  int               // exit code of drive
	Took  time.Duration
}

// Code returns the error code of the end line, or "" if it has no error.
func (r *Result) Code() string {
	if r.End == nil {
		return "no end"
	}
	if r.End.Error == nil {
		return ""
	}
	return r.End.Error.Code
}

// Types returns the types of the lines in order, without text and logs.
func (r *Result) Types() []string {
	var all []string
	for _, l := range r.Lines {
		if l.Type != caisson.EventTextDelta && l.Type != task.LineLog {
			all = append(all, l.Type)
		}
	}
	return all
}

// A Session is a running task.
type Session struct {
	t     testing.TB
	cmd   *exec.Cmd
	r     *task.Reader
	pipe  *os.File
	trace string
	began time.Time
}

// Task returns a task for a fake agent, with a new working directory.
func Task(t testing.TB, driver, agent string) *task.Task {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return &task.Task{
		Driver: driver, Command: []string{self}, Prompt: "the prompt", Env: map[string]string{roleEnv: agent},
		Workdir: dir, Track: dir, Time: caisson.Duration(3 * time.Minute), Grace: caisson.Duration(time.Second), Output: 1 << 20,
	}
}

// Home returns the home directory of the user that runs a task.
func Home(k *task.Task) string { return k.Workdir + "-home" }

// Start starts a task of [Task].
func Start(t testing.TB, k *task.Task) *Session {
	t.Helper()
	return StartAs(t, k.Command[0], k)
}

// StartAs starts any task; self is the path of the test binary.
func StartAs(t testing.TB, self string, k *task.Task) *Session {
	t.Helper()
	line, err := task.Encode(k)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{t: t, pipe: r, r: task.NewReader(r, k.Output), trace: rand.Text(), began: time.Now()}
	t.Cleanup(func() { r.Close() })
	s.cmd = exec.Command(self)
	s.cmd.Env = append(os.Environ(), "HOME="+Home(k), roleEnv+"=drive", traceEnv+"="+s.trace)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = bytes.NewReader(line), w, os.Stderr
	err = s.cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(testTimeout, func() { s.cmd.Process.Kill() })
	t.Cleanup(func() { watchdog.Stop() })
	return s
}

// Next returns the next line, or nil at the end.
func (s *Session) Next() *task.Line {
	s.t.Helper()
	l, err := s.r.Next()
	switch {
	case err == nil:
		return &l
	case !errors.Is(err, io.EOF):
		s.t.Errorf("read what was said: %v", err)
	}
	return nil
}

// ReadUntil reads up to the first line of a type, which it returns; the test fails if there is none.
func (s *Session) ReadUntil(kind string) *task.Line {
	s.t.Helper()
	for l := s.Next(); l != nil; l = s.Next() {
		if l.Type == kind {
			return l
		}
	}
	s.t.Fatalf("no line of type %s", kind)
	return nil
}

// Signal sends a signal to drive.
func (s *Session) Signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// CloseReader closes the reader's end of the pipe.
func (s *Session) CloseReader() { s.pipe.Close() }

// Wait reads the remaining lines and checks that no process is left.
func (s *Session) Wait() *Result {
	s.t.Helper()
	r := &Result{Logs: map[string]string{}}
	var text strings.Builder
	for l := s.Next(); l != nil; l = s.Next() {
		r.Lines = append(r.Lines, *l)
		switch l.Type {
		case caisson.EventTextDelta:
			text.WriteString(l.Delta)
		case caisson.EventFinal:
			r.Final = true
		case task.LineLog:
			r.Logs[l.Stream] += string(l.Data)
		case task.LineEnd:
			r.End = l
		}
	}
	r.Text = text.String()
	r.Exit = s.WaitExit()
	r.Took = time.Since(s.began)
	return r
}

// WaitExit waits until drive exits, and checks that no process is left. It returns the exit code.
func (s *Session) WaitExit() int {
	s.t.Helper()
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	for _, p := range Survivors(traceEnv + "=" + s.trace) {
		s.t.Errorf("process %s is left", p)
		if pid, err := strconv.Atoi(strings.TrimPrefix(strings.Fields(p)[0], "/proc/")); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // so that it does not affect other tests
		}
	}
	return s.cmd.ProcessState.ExitCode()
}

// Do runs a task to its end.
func Do(t testing.TB, k *task.Task) *Result {
	t.Helper()
	return Start(t, k).Wait()
}

// Survivors returns the processes that have a variable in their environment.
func Survivors(variable string) []string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var all []string
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err == nil && bytes.Contains(env, []byte(variable+"\x00")) {
			name, _ := os.ReadFile(dir + "/cmdline")
			all = append(all, dir+" "+strings.ReplaceAll(string(name), "\x00", " "))
		}
	}
	return all
}
