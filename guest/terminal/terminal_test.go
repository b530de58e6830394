package terminal

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/frame"
	"github.com/caisson-dev/caisson/internal/poll"
)

// A box is a directory of terminals.
type box struct {
	*testing.T
	sockets Sockets
	served  map[caisson.ID]chan struct{} // closed when the terminal is over
}

func newBox(t *testing.T) *box {
	t.Parallel()
	return &box{t, Sockets(filepath.Join(t.TempDir(), "terminals")), map[caisson.ID]chan struct{}{}}
}

// start starts a shell script at a terminal, which lingers for 60 times step.
func (b *box) start(script string, step time.Duration) caisson.ID {
	b.Helper()
	return b.startKept(script, step, false)
}

func (b *box) startKept(script string, step time.Duration, keep bool) caisson.ID {
	b.Helper()
	id := caisson.NewID(caisson.TerminalPrefix)
	ln, err := b.sockets.Listen(id)
	if err != nil {
		b.Fatal(err)
	}
	program, err := Start(exec.Command("/bin/sh", "-c", script), 24, 80, os.Getuid())
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan struct{})
	b.served[id] = served
	s := NewServer(id, []string{"sh", "-c", script}, program, 24, 80, keep)
	s.step = step
	go func() {
		defer close(served)
		s.Serve(ln)
	}()
	b.Cleanup(func() {
		b.sockets.Remove(id)
		b.over(id)
	})
	return id
}

// over waits until a terminal is over.
func (b *box) over(id caisson.ID) {
	b.Helper()
	select {
	case <-b.served[id]:
	case <-time.After(time.Minute):
		b.Fatal("the terminal is not over")
	}
}

// dial connects to a terminal.
func (b *box) dial(id caisson.ID) net.Conn {
	b.Helper()
	conn, err := b.sockets.connect(id)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return conn
}

// A seat is a session with its output.
type seat struct {
	caisson.Process
	t *testing.T

	mu    sync.Mutex
	out   bytes.Buffer // guarded by mu
	notes bytes.Buffer // guarded by mu
}

// attach attaches to a terminal.
func (b *box) attach(id caisson.ID, req caisson.AttachRequest) *seat {
	b.Helper()
	p, err := Attach(b.Context(), b.dial(id), req)
	if err != nil {
		b.Fatal(err)
	}
	s := &seat{Process: p, t: b.T}
	b.Cleanup(func() { p.Close() })
	for to, from := range map[*bytes.Buffer]io.Reader{&s.out: p.Stdout(), &s.notes: p.Stderr()} {
		go func() {
			buf := make([]byte, 1000)
			for {
				n, err := from.Read(buf)
				s.mu.Lock()
				to.Write(buf[:n])
				s.mu.Unlock()
				if err != nil {
					return
				}
			}
		}()
	}
	return s
}

// text returns the output so far.
func (s *seat) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// sees waits for text in the output.
func (s *seat) sees(want string) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("no %q in %q", want, s.text())
		}
	}()
	poll.Until(s.t, time.Minute, func() bool { return strings.Contains(s.text(), want) })
}

// told waits for a notice.
func (s *seat) told(want notice) {
	s.t.Helper()
	poll.Until(s.t, time.Minute, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.notes.String(), want.String())
	})
}

// types sends input.
func (s *seat) types(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.Stdin(), text); err != nil {
		s.t.Fatal(err)
	}
}

// ends waits for the end of the session and checks its status.
func (s *seat) ends(want caisson.ExitStatus) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	if got, err := s.Wait(ctx); err != nil || got != want {
		s.t.Fatalf("ended with %+v, %v", got, err)
	}
}

func TestDetachAndAttach(t *testing.T) {
	b := newBox(t)
	id := b.start(`stty size; while read line; do echo "got $line"; [ "$line" = end ] && exit 7; done`, time.Hour)
	a := b.attach(id, caisson.AttachRequest{Rows: 30, Cols: 100})
	a.types("one\n")
	a.sees("got one\r\n")
	a.Close()
	a.ends(caisson.ExitStatus{Code: -1, Unknown: true, Reason: "the connection to the terminal was lost"})

	again := b.attach(id, caisson.AttachRequest{Rows: 40, Cols: 120})
	again.sees("got one\r\n") // the screen
	if again.PID() != a.PID() {
		t.Error("it is another process")
	}
	again.types("end\n")
	again.sees("got end")
	again.ends(caisson.ExitStatus{Code: 7})
	b.over(id)
}

