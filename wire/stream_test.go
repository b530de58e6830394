package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/socketpair"
)

// streamPair returns both ends of a stream as an engine creates them.
func streamPair(t testing.TB) (near *os.File, far *net.UnixConn) {
	t.Helper()
	near, f, err := socketpair.New()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return near, c.(*net.UnixConn)
}

// echoes are jobs that return their input once they have received all of it.
type echoes struct {
	t      testing.TB
	now    atomic.Int64
	most   atomic.Int64
	guests chan caisson.Guest
}

func newEchoes(t testing.TB) *echoes { return &echoes{t: t, guests: make(chan caisson.Guest, 1000)} }

func (e *echoes) open(ctx context.Context, in json.RawMessage) (*os.File, <-chan struct{}, error) {
	g, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	var what string
	if err := json.Unmarshal(in, &what); err != nil {
		return nil, nil, caisson.Invalidf("in", "makes no sense")
	}
	switch what {
	case "refuse":
		return nil, nil, caisson.Errorf(caisson.NotFound, "there is no such repository")
	case "fail":
		return nil, nil, errors.New("a secret of the engine's")
	case "half":
		near, far := streamPair(e.t)
		far.Close()
		return near, nil, nil
	}
	e.guests <- g
	near, far := streamPair(e.t)
	done := make(chan struct{})
	e.most.Store(max(e.most.Load(), e.now.Add(1)))
	stop := context.AfterFunc(ctx, func() { far.Close() })
	go func() {
		defer close(done)
		defer e.now.Add(-1)
		defer far.Close()
		defer stop()
		b, err := io.ReadAll(far)
		if err == nil && len(b) > 0 {
			far.Write([]byte(what + " " + string(b)))
		}
	}()
	return near, done, nil
}

// talk sends text over a stream and returns the answer.
func talk(c net.Conn, text string) (string, error) {
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// none waits until no job is running.
func (e *echoes) none(t testing.TB) {
	t.Helper()
	eventually(t, func() error {
		if n := e.now.Load(); n != 0 {
			return fmt.Errorf("%d jobs", n)
		}
		return nil
	})
}

func TestStreamsOfWhom(t *testing.T) {
	e := newEchoes(t)
	m, process, _ := hear(t, Config{}, Handlers{Stream: e.open})
	g := toolGuest(m)
	f, uses := newFeed(process), newStreamLimiter()
	go f.run()
	before := descriptors(t)
	stranger := caisson.Guest{Sandbox: caisson.NewID(caisson.SandboxPrefix), Account: "a", Run: g.Run, Trace: g.Trace}
	for _, row := range []struct {
		name, in string
		g        caisson.Guest
		want     caisson.Kind
	}{
		{"itself", `"x"`, g, ""},
		{"a run that it served before", `"x"`, caisson.Guest{Sandbox: g.Sandbox, Account: "a", Run: "before", Trace: "before"}, ""},
		{"another sandbox", `"x"`, stranger, caisson.Denied},
		{"what the engine refuses", `"refuse"`, g, caisson.NotFound},
		{"what fails", `"fail"`, g, caisson.Internal},
		{"half an answer", `"half"`, g, caisson.Internal},
		{"nonsense", `7`, g, caisson.Invalid},
		{"too much", `"` + strings.Repeat("x", maxStreamBody) + `"`, g, caisson.Invalid},
	} {
		c, err := f.stream(caisson.WithGuest(t.Context(), row.g), uses, json.RawMessage(row.in))
		if err != nil {
			if row.want == "" || caisson.KindOf(err) != row.want || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v, want %q", row.name, err, row.want)
			}
			continue
		}
		if got := <-e.guests; got != g {
			t.Errorf("%s: for %+v, want %+v", row.name, got, g)
		}
		if text, err := talk(c, "hello"); row.want != "" || text != "x hello" || err != nil {
			t.Errorf("%s: %q, %v, want %q", row.name, text, err, row.want)
		}
	}
	if _, err := f.stream(t.Context(), uses, nil); caisson.KindOf(err) != caisson.Unauthed {
		t.Errorf("nobody: %v", err)
	}
	if _, err := f.requestStream(caisson.WithGuest(t.Context(), g), uses, json.RawMessage(`"x"`)); caisson.KindOf(err) != caisson.Denied {
		t.Errorf("over no wire: %v", err)
	}
	e.none(t)
	eventually(t, func() error {
		if after := descriptors(t); after > before {
			return fmt.Errorf("%d descriptors, %d before", after, before)
		}
		return nil
	})
	if uses.total != 0 || len(uses.bySandbox) != 0 {
		t.Errorf("%d are counted", uses.total)
	}
}

