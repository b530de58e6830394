package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
)

var execTests = []test{
	{"Echo", testEcho},
	{"ExitCodes", testExitCodes},
	{"Stdin", testStdin},
	{"NoStdin", testNoStdin},
	{"BinaryBothWays", testBinary},
	{"StdinOfAProcessThatIsGone", testStdinGone},
	{"ManyExecs", testManyExecs},
	{"NotExecutable", testNotExecutable},
	{"LookupInPath", testPath},
	{"WaitByMany", testWaitByMany},
	{"CancelledContext", testExecCancelled},
	{"CloseKills", testClose},
}

// testEcho checks that a program gets its arguments unchanged, and that its standard output and error are separate.
func testEcho(t *testing.T, s *suite) {
	b := s.create(t)
	for _, args := range [][]string{{"one"}, {"two", "words"}, {"", " a  b ", "$HOME", "*", "ü\t\x01"}} {
		want := strings.Join(args, " ") + "\n"
		if r := b.run(append([]string{"echo"}, args...)...); r.stdout != want || r.stderr != "" || !r.status.Success() {
			t.Errorf("echo %q gave %+v", args, r)
		}
	}
	if r := b.run("stat", "/no/such-file"); r.stdout != "" || r.stderr == "" || r.status.Code != 1 {
		t.Errorf("a complaint on standard error came out as %+v", r)
	}
}

// testExitCodes checks that the exit codes of programs are reported.
func testExitCodes(t *testing.T, s *suite) {
	b := s.create(t)
	for _, code := range []int{0, 1, 2, 42, 127, 137, 255} {
		if got := b.run("exit", fmt.Sprint(code)).status; got != (caisson.ExitStatus{Code: code}) {
			t.Errorf("exit %d ended with %+v", code, got)
		}
	}
}

// testStdin sends lines to a program that sends them back.
func testStdin(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"cat"}, Stdin: true})
	// Each line must come back before the next one is sent: no buffer between test and program may wait for more input.
	for _, line := range []string{"first\n", "second\n", "third"} {
		if _, err := io.WriteString(p.Stdin(), line); err != nil {
			t.Fatalf("write: %v", err)
		}
		got := make([]byte, len(line))
		if _, err := io.ReadFull(p.Stdout(), got); err != nil || string(got) != line {
			t.Fatalf("cat %q gave %q, %v", line, got, err)
		}
	}
	check(t, "close standard input", p.Stdin().Close())
	if r := b.finish(p); r.stdout != "" || !r.status.Success() {
		t.Errorf("after the end of its input cat gave %+v", r)
	}
}

// testNoStdin executes a program without standard input, which must read end of file.
func testNoStdin(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"cat"}})
	if p.Stdin() != nil {
		t.Error("a process without standard input has one")
	}
	if r := b.finish(p); r.stdout != "" || !r.status.Success() {
		t.Errorf("cat of no input gave %+v", r)
	}
}

// testBinary sends 16 MiB of random data to a program that sends them back.
func testBinary(t *testing.T, s *suite) {
	const size = 16 << 20
	b := s.create(t)
	sent := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(sent)
	p := b.exec(caisson.RuntimeExec{Command: []string{"cat"}, Stdin: true})
	var g errgroup.Group
	g.Go(func() error {
		_, err := p.Stdin().Write(sent)
		return errors.Join(err, p.Stdin().Close())
	})
	received, err := io.ReadAll(p.Stdout())
	if err := errors.Join(err, g.Wait()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent, received) {
		t.Errorf("of %d bytes %d came back, not all of them the same", size, len(received))
	}
	if status := b.wait(p); !status.Success() {
		t.Errorf("cat %v", status)
	}
}

// testStdinGone writes to the standard input of a process that has exited.
func testStdinGone(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"exit", "3"}, Stdin: true})
	if status := b.wait(p); status.Code != 3 {
		t.Errorf("ended with %v", status)
	}
	if _, err := p.Stdin().Write(make([]byte, 1<<20)); err == nil {
		t.Error("a megabyte to a process that is gone was written without an error")
	}
}

