package apitest

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

func testProcesses(t *testing.T, ctx context.Context, c Cores) {
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{Command: []string{"echo", "first"}}).ID)
	p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"sleep"}}))(t)
	defer p.Close()
	if list := must(c.Processes.ListProcesses(ctx, sb))(t); !slices.ContainsFunc(list, func(i caisson.ProcessInfo) bool { return i.PID == p.PID() }) {
		t.Errorf("%+v", list)
	}
	Fails(t, c.Processes.Kill(ctx, sb, 4711, 15), caisson.NotFound, "")
	succeeds(t, c.Processes.Kill(ctx, sb, p.PID(), 15))
	if status := must(p.Wait(ctx))(t); status.Signal != 15 || status.Code != 143 {
		t.Errorf("%+v", status)
	}
	if stats := must(c.Processes.Stats(ctx, sb))(t); stats.MemoryMax != 2<<30 {
		t.Errorf("%+v", stats)
	}
	follow, stop := context.WithCancel(ctx)
	defer stop()
	logs := must(c.Processes.Logs(follow, sb, true))(t)
	defer logs.Close()
	if b := must(io.ReadAll(io.LimitReader(logs, 6)))(t); string(b) != "first\n" {
		t.Errorf("%q", b)
	}
	stop()
	io.Copy(io.Discard, logs) // Copy must return; whether it returns an error is not defined
	logs = must(c.Processes.Logs(ctx, sb, false))(t)
	defer logs.Close()
	if b := must(io.ReadAll(logs))(t); string(b) != "first\n" {
		t.Errorf("%q", b)
	}
}

// collectOutput reads both outputs of a process to their end and returns them with its exit status.
func collectOutput(t testing.TB, ctx context.Context, p caisson.Process) (stdout, stderr string, status caisson.ExitStatus) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { b, _ := io.ReadAll(p.Stderr()); stderr = string(b) })
	b, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Error(err)
	}
	wg.Wait()
	return string(b), stderr, must(p.Wait(ctx))(t)
}

func testExec(t *testing.T, ctx context.Context, c Cores) {
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{}).ID)
	for _, tt := range []struct {
		command        []string
		stdin          string
		stdout, stderr string
		code           int
	}{
		{command: []string{"echo", "a", "b"}, stdout: "a b\n"},
		{command: []string{"cat"}, stdin: "in\x00\xff", stdout: "in\x00\xff"},
		{command: []string{"cat"}},
		{command: []string{"exit", "42"}, code: 42},
		{command: []string{"fail"}, stderr: "no\n", code: 1},
	} {
		t.Run(strings.Join(tt.command, " "), func(t *testing.T) {
			p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: tt.command, Stdin: tt.stdin != ""}))(t)
			defer p.Close()
			if in := p.Stdin(); (in != nil) != (tt.stdin != "") {
				t.Fatalf("stdin is %v", in)
			} else if in != nil {
				io.WriteString(in, tt.stdin)
				in.Close()
			}
			stdout, stderr, status := collectOutput(t, ctx, p)
			if stdout != tt.stdout || stderr != tt.stderr || status.Code != tt.code {
				t.Errorf("%q, %q, %v", stdout, stderr, status)
			}
			if again := must(p.Wait(ctx))(t); again != status {
				t.Errorf("second wait says %v", again)
			}
		})
	}
	_, err := c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"nonsense"}})
	Fails(t, err, caisson.Invalid, "command")
	_, err = c.Processes.Exec(ctx, "nobody", caisson.ExecRequest{Command: []string{"echo"}})
	Fails(t, err, caisson.NotFound, "")

	p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"size"}, TTY: true, Stdin: true}))(t)
	defer p.Close()
	succeeds(t, p.Resize(50, 132))
	if stdout, _, _ := collectOutput(t, ctx, p); strings.TrimSpace(stdout) != "50 132" {
		t.Errorf("%q", stdout)
	}
	p = must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"sleep"}}))(t)
	defer p.Close()
	Fails(t, p.Resize(1, 1), caisson.Conflict, "")
	Fails(t, p.Signal(ctx, 99), caisson.Invalid, "signal")
}