func TestSize(t *testing.T) {
	b := newBox(t)
	id := b.start(`trap 'stty size' WINCH; echo ready; while :; do read line; done`, time.Hour)
	a := b.attach(id, caisson.AttachRequest{})
	a.sees("ready")
	if err := a.Resize(31, 99); err != nil {
		t.Fatal(err)
	}
	a.sees("31 99")
	b.attach(id, caisson.AttachRequest{Rows: 33, Cols: 101}).sees("33 101")
	viewer := b.attach(id, caisson.AttachRequest{Rows: 1, Cols: 1, ReadOnly: true})
	if err := viewer.Resize(2, 2); caisson.KindOf(err) != caisson.Conflict {
		t.Error(err)
	}
	if viewer.Stdin() != nil {
		t.Error("a viewer has an input")
	}
	viewer.sees("33 101")
	if strings.Contains(viewer.text(), "1 1\r") {
		t.Error("a viewer has set the size")
	}
}

func TestWriterTakesOver(t *testing.T) {
	b := newBox(t)
	id := b.start(`stty -echo; echo ready; while read line; do echo "got $line"; done`, time.Hour)
	a := b.attach(id, caisson.AttachRequest{})
	a.sees("ready")
	second := b.attach(id, caisson.AttachRequest{})
	a.told(noticeTaken)
	a.types("from the first\n")
	if err := a.Signal(t.Context(), int(syscall.SIGKILL)); err != nil {
		t.Error(err)
	}
	second.types("from the second\n")
	for _, s := range []*seat{a, second} {
		s.sees("got from the second")
		if strings.Contains(s.text(), "first") {
			t.Errorf("input of a viewer: %q", s.text())
		}
	}
	second.types("\x03") // the terminal's own ^C
	second.ends(caisson.ExitStatus{Code: 130, Signal: 2})
	a.ends(caisson.ExitStatus{Code: 130, Signal: 2})
}

func TestSignal(t *testing.T) {
	b := newBox(t)
	a := b.attach(b.start(`trap 'echo hup; exit 3' HUP; echo ready; while :; do read line; done`, time.Hour), caisson.AttachRequest{})
	a.sees("ready")
	if err := a.Signal(t.Context(), 65); caisson.KindOf(err) != caisson.Invalid {
		t.Error(err)
	}
	if err := a.Signal(t.Context(), int(syscall.SIGHUP)); err != nil {
		t.Fatal(err)
	}
	a.sees("hup")
	a.ends(caisson.ExitStatus{Code: 3})
}

// TestLingers: a program that ends at once, with a background process that keeps the terminal open, is not lost.
func TestLingers(t *testing.T) {
	b := newBox(t)
	id := b.start(`(trap '' HUP; while sleep 0.01 && echo noise; do :; done) & echo said; exit 5`, time.Hour)
	poll.Until(t, time.Minute, func() bool {
		info, err := b.sockets.ask(id, kindInfo)
		return err == nil && info.Exit != nil
	})
	viewer := b.attach(id, caisson.AttachRequest{ReadOnly: true})
	viewer.ends(caisson.ExitStatus{Code: 5}) // does not count as somebody who uses the terminal
	a := b.attach(id, caisson.AttachRequest{})
	a.sees("said")
	a.ends(caisson.ExitStatus{Code: 5})
	b.over(id)
	if _, err := b.sockets.ask(id, kindInfo); !errors.Is(err, os.ErrNotExist) {
		t.Error("its socket is still there:", err)
	}
}

func TestLingersForAWhile(t *testing.T) {
	b := newBox(t)
	b.over(b.start(`exit 0`, time.Millisecond))
}

// TestKept checks that a terminal which is kept has its exit status for whoever comes, until it is removed.
func TestKept(t *testing.T) {
	b := newBox(t)
	id := b.startKept(`exit 4`, time.Nanosecond, true)
	for range 2 {
		b.attach(id, caisson.AttachRequest{}).ends(caisson.ExitStatus{Code: 4})
	}
	if err := b.sockets.Remove(id); err != nil {
		t.Fatal(err)
	}
	b.over(id)
}

