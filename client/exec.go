package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// Exec implements [caisson.Processes]. ctx applies to the start, not to the process; Close kills the process. If the connection
// is lost, the daemon kills the process and Wait returns an Unavailable error.
func (p processes) Exec(ctx context.Context, ref string, req caisson.ExecRequest) (caisson.Process, error) {
	s := newExecSession(req.TTY, req.Stdin)
	s.lostMessage = "the connection to the daemon was lost, and the process was killed; the sandbox is not affected: run the command again"
	return p.c.openSession(ctx, []string{"sandboxes", ref, "exec", "stream"}, s, req)
}

// openSession opens a WebSocket for s at this path of the API, sends req first, and returns s when the process has started.
func (c *requester) openSession(ctx context.Context, path []string, s *execSession, req any) (caisson.Process, error) {
	target, err := c.requestURL(path, nil)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	c.authorize(header)
	ws, resp, err := websocket.Dial(ctx, target, &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: header})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
			return nil, responseError(resp) // the body can be read: websocket.Dial has kept its first 1024 bytes
		}
		return nil, c.unreachable(ctx, err)
	}
	ws.SetReadLimit(protocol.MaxFrame)
	s.ws = ws
	if err := s.start(ctx, req); err != nil {
		ws.CloseNow()
		s.cancel()
		if _, ours := errors.AsType[*caisson.Error](err); ours {
			return nil, err
		}
		return nil, c.unreachable(ctx, err)
	}
	s.receiver.Go(s.receive)
	return s, nil
}

// execSession is the client's end of an exec session, or of the connection of a viewer to a terminal.
type execSession struct {
	ws          *websocket.Conn    // connection to the daemon
	ctx         context.Context    // context of all reads and writes; ends with the session, not with the context of Exec
	cancel      context.CancelFunc // ends ctx
	pid         int                // id of the process in the sandbox
	tty         bool               // the process has a terminal, so Resize is possible
	lostMessage string             // error message for users if the connection is lost
	stdin       *stdinWriter       // standard input of the process; nil if it has none
	outputs     [2]*protocol.Queue // received data of standard output and standard error that was not read yet

	receiver sync.WaitGroup     // the goroutine that runs the method receive
	done     chan struct{}      // closed when the session has ended and status and err are set
	status   caisson.ExitStatus // exit status of the process; valid if err is nil
	err      error              // error of the session; nil if status is the exit status of the process
}

var _ caisson.Process = (*execSession)(nil)

