package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/sse"
)

// sandbox returns a client and the name of a running sandbox.
func sandbox(t *testing.T, s *server) (*client.Client, string) {
	t.Helper()
	c := s.local(t, "")
	sb, err := c.Create(t.Context(), caisson.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return c, string(sb.ID)
}

func TestRun(t *testing.T) {
	s := serve(t)
	c, sb := sandbox(t, s)
	run := func(req protocol.ProcessRequest, command ...string) *protocol.ProcessResult {
		t.Helper()
		req.Command = command
		result, err := c.Run(t.Context(), sb, req)
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	if r := run(protocol.ProcessRequest{}, "echo", "a"); r.Stdout.Text != "a\n" || !r.Exit.Success() || r.PID == 0 || r.Stdout.Truncated {
		t.Errorf("%+v", r)
	}
	if r := run(protocol.ProcessRequest{}, "fail"); r.Stderr.Text != "no\n" || r.Exit.Code != 1 {
		t.Errorf("%+v", r)
	}
	if r := run(protocol.ProcessRequest{Input: []byte("in")}, "cat"); r.Stdout.Text != "in" {
		t.Errorf("%+v", r)
	}
	if r := run(protocol.ProcessRequest{Input: make([]byte, 200<<10)}, "exit", "3"); r.Exit.Code != 3 { // reads no input
		t.Errorf("%+v", r)
	}
	if r := run(protocol.ProcessRequest{}, "binary"); string(r.Stdout.Bytes()) != "\xff\x00\xfe" || r.Stdout.Text != "" {
		t.Errorf("%+v", r)
	}
	if r := run(protocol.ProcessRequest{}, "leave"); r.Stdout.Text != "left\n" { // a child holds the streams for ever
		t.Errorf("%+v", r)
	}
	const size = 5 << 20
	if r := run(protocol.ProcessRequest{}, "flood", fmt.Sprint(size)); len(r.Stdout.Text) != protocol.DefaultOutput || !r.Stdout.Truncated ||
		r.Stdout.Size != size || r.Stderr.Size != size || !r.Exit.Success() {
		t.Errorf("%d of %d bytes, truncated %v, %v", len(r.Stdout.Text), r.Stdout.Size, r.Stdout.Truncated, r.Exit)
	}
	if r := run(protocol.ProcessRequest{MaxOutput: 5}, "echo", "äöü"); r.Stdout.Text != "äö" || !r.Stdout.Truncated {
		t.Errorf("%+v", r)
	}
	r := run(protocol.ProcessRequest{ExecRequest: caisson.ExecRequest{Detach: true}}, "sleep")
	if r.Exit != nil || r.PID == 0 || s.world.RunningProcesses() != 1 {
		t.Errorf("%+v, %d live", r, s.world.RunningProcesses())
	}
	if err := c.Kill(t.Context(), sb, r.PID, 9); err != nil {
		t.Error(err)
	}

	// A client that leaves takes its process along.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := c.Run(ctx, sb, protocol.ProcessRequest{ExecRequest: caisson.ExecRequest{Command: []string{"sleep"}}})
		ended <- err
	}()
	poll.Until(t, apitest.Timeout, func() bool { return s.world.RunningProcesses() > 0 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	poll.Until(t, apitest.Timeout, func() bool { return s.world.RunningProcesses() == 0 })
}

func TestExecOutlivesItsChildren(t *testing.T) {
	c, sb := sandbox(t, serve(t))
	p, err := c.Exec(t.Context(), sb, caisson.ExecRequest{Command: []string{"leave"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if b, err := io.ReadAll(p.Stdout()); string(b) != "left\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if status, err := p.Wait(t.Context()); err != nil || !status.Success() {
		t.Error(status, err)
	}
	if err := p.Signal(t.Context(), 9); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("a signal after the end: %v", err)
	}
}

func TestDetached(t *testing.T) {
	s := serve(t)
	c, sb := sandbox(t, s)
	p, err := c.Exec(t.Context(), sb, caisson.ExecRequest{Command: []string{"sleep"}, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if list, err := c.ListProcesses(t.Context(), sb); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := c.Kill(t.Context(), sb, p.PID(), 9); err != nil {
		t.Error(err)
	}
}

func TestManySessions(t *testing.T) {
	s := serve(t)
	c, sb := sandbox(t, s)
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			p, err := c.Exec(t.Context(), sb, caisson.ExecRequest{Command: []string{"echo", fmt.Sprint(i)}})
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			b, err := io.ReadAll(p.Stdout())
			if status, waitErr := p.Wait(t.Context()); string(b) != fmt.Sprintln(i) || err != nil || waitErr != nil || !status.Success() {
				t.Errorf("%q, %v, %v, %v", b, status, err, waitErr)
			}
		})
	}
	wg.Wait()
}

// dial opens a session by hand.
func (s *server) dial(t *testing.T, sb string) *websocket.Conn {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	}}
	ws, _, err := websocket.Dial(t.Context(), "http://caisson/api/v1/sandboxes/"+sb+"/exec/stream",
		&websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.CloseNow(); transport.CloseIdleConnections() })
	return ws
}

func streamBody(t *testing.T, ws *websocket.Conn, kind websocket.MessageType, s string) {
	t.Helper()
	if err := ws.Write(t.Context(), kind, []byte(s)); err != nil {
		t.Fatal(err)
	}
}