// TestStreamsAtTheirLimit checks that a sandbox that always has the maximum number of streams is never refused one, and never has
// more.
func TestStreamsAtTheirLimit(t *testing.T) {
	t.Parallel()
	e := newEchoes(t)
	m, process, done := hear(t, Config{}, Handlers{Stream: e.open})
	g := toolGuest(m)
	f, uses := newFeed(process), newStreamLimiter()
	go f.run()
	ctx := caisson.WithGuest(t.Context(), g)
	faults := make(chan error, maxStreams)
	for range maxStreams {
		go func() {
			for range 100 {
				c, err := f.stream(ctx, uses, json.RawMessage(`"x"`))
				if err == nil {
					<-e.guests
					_, err = talk(c, "hello")
				}
				if err != nil {
					faults <- err
					return
				}
			}
			faults <- nil
		}()
	}
	for range maxStreams {
		if err := <-faults; err != nil {
			t.Error(err)
		}
	}
	if n := e.most.Load(); n > maxStreams {
		t.Errorf("%d jobs at once", n)
	}
	e.none(t)
	process.Close()
	if err := <-done; errors.Is(err, errMessage) {
		t.Error(err)
	}
}

// TestStreamsAreBounded checks that the wire process refuses an additional stream, that the engine does so if the wire process
// does not count, and that a wire process that floods is stopped.
func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	e := newEchoes(t)
	m, process, done := hear(t, Config{}, Handlers{Stream: e.open})
	g := toolGuest(m)
	f, uses := newFeed(process), newStreamLimiter()
	go f.run()
	ctx := caisson.WithGuest(t.Context(), g)
	for range maxStreams {
		c, err := f.stream(ctx, uses, json.RawMessage(`"x"`))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // keeps the garbage collector from closing it
	}
	if _, err := f.stream(ctx, uses, json.RawMessage(`"x"`)); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("one more: %v", err)
	}
	// As from a wire process that does not count: the engine makes the request wait.
	other, cancel := context.WithCancel(ctx)
	late := make(chan error, 1)
	go func() {
		_, err := f.stream(other, newStreamLimiter(), json.RawMessage(`"x"`))
		late <- err
	}()
	cancel()
	if err := <-late; !errors.Is(err, context.Canceled) {
		t.Errorf("one that does not count: %v", err)
	}
	if n := e.most.Load(); n > maxStreams {
		t.Errorf("%d jobs at once", n)
	}
	// A process that floods violates the protocol.
	ses := &processState{m: m, pendingStreams: newStreamLimiter()}
	for n := range maxStreams + 1 {
		msg := feedMessage{Sandbox: g.Sandbox, Stream: &streamBody{}}
		if ok := ses.openStream(ctx, process, msg, func(func()) {}); ok != (n < maxStreams) {
			t.Errorf("question %d: %t", n, ok)
		}
	}
	m.mu.Lock()
	m.wires[g.Sandbox].cancel() // a waiting request then fails
	m.mu.Unlock()
	process.Close()
	<-done
	e.none(t)
}

