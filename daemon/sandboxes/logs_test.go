package sandboxes_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// log returns the whole log of a sandbox.
func (w *world) log(ref string) string {
	w.t.Helper()
	r := got(w.Processes().Logs(w.ctx(), ref, false))(w.t)
	defer r.Close()
	return string(got(io.ReadAll(r))(w.t))
}

// speaker is a program that writes the lines that it receives, and exits when it is stopped after they have ended.
func speaker(lines <-chan string) map[string]func([]string) fake.Program {
	return map[string]func([]string) fake.Program{"/speak": func([]string) fake.Program {
		return fake.Func(func(ctx context.Context, p *fake.Proc) int {
			for {
				select {
				case s, ok := <-lines:
					if !ok {
						<-ctx.Done()
						return 0
					}
					if s == "" {
						continue // a completed send means that the previous lines are written
					}
					if _, err := io.WriteString(p.Stdout(), s); err != nil {
						return 1
					}
				case <-ctx.Done():
					return 1
				}
			}
		})
	}}
}

func TestLogs(t *testing.T) {
	t.Parallel()
	lines := make(chan string)
	w := plan{programs: speaker(lines)}.world(t)
	sb := w.create(caisson.CreateRequest{Command: []string{"/speak"}})
	id := string(sb.ID)
	if s := w.log(id); s != "" {
		t.Errorf("the log begins with %q", s)
	}
	r := got(w.Processes().Logs(w.ctx(), id, true))(t)
	defer r.Close()
	follow := bufio.NewReader(r)
	for i := range 3 {
		line := fmt.Sprintf("line %d\n", i)
		lines <- line
		if s := got(follow.ReadString('\n'))(t); s != line {
			t.Errorf("followed %q, want %q", s, line)
		}
	}
	// While no daemon runs, the output stays in the pipe.
	must(t, w.Close())
	if _, err := follow.ReadString('\n'); !errors.Is(err, io.EOF) {
		t.Errorf("a follower of a closed core gets %v", err)
	}
	lines <- "unseen\n"
	w.restart()
	want := "line 0\nline 1\nline 2\nunseen\n"
	waitFor(t, func() bool { return w.log(id) == want })

	r = got(w.Processes().Logs(w.ctx(), id, true))(t)
	defer r.Close()
	ended := make(chan string)
	go func() { b, _ := io.ReadAll(r); ended <- string(b) }()
	lines <- "the last words\n"
	lines <- ""
	got(w.Sandboxes().Stop(w.ctx(), id, 0))(t)
	if s := <-ended; s != want+"the last words\n" {
		t.Errorf("followed until the stop: %q", s)
	}
	r = got(w.Processes().Logs(w.ctx(), id, true))(t) // of a stopped sandbox: the existing log
	defer r.Close()
	if b := got(io.ReadAll(r))(t); string(b) != want+"the last words\n" {
		t.Errorf("after the stop: %q", b)
	}
	got(w.Sandboxes().Start(w.ctx(), id))(t)
	lines <- "again\n"
	waitFor(t, func() bool { return w.log(id) == want+"the last words\nagain\n" })
	ctx, cancel := context.WithCancel(w.ctx())
	r = got(w.Processes().Logs(ctx, id, true))(t)
	defer r.Close()
	cancel()
	if _, err := io.ReadAll(r); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestLogIsBounded writes far more than the log keeps, with a follower.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	const total, size = 7 << 20, 1 << 10
	lines := make(chan string)
	w := plan{programs: speaker(lines)}.world(t)
	sb := w.create(caisson.CreateRequest{Command: []string{"/speak"}})
	r := got(w.Processes().Logs(w.ctx(), string(sb.ID), true))(t)
	defer r.Close()
	line := func(i int) string { return fmt.Sprintf("%0*d\n", size-1, i) }
	followed := make(chan error, 1)
	seen := make(chan int, 1)
	go func() {
		in := bufio.NewReader(r)
		n := -1
		for {
			s, err := in.ReadString('\n')
			if err != nil {
				seen <- n
				followed <- err
				return
			}
			var i int
			if _, err := fmt.Sscanf(s, "%d", &i); err != nil || len(s) != size || i <= n {
				followed <- fmt.Errorf("after %d came %.20q of %d bytes", n, s, len(s))
				return
			}
			n = i
		}
	}()
	for i := range total / size {
		lines <- line(i)
	}
	lastLine := line(total/size - 1)
	waitFor(t, func() bool { return strings.HasSuffix(w.log(string(sb.ID)), lastLine) })
	log := w.log(string(sb.ID))
	if len(log) > 5<<20 || len(log) < 2<<20 {
		t.Errorf("%d bytes are kept", len(log))
	}
	var n int
	fmt.Sscanf(log[strings.Index(log, "\n")+1:], "%d", &n)
	for _, l := range strings.SplitAfter(log[strings.Index(log, "\n")+1:], "\n") {
		if l != "" && l != line(n) {
			t.Fatalf("the log has a gap before %.20q", l)
		}
		n++
	}
	got(w.Sandboxes().Stop(w.ctx(), string(sb.ID), 0))(t)
	if err := <-followed; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	select {
	case n := <-seen:
		if n != total/size-1 {
			t.Errorf("the follower saw %d last", n)
		}
	case <-time.After(removeWait):
		t.Error("the follower never ended")
	}
}