// TestRudeClients checks that whatever a client does ends the process, and nothing else.
func TestRudeClients(t *testing.T) {
	s := serve(t)
	_, sb := sandbox(t, s)
	big := "\x00" + strings.Repeat("x", protocol.MaxData)
	for name, do := range map[string]func(*testing.T, *websocket.Conn){
		"leaves":          func(t *testing.T, ws *websocket.Conn) { ws.CloseNow() },
		"closes":          func(t *testing.T, ws *websocket.Conn) { ws.Close(websocket.StatusNormalClosure, "") },
		"sends text":      func(t *testing.T, ws *websocket.Conn) { streamBody(t, ws, websocket.MessageText, "x") },
		"unknown channel": func(t *testing.T, ws *websocket.Conn) { streamBody(t, ws, websocket.MessageBinary, "\x09x") },
		"sends output":    func(t *testing.T, ws *websocket.Conn) { streamBody(t, ws, websocket.MessageBinary, "\x01x") },
		"bad control":     func(t *testing.T, ws *websocket.Conn) { streamBody(t, ws, websocket.MessageBinary, "\x03{") },
		"server's message": func(t *testing.T, ws *websocket.Conn) {
			streamBody(t, ws, websocket.MessageBinary, "\x03{\"type\":\"started\"}")
		},
		"grants too much": func(t *testing.T, ws *websocket.Conn) {
			streamBody(t, ws, websocket.MessageBinary, "\x03{\"type\":\"window\",\"channel\":1,\"bytes\":9}")
		},
		"grants itself": func(t *testing.T, ws *websocket.Conn) {
			streamBody(t, ws, websocket.MessageBinary, "\x03{\"type\":\"window\",\"bytes\":9}")
		},
		"message too large": func(t *testing.T, ws *websocket.Conn) {
			ws.Write(t.Context(), websocket.MessageBinary, make([]byte, 2<<20))
		},
		"exceeds window": func(t *testing.T, ws *websocket.Conn) {
			for range 2 * protocol.WindowSize / protocol.MaxData {
				if ws.Write(t.Context(), websocket.MessageBinary, []byte(big)) != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ws := s.dial(t, sb)
			streamBody(t, ws, websocket.MessageText, `{"command":["sleep"],"stdin":true}`)
			if _, b, err := ws.Read(t.Context()); err != nil || !strings.Contains(string(b), "started") {
				t.Fatalf("%q, %v", b, err)
			}
			do(t, ws)
			poll.Until(t, apitest.Timeout, func() bool { return s.world.RunningProcesses() == 0 })
		})
	}
	for name, first := range map[string]string{
		"unknown field": `{"command":["echo"],"x":1}`, "no JSON": "x", "no command": "{}", "unknown program": `{"command":["x"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			ws := s.dial(t, sb)
			streamBody(t, ws, websocket.MessageText, first)
			if _, b, err := ws.Read(t.Context()); err != nil || !strings.Contains(string(b), `"invalid"`) {
				t.Errorf("%q, %v", b, err)
			}
			if _, _, err := ws.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
				t.Error(err)
			}
		})
	}
}

// TestExitComesLastAndOnce reads a session's frames as they are.
func TestExitComesLastAndOnce(t *testing.T) {
	s := serve(t)
	_, sb := sandbox(t, s)
	ws := s.dial(t, sb)
	streamBody(t, ws, websocket.MessageText, `{"command":["flood","100000"]}`)
	var bytes, ends, exits int
	for {
		_, b, err := ws.Read(t.Context())
		if err != nil {
			if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
				t.Error(err)
			}
			break
		}
		if exits > 0 {
			t.Errorf("%q after exit", b)
		}
		switch {
		case b[0] == 3 && strings.Contains(string(b), `"exit"`):
			exits++
		case (b[0] == 1 || b[0] == 2) && len(b) == 1:
			ends++
		case b[0] == 1 || b[0] == 2:
			bytes += len(b) - 1
		}
	}
	if bytes != 200000 || ends != 2 || exits != 1 {
		t.Errorf("%d bytes, %d ends, %d exits", bytes, ends, exits)
	}
}

func TestCloseEndsStreams(t *testing.T) {
	s := serve(t)
	c, sb := sandbox(t, s)
	p, err := c.Exec(t.Context(), sb, caisson.ExecRequest{Command: []string{"sleep"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	logs, err := c.Logs(t.Context(), sb, true)
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	changes, err := c.WatchFiles(t.Context(), sb, "/", true)
	if err != nil {
		t.Fatal(err)
	}
	pulling, pulled := make(chan struct{}), make(chan error)
	go func() {
		_, err := c.Pull(t.Context(), caisson.PullRequest{Reference: "slow"}, func(p caisson.Progress) {
			if p.Stage == "pull" {
				close(pulling)
			}
		})
		pulled <- err
	}()
	<-pulling
	s.api.Close()
	apitest.Fails(t, <-pulled, caisson.Unavailable, "")
	if _, err := p.Wait(t.Context()); caisson.KindOf(err) != caisson.Unavailable {
		t.Errorf("wait: %v", err)
	}
	if _, err := io.Copy(io.Discard, p.Stdout()); err == nil {
		t.Error("a lost connection looks like the end of output")
	}
	io.Copy(io.Discard, logs)
	for range changes {
	}
}

// TestLastEventID reconnects as a browser does.
func TestLastEventID(t *testing.T) {
	s := serve(t)
	c := s.local(t, "")
	for range 3 {
		if _, err := c.Create(t.Context(), caisson.CreateRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	nc, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, "GET /api/v1/events?after=1 HTTP/1.0\r\nLast-Event-ID: 2\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(nc)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	e, err := sse.NewReader(resp.Body, protocol.MaxEvent).Next()
	if err != nil || string(e.ID) != "3" || string(e.Name) != protocol.EventHappened {
		t.Errorf("%s %s %s, %v", e.ID, e.Name, e.Data, err)
	}
}