// testFlood checks that large inputs and outputs of a process arrive complete.
func testFlood(t *testing.T, ctx context.Context, c Cores) {
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{}).ID)
	const size = 8 << 20
	want := strings.Repeat("0123456789abcdef", size/16)

	t.Run("out", func(t *testing.T) {
		p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"flood", fmt.Sprint(size)}}))(t)
		defer p.Close()
		stdout, stderr, status := collectOutput(t, ctx, p)
		if stdout != want || stderr != want || !status.Success() {
			t.Errorf("%d and %d bytes, %v", len(stdout), len(stderr), status)
		}
	})
	t.Run("both ways", func(t *testing.T) {
		p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"cat"}, Stdin: true}))(t)
		defer p.Close()
		go func() {
			io.Copy(p.Stdin(), strings.NewReader(want))
			p.Stdin().Close()
		}()
		if stdout, _, status := collectOutput(t, ctx, p); stdout != want || !status.Success() {
			t.Errorf("%d bytes, %v", len(stdout), status)
		}
	})
	t.Run("signal overtakes", func(t *testing.T) {
		// The process reads nothing and its outputs are not read: a signal must be delivered nevertheless.
		p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"flood", fmt.Sprint(1 << 30)}, Stdin: true}))(t)
		defer p.Close()
		wrote := make(chan error, 1)
		go func() { _, err := io.Copy(p.Stdin(), strings.NewReader(want)); wrote <- err }()
		io.ReadFull(p.Stdout(), make([]byte, 1000))
		succeeds(t, p.Signal(ctx, 9))
		if _, _, status := collectOutput(t, ctx, p); status.Signal != 9 {
			t.Error(status)
		}
		if err := <-wrote; err == nil {
			t.Error("writing to a dead process succeeds")
		}
	})
}

// testExecEnds checks how exec sessions end: by a time limit, with unread output, or when the client closes them.
func testExecEnds(t *testing.T, ctx context.Context, c Cores) {
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{}).ID)
	t.Run("time limit", func(t *testing.T) {
		p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"sleep"}, Timeout: caisson.Duration(time.Millisecond)}))(t)
		defer p.Close()
		if status := must(p.Wait(ctx))(t); status.Reason != "time limit" {
			t.Error(status)
		}
	})
	t.Run("unread output", func(t *testing.T) {
		p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"echo", "hello"}}))(t)
		defer p.Close()
		must(p.Wait(ctx))(t)
		if b := must(io.ReadAll(p.Stdout()))(t); string(b) != "hello\n" {
			t.Errorf("%q", b)
		}
	})
	t.Run("closed input", func(t *testing.T) {
		p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"shut"}, Stdin: true}))(t)
		defer p.Close()
		io.ReadFull(p.Stdout(), make([]byte, 5))
		endless := must(os.Open("/dev/zero"))(t)
		defer endless.Close()
		if _, err := io.Copy(p.Stdin(), endless); err == nil {
			t.Error("endless input was taken by a process that reads none")
		}
	})
	t.Run("close kills", func(t *testing.T) {
		p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"sleep"}}))(t)
		succeeds(t, p.Close())
		p.Close() // Close is idempotent
		poll.Until(t, Timeout, func() bool {
			list := must(c.Processes.ListProcesses(ctx, sb))(t)
			return len(list) == 1
		})
	})
	t.Run("wait is cancelled", func(t *testing.T) {
		p := must(c.Processes.Exec(ctx, sb, caisson.ExecRequest{Command: []string{"sleep"}}))(t)
		defer p.Close()
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := p.Wait(ctx); err == nil {
			t.Error("no error")
		}
	})
}
