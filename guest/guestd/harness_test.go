package guestd

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// helper is the path of the static helper, which is built once.
var helper string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "inside")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	helper = filepath.Join(dir, "caisson-guestd")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", helper, "../../cmd/caisson-guestd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	if code == 0 {
		code = leaks()
	}
	return code
}

// leaks fails the run if goroutines of this package still exist.
func leaks() int {
	var stacks string
	for range 1000 {
		buf := make([]byte, 1<<20)
		stacks = string(buf[:runtime.Stack(buf, true)])
		if strings.Count(stacks, "caisson/inside.") <= 2 { // this one has leaks, testMain and TestMain in its stack
			return 0
		}
		if !strings.Contains(strings.Join(strings.Split(stacks, "\n\n")[1:], "\n"), "caisson/inside.") {
			return 0
		}
		time.Sleep(20 * time.Millisecond)
	}
	os.Stderr.WriteString("goroutines left behind:\n" + stacks)
	return 1
}

// poll waits until ok returns true.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// pipes implements caisson.Process with functions.
type pipes struct {
	stdin          io.WriteCloser
	stdout, stderr io.Reader
	end            func() // kills; idempotent
	done           chan struct{}
	code           int
	wait           func() int // waits for a real process after its output has ended
}

func (p *pipes) PID() int                          { return 1 }
func (p *pipes) Stdin() io.WriteCloser             { return p.stdin }
func (p *pipes) Stdout() io.Reader                 { return p.stdout }
func (p *pipes) Stderr() io.Reader                 { return p.stderr }
func (p *pipes) Resize(uint16, uint16) error       { return errors.ErrUnsupported }
func (p *pipes) Signal(context.Context, int) error { return errors.ErrUnsupported }
func (p *pipes) Close() error                      { p.end(); return nil }
func (p *pipes) Wait(context.Context) (caisson.ExitStatus, error) {
	<-p.done
	return caisson.ExitStatus{Code: p.code}, nil
}

// inProcess starts Run as a goroutine, with dir as its root.
func inProcess(t testing.TB, dir string) StartFunc {
	return func(_ context.Context, args []string, _ bool) (caisson.Process, error) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		return fakeProcess(t, func(in io.Reader, out, errs io.Writer) int {
			defer root.Close()
			return Run(t.Context(), &ProcessEnv{Args: args, In: in, Out: out, Err: errs, Root: root})
		}), nil
	}
}

// fakeProcess runs f as the process's program.
func fakeProcess(t testing.TB, f func(in io.Reader, out, errs io.Writer) int) *pipes {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	p := &pipes{stdin: inW, stdout: outR, stderr: errR, done: make(chan struct{})}
	p.end = sync.OnceFunc(func() {
		inR.CloseWithError(io.ErrClosedPipe)
		inW.CloseWithError(io.EOF)
		outW.Close()
		errW.Close()
	})
	go func() {
		defer close(p.done)
		p.code = f(inR, outW, errW)
		p.end()
	}()
	t.Cleanup(p.end)
	return p
}

// realProcess starts the helper, as another user if uid is not 0.
func realProcess(t testing.TB, uid uint32) StartFunc {
	return func(_ context.Context, args []string, _ bool) (caisson.Process, error) {
		cmd := exec.Command(helper, args...)
		cmd.Env, cmd.Dir = []string{}, "/"
		if uid != 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		}
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		errs, err3 := cmd.StderrPipe()
		if err := errors.Join(err1, err2, err3, cmd.Start()); err != nil {
			return nil, err
		}
		p := &pipes{stdin: in, stdout: out, stderr: errs, done: make(chan struct{})}
		ended := sync.OnceFunc(func() {
			cmd.Wait()
			p.code = cmd.ProcessState.ExitCode()
			close(p.done)
		})
		p.wait = func() int { ended(); return p.code }
		p.end = func() {
			cmd.Process.Kill()
			ended()
		}
		t.Cleanup(p.end)
		return p, nil
	}
}

// A guest is one way to run the program.
type guest struct {
	*Client
	host string // directory on the host
	dir  string // the same in the guest; no trailing slash
}

func (g guest) path(name string) string { return g.dir + "/" + name }
func (g guest) file(name string) string { return filepath.Join(g.host, name) }

// guests runs test in every way there is.
func guests(t *testing.T, test func(*testing.T, guest)) {
	t.Run("in process", func(t *testing.T) {
		dir := t.TempDir()
		c := NewClient(inProcess(t, dir))
		t.Cleanup(func() { c.Close() })
		test(t, guest{Client: c, host: dir})
	})
	t.Run("process", func(t *testing.T) {
		dir := t.TempDir()
		c := NewClient(realProcess(t, 0))
		t.Cleanup(func() { c.Close() })
		test(t, guest{Client: c, host: dir, dir: dir})
	})
	t.Run("as another user", func(t *testing.T) {
		testneed.Root(t)
		g := asUser(t)
		test(t, g)
	})
}

const otherUID = 54321

// asUser is a guest without privileges, with a directory of its own.
func asUser(t *testing.T) guest {
	dir, err := os.MkdirTemp("", "user") // t.TempDir is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, otherUID, otherUID); err != nil {
		t.Fatal(err)
	}
	c := NewClient(realProcess(t, otherUID))
	t.Cleanup(func() { c.Close() })
	return guest{Client: c, host: dir, dir: dir}
}

func wantKind(t *testing.T, err error, kind caisson.Kind) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind {
		t.Fatalf("error is %v (%s), want %s", err, caisson.KindOf(err), kind)
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