// newExecSession returns a session without a connection. tty means that the process has a terminal, stdin that it has an input.
func newExecSession(tty, stdin bool) *execSession {
	s := &execSession{tty: tty, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for i := range s.outputs {
		s.outputs[i] = protocol.NewQueue(func(n int) {
			s.sendControl(protocol.Message{Type: protocol.MsgWindow, Channel: protocol.Stdout + protocol.Channel(i), Bytes: n})
		})
	}
	if stdin {
		s.stdin = &stdinWriter{s: s, credit: protocol.NewCredit()}
		s.stdin.ctx, s.stdin.close = context.WithCancel(s.ctx)
	}
	return s
}

// start sends req, the first message, and waits until the process has started.
func (s *execSession) start(ctx context.Context, req any) error {
	b, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if err := s.ws.Write(ctx, websocket.MessageText, b); err != nil {
		return err
	}
	_, b, err = s.ws.Read(ctx)
	if err != nil {
		return err
	}
	channel, data, err := protocol.ParseFrame(b)
	if err != nil {
		return err
	}
	m, err := protocol.ParseMessage(data)
	switch {
	case err != nil:
		return err
	case channel == protocol.Control && m.Type == protocol.MsgError:
		return m.Problem.Err()
	case channel != protocol.Control || m.Type != protocol.MsgStarted:
		return errors.New("the session did not start")
	}
	s.pid = m.PID
	return nil
}

// sendControl sends a control message to the server.
func (s *execSession) sendControl(m protocol.Message) error {
	return s.write(m.Frame())
}

// write sends a frame to the server. The only error that it returns is io.ErrClosedPipe.
func (s *execSession) write(frame []byte) error {
	if err := s.ws.Write(s.ctx, websocket.MessageBinary, frame); err != nil {
		return io.ErrClosedPipe // the connection is closed, because the process has exited or is being killed
	}
	return nil
}

// receive handles the server's frames until the session ends.
func (s *execSession) receive() {
	err := s.readFrames()
	if s.ctx.Err() != nil {
		err = caisson.Errorf(caisson.Conflict, "the session was closed")
	} else if err != nil {
		if _, ours := errors.AsType[*caisson.Error](err); !ours {
			err = caisson.Wrap(err, caisson.Unavailable, "%s", s.lostMessage)
		}
	}
	if s.err = err; err != nil {
		s.status = caisson.ExitStatus{Code: -1, Unknown: true}
	}
	close(s.done)
	for _, q := range s.outputs {
		q.Close(err) // has no effect if the queue was closed at the end of the output
	}
	s.ws.CloseNow()
	s.cancel()
}

// readFrames handles the server's frames until the exit status has arrived, and then returns nil.
func (s *execSession) readFrames() error {
	for {
		_, b, err := s.ws.Read(s.ctx)
		if err != nil {
			return err
		}
		channel, data, err := protocol.ParseFrame(b)
		if err != nil {
			return err
		}
		switch channel {
		case protocol.Stdout, protocol.Stderr:
			q := s.outputs[channel-protocol.Stdout]
			if len(data) == 0 {
				q.Close(nil)
			} else if err := q.Push(data); err != nil {
				return err
			}
		case protocol.Control:
			m, err := protocol.ParseMessage(data)
			if err != nil {
				return err
			}
			if m.Type == protocol.MsgExit {
				s.status = *m.Exit
				return nil
			}
			if err := s.handleControl(m); err != nil {
				return err
			}
		default:
			return errors.New("the server has no input")
		}
	}
}

// handleControl handles a control message from the server other than protocol.MsgExit.
func (s *execSession) handleControl(m protocol.Message) error {
	switch {
	case m.Type == protocol.MsgError:
		return m.Problem.Err()
	case m.Type == protocol.MsgWindow && m.Channel == protocol.Stdin && s.stdin != nil:
		return s.stdin.credit.Grant(m.Bytes)
	case m.Type == protocol.MsgCloseStdin && s.stdin != nil:
		s.stdin.close()
		return nil
	default:
		return errors.New("not a server's message")
	}
}

// PID implements [caisson.Process].
func (s *execSession) PID() int { return s.pid }

// Stdin implements [caisson.Process].
func (s *execSession) Stdin() io.WriteCloser {
	if s.stdin == nil {
		return nil // not s.stdin, because an interface that contains a nil pointer is not nil
	}
	return s.stdin
}

// Stdout implements [caisson.Process].
func (s *execSession) Stdout() io.Reader { return s.outputs[0] }

// Stderr implements [caisson.Process].
func (s *execSession) Stderr() io.Reader { return s.outputs[1] }

// Resize implements [caisson.Process].
func (s *execSession) Resize(rows, cols uint16) error {
	if !s.tty {
		return caisson.Errorf(caisson.Conflict, "the process has no terminal")
	}
	return s.sendIfRunning(protocol.Message{Type: protocol.MsgResize, Rows: rows, Cols: cols})
}

// Signal implements [caisson.Process]. It returns when the signal has been sent, not when it is delivered.
func (s *execSession) Signal(_ context.Context, signal int) error {
	if signal < 1 || signal > 64 {
		return caisson.Invalidf("signal", "%d is not a signal", signal)
	}
	return s.sendIfRunning(protocol.Message{Type: protocol.MsgSignal, Signal: signal})
}

// sendIfRunning sends a control message to the server. Returns NotFound if the process has exited.
func (s *execSession) sendIfRunning(m protocol.Message) error {
	select {
	case <-s.done: // checked before the write, which may succeed although the process has exited
		return caisson.Errorf(caisson.NotFound, "the process has ended")
	default:
	}
	if err := s.sendControl(m); err != nil {
		return caisson.Wrap(err, caisson.NotFound, "the process has ended")
	}
	return nil
}

// Wait implements [caisson.Process]. The exit status arrives after all output. The daemon sends at most 256 KiB of output ahead,
// so Wait blocks while more output than that is unread.
func (s *execSession) Wait(ctx context.Context) (caisson.ExitStatus, error) {
	select {
	case <-s.done:
		return s.status, s.err
	case <-ctx.Done():
		return caisson.ExitStatus{Code: -1, Unknown: true}, context.Cause(ctx)
	}
}

// Close implements [caisson.Process].
func (s *execSession) Close() error {
	s.cancel()
	s.ws.CloseNow()
	s.receiver.Wait()
	return nil
}

// stdinWriter is the standard input of a process in a session.
type stdinWriter struct {
	s      *execSession       // session that the input belongs to
	credit *protocol.Credit   // number of bytes that the server is ready to receive
	ctx    context.Context    // ends when the process has closed its input, when Close is called, or when the session ends
	close  context.CancelFunc // ends ctx; nothing is sent any more
}

// Write implements [io.Writer]. It waits until the server is ready to receive the data, and returns io.ErrClosedPipe if the
// process has closed its input or exited.
func (in *stdinWriter) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n, err := in.credit.Take(in.ctx, min(len(b)-written, protocol.MaxData))
		if err != nil || in.ctx.Err() != nil {
			return written, io.ErrClosedPipe
		}
		frame := append(make([]byte, 0, 1+n), byte(protocol.Stdin))
		if err := in.s.write(append(frame, b[written:written+n]...)); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// Close implements [io.Closer]. The process then reads end of file. It is not an error if the process has exited.
func (in *stdinWriter) Close() error {
	if in.ctx.Err() == nil {
		in.close()
		in.s.sendControl(protocol.Message{Type: protocol.MsgCloseStdin})
	}
	return nil
}
