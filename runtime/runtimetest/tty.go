package runtimetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

var ttyTests = []test{
	{"TTYSize", testTTYSize},
	{"TTYInput", testTTYInput},
	{"TTYInterrupt", testTTYInterrupt},
	{"NoTTY", testNoTTY},
}

// lines reads the lines of r in the background, and returns a channel that receives them without line terminators. It closes the
// channel at EOF.
func lines(r io.Reader) <-chan string {
	out := make(chan string, 1024)
	go func() {
		defer close(out)
		for s := bufio.NewScanner(r); s.Scan(); {
			out <- strings.TrimRight(s.Text(), "\r")
		}
	}()
	return out
}

// wantLine reads lines from in until one equals want.
func wantLine(b *box, in <-chan string, want string) {
	b.t.Helper()
	var seen []string
	for {
		select {
		case line, ok := <-in:
			if line == want && ok {
				return
			}
			if seen = append(seen, line); !ok {
				b.t.Fatalf("the output ended without a line %q: %q", want, seen)
			}
		case <-b.ctx().Done():
			b.t.Fatalf("no line %q: %q", want, seen)
		}
	}
}

// testTTYSize checks that a process at a terminal gets the terminal's size, also after a change of the size.
func testTTYSize(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"tty"}, TTY: true, Rows: 24, Cols: 80, Stdin: true})
	out := lines(p.Stdout())
	wantLine(b, out, "24 80")
	for _, size := range [][2]uint16{{50, 132}, {1, 1}, {1000, 500}} {
		must(t, "Resize", p.Resize(size[0], size[1]))
		wantLine(b, out, fmt.Sprint(size[0], " ", size[1]))
	}
	if n, err := p.Stderr().Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("standard error of a terminal: %d bytes, %v", n, err)
	}
	check(t, "Signal", p.Signal(b.ctx(), sigKill))
	for range out { // read the rest of the output until EOF
	}
	if status := b.wait(p); status.Signal != sigKill {
		t.Errorf("ended with %v", status)
	}
}

// testTTYInput types a line at a terminal, and closes the input.
func testTTYInput(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"cat"}, TTY: true, Rows: 24, Cols: 80, Stdin: true})
	out := lines(p.Stdout())
	if _, err := io.WriteString(p.Stdin(), "typed\r"); err != nil {
		t.Fatal(err)
	}
	wantLine(b, out, "typed") // the terminal's echo of the input
	wantLine(b, out, "typed") // the output of cat, which is equal
	check(t, "close", p.Stdin().Close())
	if status := b.wait(p); !status.Success() {
		t.Errorf("cat ended with %v when its input was closed", status)
	}
}

// testTTYInterrupt checks that ^C at a terminal sends SIGINT.
func testTTYInterrupt(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"tty"}, TTY: true, Rows: 24, Cols: 80, Stdin: true})
	wantLine(b, lines(p.Stdout()), "24 80")
	if _, err := p.Stdin().Write([]byte{0x03}); err != nil {
		t.Fatal(err)
	}
	if status := b.wait(p); status.Signal != sigInt {
		t.Errorf("^C ended it with %v", status)
	}
}

// testNoTTY checks that a process that was executed without a terminal has none.
func testNoTTY(t *testing.T, s *suite) {
	b := s.create(t)
	p := b.exec(caisson.RuntimeExec{Command: []string{"cat"}, Stdin: true})
	wantKind(t, "Resize", p.Resize(1, 1), caisson.Conflict)
	if r := b.run("tty"); r.status.Code != 1 {
		t.Errorf("without a terminal tty gave %+v", r)
	}
}