// testManyExecs executes 20 programs concurrently in one sandbox.
func testManyExecs(t *testing.T, s *suite) {
	b := s.create(t)
	ctx := b.ctx()
	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error {
			p, err := s.Runtime.Exec(ctx, b.id, caisson.RuntimeExec{Command: s.argv("cat"), Stdin: true})
			if err != nil {
				return err
			}
			defer p.Close()
			want := bytes.Repeat([]byte{byte(i)}, 1000+i)
			if _, err := p.Stdin().Write(want); err != nil {
				return err
			}
			if err := p.Stdin().Close(); err != nil {
				return err
			}
			got, err := io.ReadAll(p.Stdout())
			if err == nil && !bytes.Equal(got, want) {
				err = fmt.Errorf("cat number %d gave back other bytes", i)
			}
			_, waitErr := p.Wait(ctx)
			return errors.Join(err, waitErr)
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// testNotExecutable calls Exec with commands that cannot be executed.
func testNotExecutable(t *testing.T, s *suite) {
	b := s.create(t)
	for _, c := range []struct {
		name string
		exec caisson.RuntimeExec
		says string
	}{
		{"not in PATH", caisson.RuntimeExec{Command: []string{"no-such-program"}}, "no-such-program"},
		{"no such file", caisson.RuntimeExec{Command: []string{"/no/such-program"}}, "/no/such-program"},
		{"not executable", caisson.RuntimeExec{Command: []string{"/lower/text"}}, "/lower/text"},
		{"a directory", caisson.RuntimeExec{Command: []string{"/lower"}}, "/lower"},
		{"no command", caisson.RuntimeExec{}, ""},
		{"no such directory", caisson.RuntimeExec{Command: s.argv("echo"), Workdir: "/no/such-directory"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := s.Runtime.Exec(timeoutContext(t), b.id, c.exec)
			if err == nil {
				p.Close()
			}
			wantKind(t, "Exec", err, caisson.Invalid, c.says)
		})
	}
}

// testPath checks that a program is looked up in the PATH of its own environment.
func testPath(t *testing.T, s *suite) {
	b := s.create(t)
	dir, name := path.Split(s.Guestd)
	command := append([]string{name}, s.argv("echo", "found")[1:]...)
	p, err := s.Runtime.Exec(b.ctx(), b.id, caisson.RuntimeExec{
		Command: command, Env: []string{"PATH=/no/such-directory:" + path.Clean(dir)},
	})
	if err != nil {
		t.Fatalf("Exec(%q): %v", command, err)
	}
	defer p.Close()
	if r := b.finish(p); r.stdout != "found\n" {
		t.Errorf("got %+v", r)
	}
}

// testWaitByMany checks that several concurrent callers of Wait get the exit status.
func testWaitByMany(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"cat"}, Stdin: true})
	ctx := b.ctx()
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			status, err := p.Wait(ctx)
			if err == nil && !status.Success() {
				err = fmt.Errorf("ended with %v", status)
			}
			return err
		})
	}
	p.Stdin().Close()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if status := b.wait(p); !status.Success() {
		t.Errorf("a late Wait says %v", status)
	}
}

// testExecCancelled cancels the context of Exec and Wait while the process runs, which must not affect the process.
func testExecCancelled(t *testing.T, s *suite) {
	b := s.create(t)
	ctx, cancel := context.WithCancel(b.ctx())
	p, err := s.Runtime.Exec(ctx, b.id, caisson.RuntimeExec{Command: s.argv("cat"), Stdin: true})
	if err != nil {
		t.Fatalf("Exec: %v", err)
	}
	defer p.Close()
	waited := make(chan error, 1)
	go func() { _, err := p.Wait(ctx); waited <- err }()
	cancel()
	select {
	case err := <-waited:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Wait with a cancelled context: %v", err)
		}
	case <-b.ctx().Done():
		t.Fatal("Wait does not return when its context is cancelled")
	}
	if _, err := s.Runtime.Exec(ctx, b.id, caisson.RuntimeExec{Command: s.argv("echo")}); !errors.Is(err, context.Canceled) {
		t.Errorf("Exec with a cancelled context: %v", err)
	}
	// The context of Exec applies only to the call of Exec, so the process still runs.
	if _, err := io.WriteString(p.Stdin(), "alive"); err != nil {
		t.Fatal(err)
	}
	p.Stdin().Close()
	if r := b.finish(p); r.stdout != "alive" || !r.status.Success() {
		t.Errorf("the process gave %+v", r)
	}
}

// testClose checks that closing an exec session kills its process.
func testClose(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"ignore-term"}})
	check(t, "Close", p.Close())
	if status := b.wait(p); status.Signal != sigKill || status.Code != 128+sigKill {
		t.Errorf("a process ended with %+v by Close", status)
	}
	check(t, "second Close", p.Close())
	b.waitUntil("the process is gone", func() bool { return len(b.processes()) == 1 })
}