func TestList(t *testing.T) {
	b := newBox(t)
	list := func() []caisson.Terminal {
		there, err := b.sockets.List()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := WriteList(&out, there); err != nil {
			t.Fatal(err)
		}
		list, err := ParseList(&out)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := list(); len(got) != 0 {
		t.Fatal(got)
	}
	first := b.start(`echo ready; read line; exit 3 # `+strings.Repeat("long ", 100), time.Hour)
	second := b.start(`read line`, time.Hour)
	b.attach(first, caisson.AttachRequest{}).sees("ready")
	// What is left of a terminal that was killed, and what is none.
	dead := filepath.Join(string(b.sockets), string(caisson.NewID(caisson.TerminalPrefix)))
	if l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"}); err != nil {
		t.Fatal(err)
	} else {
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	os.WriteFile(filepath.Join(string(b.sockets), "x"), nil, 0o600)
	got := list()
	if len(got) != 2 || got[0].ID != first || got[1].ID != second || got[0].Viewers != 1 || got[0].Exit != nil ||
		got[0].Command[0] != "sh" || len(got[0].Command[2]) != maxArg || got[0].Rows != 24 {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Error("a dead socket stays")
	}
	for _, want := range []caisson.Kind{"", caisson.NotFound} {
		err := b.sockets.Remove(second)
		if want == "" && err != nil || want != "" && caisson.KindOf(err) != want {
			t.Errorf("removing: %v", err)
		}
		b.over(second)
	}
}

// TestRemoveKills checks that a program which ignores SIGHUP is killed, and that its viewer is told.
func TestRemoveKills(t *testing.T) {
	b := newBox(t)
	id := b.start(`trap '' HUP; echo ready; while :; do sleep 0.1; done`, time.Hour)
	a := b.attach(id, caisson.AttachRequest{})
	a.sees("ready")
	if err := b.sockets.Remove(id); err != nil {
		t.Fatal(err)
	}
	a.ends(caisson.ExitStatus{Code: 137, Signal: 9})
}

// TestFlood checks that a viewer that does not read neither holds up the program nor another viewer, and is told that it has missed
// output.
func TestFlood(t *testing.T) {
	b := newBox(t)
	id := b.start(`echo ready; read line; head -c 8000000 /dev/zero | tr '\0' x; echo; echo all done; read line`, time.Hour)
	slow, err := Attach(t.Context(), b.dial(id), caisson.AttachRequest{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	a := b.attach(id, caisson.AttachRequest{})
	a.sees("ready")
	a.types("\n")
	a.sees("all done")
	out := make(chan string)
	go func() {
		var all bytes.Buffer
		buf := make([]byte, 64<<10)
		for !strings.Contains(all.String(), "all done") {
			n, err := slow.Stdout().Read(buf)
			all.Write(buf[:n])
			if err != nil {
				break
			}
		}
		out <- all.String()
	}()
	if got := <-out; !strings.Contains(got, "all done") || len(got) > 4*ringSize {
		t.Errorf("the slow viewer got %d bytes", len(got))
	}
	line := make([]byte, 200)
	n, err := slow.Stderr().Read(line)
	if err != nil || string(line[:n]) != noticeSkipped.String()+"\n" {
		t.Errorf("%q, %v", line[:n], err)
	}
	late := b.attach(id, caisson.AttachRequest{ReadOnly: true})
	late.sees("all done")
	if n := len(late.text()); n > ringSize {
		t.Errorf("%d bytes were kept", n)
	}
}

// TestInputIsNotRead checks that input for a program that reads none holds up nobody but who sends it.
func TestInputIsNotRead(t *testing.T) {
	b := newBox(t)
	id := b.start(`stty -icanon -echo; echo ready; while :; do sleep 0.05; done`, time.Hour)
	a := b.attach(id, caisson.AttachRequest{})
	a.sees("ready")
	blocked := make(chan error, 1)
	go func() {
		_, err := io.Copy(a.Stdin(), bytes.NewReader(make([]byte, 4<<20)))
		blocked <- err
	}()
	viewer := b.attach(id, caisson.AttachRequest{ReadOnly: true})
	viewer.sees("ready")
	second := b.attach(id, caisson.AttachRequest{})
	a.told(noticeTaken)
	<-blocked // what a former writer sends is dropped
	second.sees("ready")
	if err := b.sockets.Remove(id); err != nil {
		t.Fatal(err)
	}
	second.ends(caisson.ExitStatus{Code: 129, Signal: 1})
}

func TestTooMany(t *testing.T) {
	b := newBox(t)
	id := b.start(`echo ready; read line`, time.Hour)
	for range caisson.MaxTerminalViewers {
		b.attach(id, caisson.AttachRequest{ReadOnly: true}).sees("ready")
	}
	if _, err := Attach(t.Context(), b.dial(id), caisson.AttachRequest{}); caisson.KindOf(err) != caisson.Exhausted {
		t.Error(err)
	}
	for range caisson.MaxTerminals - 1 {
		b.start(`read line`, time.Hour)
	}
	if _, err := b.sockets.Listen(caisson.NewID(caisson.TerminalPrefix)); caisson.KindOf(err) != caisson.Exhausted {
		t.Error(err)
	}
}

// TestHostileClients checks that clients that violate the protocol lose their connection, and nobody else loses anything.
func TestHostileClients(t *testing.T) {
	b := newBox(t)
	id := b.start(`echo ready; read line; echo "got $line"`, time.Hour)
	a := b.attach(id, caisson.AttachRequest{})
	a.sees("ready")
	attach := frame.Append(nil, kindAttach, []byte{0, 0, 0, 0, flagReadOnly})
	for name, sent := range map[string][]byte{
		"nothing known":   []byte("GET / HTTP/1.1\r\n\r\n"),
		"half an attach":  frame.Append(nil, kindAttach, []byte{1}),
		"a server's":      frame.Append(nil, kindOutput, nil),
		"input first":     frame.Append(nil, kindInput, []byte("x")),
		"unknown":         append(bytes.Clone(attach), 'z', 0, 0, 0, 0),
		"too long":        append(bytes.Clone(attach), kindInput, 0xff, 0xff, 0xff, 0xff),
		"no signal":       append(bytes.Clone(attach), frame.Append(nil, kindSignal, []byte{0})...),
		"half a size":     append(bytes.Clone(attach), frame.Append(nil, kindResize, []byte{0})...),
		"attach again":    append(bytes.Clone(attach), attach...),
		"ends in a frame": attach[:len(attach)-1],
	} {
		conn := b.dial(id)
		conn.Write(sent)
		conn.(*net.UnixConn).CloseWrite()
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.types("fine\n")
	a.sees("got fine")
	a.ends(caisson.ExitStatus{})
}

// TestHostileTerminal checks that the host's end bounds what a sandbox answers.
func TestHostileTerminal(t *testing.T) {
	t.Parallel()
	started := frame.Append(nil, kindStarted, []byte{0, 0, 0, 1})
	for name, tt := range map[string]struct {
		answer  []byte
		attach  bool // whether the session starts
		unknown bool
	}{
		"nothing":        {nil, false, false},
		"no pid":         {frame.Append(nil, kindStarted, []byte{0, 0, 0, 0}), false, false},
		"negative pid":   {frame.Append(nil, kindStarted, []byte{0xff, 0xff, 0xff, 0xff}), false, false},
		"output first":   {frame.Append(nil, kindOutput, nil), false, false},
		"just the start": {started, true, true},
		"too long":       {append(bytes.Clone(started), kindOutput, 0, 1, 0, 0), true, true},
		"no notice":      {append(bytes.Clone(started), frame.Append(nil, kindNotice, []byte{77})...), true, true},
		"no status":      {append(bytes.Clone(started), frame.Append(nil, kindExit, []byte{0xff, 0, 0, 0, 0})...), true, true},
		"half a status":  {append(bytes.Clone(started), frame.Append(nil, kindExit, nil)...), true, true},
		"fine":           {append(bytes.Clone(started), frame.Append(nil, kindExit, []byte{0, 0, 0, 9, 0})...), true, false},
	} {
		near, far := net.Pipe()
		go func() {
			go io.Copy(io.Discard, far)
			far.Write(tt.answer)
			far.Close()
		}()
		p, err := Attach(t.Context(), near, caisson.AttachRequest{})
		if !tt.attach {
			if caisson.KindOf(err) != caisson.Unavailable {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		go io.Copy(io.Discard, p.Stdout())
		status, err := p.Wait(t.Context())
		if err != nil || status.Unknown != tt.unknown || !tt.unknown && status.Code != 9 {
			t.Errorf("%s: %+v, %v", name, status, err)
		}
		p.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		io.ReadFull(far, make([]byte, frame.HeaderSize+attachSize))
		cancel()
	}()
	if _, err := Attach(ctx, near, caisson.AttachRequest{}); !errors.Is(err, context.Canceled) {
		t.Error("a terminal that does not answer:", err)
	}
}

func FuzzParseList(f *testing.F) {
	f.Add(frame.Append(nil, kindInfo, []byte(`{"id":"tm-aaaaaaaaaaaaaaaa","command":["sh"],"pid":1,"rows":1,"cols":1,"viewers":0,"startedAt":"2026-01-01T00:00:00Z","exit":{"code":1}}`)))
	f.Add(frame.Append(nil, kindInfo, []byte(`{}`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := ParseList(bytes.NewReader(b))
		if err != nil {
			return
		}
		if len(list) > caisson.MaxTerminals {
			t.Fatal(len(list))
		}
		for _, x := range list {
			if x.PID < 1 || len(x.Command) > maxArgs || x.Exit != nil && (x.Exit.Code < 0 || x.Exit.Reason != "") {
				t.Fatalf("%+v", x)
			}
		}
	})
}

func TestRing(t *testing.T) {
	t.Parallel()
	var all []byte
	r := ring{buf: make([]byte, 10)}
	for i := range 40 {
		part := bytes.Repeat([]byte{byte('a' + i%26)}, i%13)
		all = append(all, part...)
		r.add(part)
		kept := all[max(0, len(all)-10):]
		if r.end != uint64(len(all)) || r.start() != uint64(len(all)-len(kept)) {
			t.Fatal(i, r.start(), r.end)
		}
		for at := r.start(); at <= r.end; at++ {
			b := make([]byte, 11)
			if n := r.read(at, b); string(b[:n]) != string(all[at:]) {
				t.Fatalf("%d: %q is not %q", i, b[:n], all[at:])
			}
		}
	}
}
