package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// Timeouts of an exec session.
const (
	requestTimeout = 10 * time.Second // time in which the client must send the first message, its request
	pingEvery      = 30 * time.Second // interval of pings, and time in which the client must answer a ping to keep the session
)

// execRoutes serves interactive exec sessions.
type execRoutes struct {
	core  caisson.Processes
	execs *atomic.Int64 // number of processes that clients have started and wait for
	log   *slog.Logger
}

func (h execRoutes) register(rt *router) {
	o := getOp("/sandboxes/{ref}/exec/stream", "exec-process", "processes", "Start an interactive process (WebSocket)")
	o.Description = "The first message is text: an ExecRequest. All further ones are binary frames: one byte says the channel " +
		"(0 stdin, 1 stdout, 2 stderr, 3 control), the rest is its data, on channel 3 a JSON message. Client to server: resize " +
		"{rows, cols}, signal {signal}, closeStdin, window. Server to client: started {pid}, window, closeStdin, exit {exit}, " +
		"error {problem}. On channels 0 to 2 a sender may have 256 KiB in flight, and more as window {channel, bytes} messages " +
		"grant it; a frame has at most 32 KiB. An empty frame ends an output. exit comes once, after all output. If " +
		"the connection is lost, the process is killed."
	registerStreamRoute(rt, withResponse(o, http.StatusSwitchingProtocols, "", "The connection is now a WebSocket"), h.serve)
}

// serve upgrades the connection to a WebSocket, starts the process and serves its session.
func (h execRoutes) serve(w http.ResponseWriter, r *http.Request, in *RefParam) error {
	h.execs.Add(1)
	defer h.execs.Add(-1)
	return serveSession(w, r, in.Ref, h.log, func(ctx context.Context, first []byte) (caisson.Process, error) {
		req, err := parseExecRequest(first)
		if err != nil {
			return nil, err
		}
		return h.core.Exec(ctx, in.Ref, req)
	})
}

// serveSession upgrades the connection to a WebSocket, and serves the session that open returns for the client's first message.
func serveSession(w http.ResponseWriter, r *http.Request, sandbox string, log *slog.Logger,
	open func(ctx context.Context, first []byte) (caisson.Process, error),
) error {
	if r.Header.Get("Upgrade") == "" {
		return caisson.Invalidf("Upgrade", "this route requires WebSocket; use exec for a single response")
	}
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return nil // Accept has written the error response
	}
	defer conn.CloseNow()
	conn.SetReadLimit(bodyLimit)
	ctx := r.Context()
	first, err := readRequest(ctx, conn)
	if err == nil {
		var p caisson.Process
		if p, err = open(ctx, first); err == nil {
			s := newExecSession(conn, p, log)
			err = s.run(ctx)
		}
	}
	if err != nil && ctx.Err() == nil {
		problem := protocol.ProblemOf(err)
		if problem.Status >= http.StatusInternalServerError {
			log.ErrorContext(ctx, "exec failed", "sandbox", sandbox, "err", err)
		}
		writeFrame(ctx, conn, protocol.Message{Type: protocol.MsgError, Problem: problem}.Frame())
	}
	conn.Close(websocket.StatusNormalClosure, "")
	return nil
}

// readRequest reads the first message of a session, which is its request.
func readRequest(ctx context.Context, conn *websocket.Conn) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	kind, b, err := conn.Read(ctx)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "no request was received")
	}
	if kind != websocket.MessageText {
		return nil, caisson.Errorf(caisson.Invalid, "the first message must be a request")
	}
	return b, nil
}

// writeFrame sends one frame. The connection is unusable after an error.
func writeFrame(ctx context.Context, conn *websocket.Conn, frame []byte) error {
	return conn.Write(ctx, websocket.MessageBinary, frame)
}

// An execSession is the server's end of an exec session: it connects a process with a client.
type execSession struct {
	conn   *websocket.Conn
	proc   caisson.Process
	log    *slog.Logger
	input  *protocol.Queue     // received standard input that the process has not read yet
	credit [2]*protocol.Credit // how many bytes of stdout and of stderr the client is ready to receive
}

func newExecSession(conn *websocket.Conn, p caisson.Process, log *slog.Logger) *execSession {
	return &execSession{conn: conn, proc: p, log: log, credit: [2]*protocol.Credit{protocol.NewCredit(), protocol.NewCredit()}}
}

// run transfers data until the process has exited and all output was sent, or until the client has disconnected and the process
// was killed. The caller must send the returned error to the client.
func (s *execSession) run(request context.Context) error {
	ctx, cancel := context.WithCancel(request)
	var pumps, others sync.WaitGroup
	defer others.Wait()
	defer s.proc.Close() // makes pending reads and writes of the other goroutines return
	defer cancel()

	s.input = protocol.NewQueue(func(n int) {
		writeFrame(ctx, s.conn, protocol.Message{Type: protocol.MsgWindow, Channel: protocol.Stdin, Bytes: n}.Frame())
	})
	defer s.input.Close(io.ErrClosedPipe)
	if err := writeFrame(ctx, s.conn, protocol.Message{Type: protocol.MsgStarted, PID: s.proc.PID()}.Frame()); err != nil {
		return nil
	}
	others.Go(func() { defer cancel(); s.receive(ctx) })
	others.Go(func() { defer cancel(); s.ping(ctx) })
	others.Go(func() { s.copyInput(ctx) })
	exited := make(chan struct{})
	for i, r := range []io.Reader{s.proc.Stdout(), s.proc.Stderr()} {
		pumps.Go(func() {
			pump(r, exited, &others, func(b []byte) error { return s.output(ctx, i, b) })
			// If the request is cancelled, the process is killed and its outputs end. In this case, the end of the output is not
			// sent, so that the client does not take the output for complete. The condition uses the request's context, which has
			// ended before the outputs end; ctx may end later.
			if request.Err() == nil {
				writeFrame(ctx, s.conn, []byte{byte(protocol.Stdout) + byte(i)}) // an empty frame ends the output
			}
		})
	}
	status, err := s.proc.Wait(ctx)
	if err != nil {
		s.proc.Close()
	}
	close(exited)
	pumps.Wait()
	switch {
	case ctx.Err() != nil:
		return nil // the client has disconnected, so no error can be sent to it
	case err != nil:
		return err
	}
	writeFrame(ctx, s.conn, protocol.Message{Type: protocol.MsgExit, Exit: &status}.Frame())
	s.conn.Close(websocket.StatusNormalClosure, "") // close before cancel, which would end the connection without a close frame
	return nil
}