// TestStreamOfNobody checks that an answer after the caller's context has ended leaves no resources.
func TestStreamOfNobody(t *testing.T) {
	e := newEchoes(t)
	hold := make(chan struct{})
	m, process, _ := hear(t, Config{}, Handlers{Stream: func(ctx context.Context, in json.RawMessage) (*os.File, <-chan struct{}, error) {
		<-hold
		return e.open(ctx, in)
	}})
	g := toolGuest(m)
	f, uses := newFeed(process), newStreamLimiter()
	go f.run()
	before := descriptors(t)
	ctx, leave := context.WithCancel(caisson.WithGuest(t.Context(), g))
	leave()
	for range maxStreams {
		if _, err := f.stream(ctx, uses, json.RawMessage(`"x"`)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if _, err := f.stream(caisson.WithGuest(t.Context(), g), uses, json.RawMessage(`"x"`)); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("one more: %v", err)
	}
	close(hold)
	for range maxStreams {
		<-e.guests
	}
	e.none(t)
	eventually(t, func() error {
		if after := descriptors(t); after > before {
			return fmt.Errorf("%d descriptors, %d before", after, before)
		}
		return nil
	})
}

// TestUnexpectedDescriptors checks that a descriptor is closed if the answer must not have one.
func TestUnexpectedDescriptors(t *testing.T) {
	for _, row := range []struct {
		name   string
		files  int
		stream bool
		ends   bool
	}{
		{"with an answer to something else", 1, false, false},
		{"with an answer to nothing", 1, true, false},
		{"two", 2, true, true},
	} {
		engine, process := connected(t)
		f := newFeed(process)
		ended := make(chan error, 1)
		go func() { ended <- f.run() }()
		before := descriptors(t)
		null, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(feedAnswer{N: 1, Stream: true})
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan error, 1)
		if !row.stream {
			go func() {
				_, err := f.call(t.Context(), feedMessage{Tool: &functionCall{Name: "x"}})
				answered <- err
			}()
			if _, err := engine.Read(make([]byte, maxFeed)); err != nil {
				t.Fatal(err)
			}
		}
		var fds []int
		for range row.files {
			fds = append(fds, int(null.Fd()))
		}
		if _, _, err := engine.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
			t.Fatal(err)
		}
		null.Close()
		if !row.stream {
			if err := <-answered; err != nil {
				t.Errorf("%s: %v", row.name, err)
			}
		}
		if row.ends {
			if err := <-ended; !errors.Is(err, errMessage) {
				t.Errorf("%s: %v", row.name, err)
			}
		}
		eventually(t, func() error {
			if after := descriptors(t); after > before {
				return fmt.Errorf("%s: %d descriptors, %d before", row.name, after, before)
			}
			return nil
		})
	}
}

// TestStreamWithoutDescriptors checks that a wire process without free descriptors refuses the request and continues.
func TestStreamWithoutDescriptors(t *testing.T) {
	engine, process := connected(t)
	f := newFeed(process)
	go f.run()
	b, err := json.Marshal(feedAnswer{N: 1, Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	near, far := streamPair(t)
	defer far.Close()
	uses := newStreamLimiter()
	got := make(chan error, 1)
	go func() {
		_, err := f.stream(caisson.WithGuest(t.Context(), caisson.Guest{Sandbox: "sb-aaaaaaaaaaaaaaaa", Account: "a"}), uses, nil)
		got <- err
	}()
	if _, err := engine.Read(make([]byte, maxFeed)); err != nil {
		t.Fatal(err)
	}
	withoutDescriptors(t, 0, func() {
		if _, _, err := engine.WriteMsgUnix(b, unix.UnixRights(int(near.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		if err := <-got; caisson.KindOf(err) != caisson.Exhausted {
			t.Error(err)
		}
	})
	near.Close()
	if n, err := far.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the other end is still held: %d, %v", n, err)
	}
	if uses.total != 0 {
		t.Errorf("%d are counted", uses.total)
	}
}

// descriptorsOf returns the number of open descriptors of a process.
func descriptorsOf(t testing.TB, pid int) int {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}
