package terminal

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/frame"
)

// Attach attaches a new viewer to the terminal to whose socket conn is connected, and returns the terminal's program. The notices
// to the viewer are its standard error. Closing the result detaches the viewer. Attach takes ownership of conn, and treats data
// from it as untrusted. If ctx ends before the terminal has answered, conn is closed.
func Attach(ctx context.Context, conn io.ReadWriteCloser, req caisson.AttachRequest) (caisson.Process, error) {
	s := &attachment{conn: conn, notices: make(chan notice, 4), done: make(chan struct{}), readOnly: req.ReadOnly}
	s.outReader, s.out = io.Pipe()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := s.start(req)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		if caisson.KindOf(err) == caisson.Exhausted {
			return nil, err
		}
		return nil, caisson.Wrap(err, caisson.Unavailable, "the terminal does not answer; list them with: caisson terminal ls")
	}
	go s.receive()
	return s, nil
}

// An attachment is the host's end of the connection of a viewer to a terminal. It implements [caisson.Process].
type attachment struct {
	conn      io.ReadWriteCloser // connection to the terminal's socket
	pid       int                // id of the program's process in the sandbox
	readOnly  bool               // the viewer sends no input
	out       *io.PipeWriter     // receives the program's output
	outReader *io.PipeReader     // other end of out, which Stdout returns
	notices   chan notice        // notices to the viewer that were not read yet; closed when the connection has ended

	writing sync.Mutex // held while a frame is written to conn

	done   chan struct{}      // closed when the connection has ended and status is set
	status caisson.ExitStatus // exit status of the program; unknown if the connection ended before the program did
}

// start sends the request to attach and waits for the answer.
func (s *attachment) start(req caisson.AttachRequest) error {
	flags := byte(0)
	if req.ReadOnly {
		flags = flagReadOnly
	}
	if err := s.send(kindAttach, append(appendSize(nil, req.Rows, req.Cols), flags)); err != nil {
		return err
	}
	kind, payload, err := frame.Read(s.conn, serverLimits)
	switch {
	case err != nil:
		return err
	case kind == kindNotice && len(payload) == 1 && notice(payload[0]) == noticeFull:
		return caisson.Errorf(caisson.Exhausted, "the terminal has %d viewers already; one has to detach first", caisson.MaxTerminalViewers)
	case kind != kindStarted || len(payload) != 4:
		return frame.ErrProtocol
	}
	pid := binary.BigEndian.Uint32(payload)
	if pid == 0 || pid > math.MaxInt32 {
		return frame.ErrProtocol
	}
	s.pid = int(pid)
	return nil
}

// send sends a frame to the terminal.
func (s *attachment) send(kind byte, payload []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.conn.Write(frame.Append(nil, kind, payload))
	return err
}

// receive handles the terminal's frames until the connection ends or the terminal violates the protocol.
func (s *attachment) receive() {
	s.status = caisson.ExitStatus{Code: -1, Unknown: true, Reason: "the connection to the terminal was lost"}
	for {
		kind, payload, err := frame.Read(s.conn, serverLimits)
		if err != nil || !s.handle(kind, payload) {
			break
		}
	}
	s.conn.Close()
	close(s.done)
	s.out.Close()
	close(s.notices)
}

// handle handles a frame from the terminal. It returns false if the frame is the last one or malformed.
func (s *attachment) handle(kind byte, payload []byte) bool {
	switch kind {
	case kindOutput:
		_, err := s.out.Write(payload)
		return err == nil
	case kindNotice:
		if len(payload) != 1 || notice(payload[0]).String() == "" {
			return false
		}
		select {
		case s.notices <- notice(payload[0]):
		default: // the channel is full of notices that have not been read, so this one is dropped
		}
		return true
	case kindExit:
		if status, err := parseExit(payload); err == nil {
			s.status = status
		}
	}
	return false
}

// PID implements [caisson.Process]: it returns the pid of the terminal's program in the sandbox.
func (s *attachment) PID() int { return s.pid }

// Stdin implements [caisson.Process]. It returns nil for a viewer that is read-only.
func (s *attachment) Stdin() io.WriteCloser {
	if s.readOnly {
		return nil
	}
	return input{s}
}

// Stdout implements [caisson.Process]: it returns a reader of the program's output.
func (s *attachment) Stdout() io.Reader { return s.outReader }

// Stderr implements [caisson.Process]: it returns a reader of the notices to the viewer.
func (s *attachment) Stderr() io.Reader { return &noticeReader{notices: s.notices} }

// Resize implements [caisson.Process]. It returns Conflict for a viewer that is read-only.
func (s *attachment) Resize(rows, cols uint16) error {
	return s.control(kindResize, appendSize(nil, rows, cols))
}

// Signal implements [caisson.Process]: it sends the signal to the foreground process group of the terminal.
func (s *attachment) Signal(_ context.Context, signal int) error {
	if signal < 1 || signal > maxSignal {
		return caisson.Invalidf("signal", "%d is not a signal; use 1 to 64", signal)
	}
	return s.control(kindSignal, []byte{byte(signal)})
}

// control sends a frame. It returns Conflict if the viewer is read-only, and NotFound if the connection has ended.
func (s *attachment) control(kind byte, payload []byte) error {
	if s.readOnly {
		return caisson.Errorf(caisson.Conflict, "the session only views the terminal")
	}
	if err := s.send(kind, payload); err != nil {
		return caisson.Wrap(err, caisson.NotFound, "the session has ended")
	}
	return nil
}

// Wait implements [caisson.Process]: it waits until the connection to the terminal has ended.
func (s *attachment) Wait(ctx context.Context) (caisson.ExitStatus, error) {
	select {
	case <-s.done:
		return s.status, nil
	case <-ctx.Done():
		return caisson.ExitStatus{}, ctx.Err()
	}
}

// Close implements [caisson.Process]: it detaches the viewer from the terminal.
func (s *attachment) Close() error {
	err := s.conn.Close()
	s.outReader.Close()
	<-s.done
	return err
}

// An input is the program's standard input for a viewer, who sends it over the connection of s.
type input struct{ s *attachment }

// Write implements [io.Writer]: it sends b to the terminal as input for the program.
func (in input) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		part := b[done:min(len(b), done+maxData)]
		if err := in.s.send(kindInput, part); err != nil {
			return done, io.ErrClosedPipe
		}
		done += len(part)
	}
	return done, nil
}

// Close does nothing: the program's input must not end, because other viewers may write to it.
func (in input) Close() error { return nil }

// A noticeReader reads the notices to a viewer, such as that output was skipped, as text with one line for each.
type noticeReader struct {
	notices chan notice // the notices to read; closed at the end
	rest    string      // part of the last line that was not read yet
}

// Read implements [io.Reader]: it reads the text of the notices to the viewer, and waits for the next notice if necessary.
func (r *noticeReader) Read(b []byte) (int, error) {
	for r.rest == "" {
		n, open := <-r.notices
		if !open {
			return 0, io.EOF
		}
		r.rest = n.String() + "\n"
	}
	n, err := strings.NewReader(r.rest).Read(b)
	r.rest = r.rest[n:]
	return n, err
}