// output sends b as data of the output with index i, 0 for stdout or 1 for stderr, as far as the client's flow-control window
// allows.
func (s *execSession) output(ctx context.Context, i int, b []byte) error {
	for len(b) > 0 {
		n, err := s.credit[i].Take(ctx, min(len(b), protocol.MaxData))
		if err != nil {
			return err
		}
		frame := append(make([]byte, 0, 1+n), byte(protocol.Stdout)+byte(i))
		if err := writeFrame(ctx, s.conn, append(frame, b[:n]...)); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// copyInput copies the client's input to the process. If the process closes its input, copyInput sends closeStdin to the client
// and discards further input.
func (s *execSession) copyInput(ctx context.Context) {
	in := s.proc.Stdin()
	if in == nil {
		return
	}
	if _, err := io.Copy(in, s.input); err != nil {
		writeFrame(ctx, s.conn, protocol.Message{Type: protocol.MsgCloseStdin}.Frame())
		io.Copy(io.Discard, s.input)
	}
	in.Close()
}

// ping sends pings until ctx ends or the client does not answer a ping in time: a client may disappear without closing the
// connection.
func (s *execSession) ping(ctx context.Context) {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		pong, cancel := context.WithTimeout(ctx, pingEvery)
		err := s.conn.Ping(pong)
		cancel()
		if err != nil {
			return
		}
	}
}

// receive handles the client's frames until the connection ends or the client violates the protocol. It never blocks on the
// process, so pending input does not delay signals.
func (s *execSession) receive(ctx context.Context) {
	for {
		kind, b, err := s.conn.Read(ctx)
		if err == nil && kind != websocket.MessageBinary {
			err = errors.New("unexpected text message")
		}
		if err == nil {
			err = s.handleFrame(ctx, b)
		}
		if err != nil {
			s.log.DebugContext(ctx, "exec session ends", "err", err)
			return
		}
	}
}

// handleFrame handles one frame of the client. An error means that the client violates the protocol.
func (s *execSession) handleFrame(ctx context.Context, frame []byte) error {
	channel, data, err := protocol.ParseFrame(frame)
	if err != nil {
		return err
	}
	switch channel {
	case protocol.Stdin:
		return s.input.Push(data)
	case protocol.Control:
		m, err := protocol.ParseMessage(data)
		if err != nil {
			return err
		}
		return s.handleControl(ctx, m)
	default:
		return errors.New("a client has no output")
	}
}

// handleControl executes a control message. An error of the process is only logged and does not end the session, because the
// process may have exited in the meantime. The returned error means that the client violates the protocol.
func (s *execSession) handleControl(ctx context.Context, m protocol.Message) error {
	var err error
	switch m.Type {
	case protocol.MsgResize:
		err = s.proc.Resize(m.Rows, m.Cols)
	case protocol.MsgSignal:
		err = s.proc.Signal(ctx, m.Signal)
	case protocol.MsgCloseStdin:
		s.input.Close(nil)
	case protocol.MsgWindow:
		if m.Channel == protocol.Stdin {
			return protocol.ErrWindow
		}
		return s.credit[m.Channel-protocol.Stdout].Grant(m.Bytes)
	default:
		return errors.New("unexpected message from the client")
	}
	if err != nil {
		s.log.DebugContext(ctx, "exec session", "message", m.Type, "err", err)
	}
	return nil
}

// parseExecRequest decodes the first message of an exec session, which is its request.
func parseExecRequest(b []byte) (req caisson.ExecRequest, err error) {
	if err := parseFirst(b, &req); err != nil {
		return req, err
	}
	if len(req.Command) == 0 {
		return req, caisson.Invalidf("command", "is required")
	}
	return req, nil
}

// parseFirst decodes the first message of a session as strictly as other JSON bodies of the API: unknown fields are errors.
func parseFirst(b []byte, req any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(req); err != nil {
		return execDecodeError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return caisson.Errorf(caisson.Invalid, "the first message must be one request")
	}
	return nil
}

// execDecodeError converts an error of encoding/json to an Invalid error without the names of Go types.
func execDecodeError(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return caisson.Invalidf(e.Field, "cannot hold %s", e.Value)
	}
	if _, ours := errors.AsType[*caisson.Error](err); ours {
		return caisson.Errorf(caisson.Invalid, "%s", caisson.MessageOf(err))
	}
	if _, quoted, ok := strings.Cut(err.Error(), "unknown field "); ok { // encoding/json has no error type for unknown fields
		return caisson.Invalidf(strings.Trim(quoted, `"`), "there is no such field")
	}
	return caisson.Errorf(caisson.Invalid, "the request is not JSON")
}
