package guestd

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// startTest starts a test program and stops it at the end of t.
func startTest(t *testing.T, start StartFunc, args ...string) caisson.Process {
	t.Helper()
	p := must[caisson.Process](t)(start(t.Context(), append([]string{"test"}, args...), true))
	t.Cleanup(func() { p.Close() })
	return p
}

// both runs test with the programs as functions and as processes.
func both(t *testing.T, test func(t *testing.T, start StartFunc, dir string)) {
	t.Run("in process", func(t *testing.T) { test(t, inProcess(t, t.TempDir()), "") })
	t.Run("process", func(t *testing.T) {
		dir := t.TempDir()
		test(t, realProcess(t, 0), dir)
	})
}

func TestPrograms(t *testing.T) {
	both(t, func(t *testing.T, start StartFunc, dir string) {
		for _, row := range []struct {
			args   []string
			stdin  string
			stdout string
			stderr string // part of it
			code   int
		}{
			{[]string{"echo", "a", "b  c"}, "", "a b  c\n", "", 0},
			{[]string{"cat"}, "x\ny", "x\ny", "", 0},
			{[]string{"exit", "7"}, "", "", "", 7},
			{[]string{"exit", "256"}, "", "", "not a number", 125},
			{[]string{"exit"}, "", "", "usage", 125},
			{[]string{"nosuch"}, "", "", "no program", 127},
			{nil, "", "", "no program given", 125},
			{[]string{"counter"}, "\n\nx\n", "1\n2\n3\n", "", 0},
			{[]string{"sleep", "1ms"}, "", "", "", 0},
			{[]string{"sleep", "long"}, "", "", "duration", 125},
			{[]string{"env"}, "", "", "", 0},
			{[]string{"fill", dir + "/full", "200000"}, "", "200000\n", "", 0},
			{[]string{"fill", dir + "/none/full", "1"}, "", "0 no such file or directory\n", "", 1},
			{[]string{"stat", dir + "/full"}, "", "file 0644 0 0 200000\n", "", 0},
			{[]string{"stat", dir + "/none"}, "", "", "no such file", 1},
			{[]string{"alloc", "10000000"}, "", "10000000\n", "", 0},
			{[]string{"spawn", "0"}, "", "0\n", "", 0},
			{[]string{"tty"}, "", "", "not a terminal", 1},
		} {
			if len(row.args) > 0 && row.args[0] == "stat" && os.Getuid() != 0 {
				continue
			}
			p := startTest(t, start, row.args...)
			go func() {
				io.WriteString(p.Stdin(), row.stdin)
				p.Stdin().Close()
			}()
			errs := make(chan string)
			go func() {
				b, _ := io.ReadAll(p.Stderr())
				errs <- string(b)
			}()
			out := string(must[[]byte](t)(io.ReadAll(p.Stdout())))
			stderr := <-errs
			code := wait(t, p)
			if out != row.stdout || !strings.Contains(stderr, row.stderr) || code != row.code || (row.stderr == "" && stderr != "") {
				t.Errorf("%q: %q, %q, %d", row.args, out, stderr, code)
			}
		}
	})
}

// wait returns the exit code of p, whose output has ended.
func wait(t *testing.T, p caisson.Process) int {
	t.Helper()
	q := p.(*pipes)
	if q.wait != nil {
		return q.wait()
	}
	return must[caisson.ExitStatus](t)(p.Wait(t.Context())).Code
}

func TestCounterIntoFile(t *testing.T) {
	both(t, func(t *testing.T, start StartFunc, dir string) {
		p := startTest(t, start, "counter", dir+"/count")
		go io.Copy(io.Discard, p.Stderr())
		r := NewClient(start)
		defer r.Close()
		g := guest{Client: r, dir: dir}
		poll(t, "the counter reaches 5", func() bool {
			f, err := g.ReadFile(testContext(t), g.path("count"), 0, 0)
			if err != nil {
				return false
			}
			defer f.Close()
			b, _ := io.ReadAll(f)
			n, err := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil {
				t.Fatalf("a reader saw %q", b)
			}
			return n >= 5
		})
	})
}

func TestIgnoreTerm(t *testing.T) {
	cmd := exec.Command(helper, "test", "ignore-term")
	out := must[io.ReadCloser](t)(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	lines.ReadString('\n')
	cmd.Process.Signal(syscall.SIGTERM)
	if line, err := lines.ReadString('\n'); line != "ignored\n" {
		t.Errorf("%q, %v", line, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
}

func TestTTY(t *testing.T) {
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		testneed.Skip(t, "pty", err.Error())
	}
	defer ptmx.Close()
	unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0)
	n := must[int](t)(unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN))
	tty := must[*os.File](t)(os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(n)), os.O_RDWR|syscall.O_NOCTTY, 0))
	unix.IoctlSetWinsize(int(ptmx.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	cmd := exec.Command(helper, "test", "tty")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	lines := bufio.NewReader(ptmx)
	for _, want := range []string{"24 80\r\n", "50 132\r\n"} {
		if line, err := lines.ReadString('\n'); line != want {
			t.Errorf("%q, %v; want %q", line, err, want)
		}
		unix.IoctlSetWinsize(int(ptmx.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 132})
	}
	cmd.Process.Kill()
	cmd.Wait()
}

func TestSpawn(t *testing.T) {
	if out, errs, code := run(t, nil, "test", "spawn", "20"); out != "20\n" || code != 0 {
		t.Errorf("%q, %q, %d", out, errs, code)
	}
	testneed.Root(t) // to become a user without processes
	script := `ulimit -u 40; exec "$0" test spawn 200`
	cmd := exec.CommandContext(testContext(t), "bash", "-c", script, helper)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID + 1, Gid: otherUID}}
	out, err := cmd.Output()
	n, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || n < 10 || n >= 40 {
		t.Errorf("%d children within a limit of 40: %v", n, err)
	}
}

func TestRunWithoutRole(t *testing.T) {
	for _, args := range [][]string{nil, {"nosuch"}, {"run", "--", "true"}} {
		var errs strings.Builder
		code := Run(context.Background(), &ProcessEnv{Args: args, In: strings.NewReader(""), Out: io.Discard, Err: &errs})
		if code != exitUsage || !strings.Contains(errs.String(), "usage") {
			t.Errorf("%q: %d, %q", args, code, errs.String())
		}
	}
}
