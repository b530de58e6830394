package guestd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	framing "github.com/caisson-dev/caisson/internal/frame"
)

// A conn is the host's end of a running "guestd files" process. Two goroutines do all reading and writing, so that a call never
// blocks on a stream whose other end is stalled; they exit when the conn is closed and its streams return.
//
// A conn serves one call at a time.
type conn struct {
	proc   caisson.Process
	frames chan frame    // from the process; closed when reading has ended
	out    chan []byte   // to the process; buffers are returned through free
	free   chan []byte   // buffers for out
	stop   chan struct{} // closed by close
	broken chan struct{} // closed when writing has failed
	stderr excerpt.Head  // beginning of the process's standard error, for messages

	// writing is set while a file is being written in the sandbox: the process may then remove the incomplete file before it is
	// killed.
	writing atomic.Bool

	once     sync.Once // for close
	closeErr error     // reason of close; set before stop is closed
	readErr  error     // error of reading; set before frames is closed
}

// newConn starts the goroutines of a conn. It closes proc if that has no standard input or output.
func newConn(proc caisson.Process) (*conn, error) {
	if proc.Stdin() == nil || proc.Stdout() == nil {
		proc.Close()
		return nil, caisson.Errorf(caisson.Internal, "the helper in the sandbox was started without its streams")
	}
	c := &conn{
		proc: proc, frames: make(chan frame), out: make(chan []byte), free: make(chan []byte, 2),
		stop: make(chan struct{}), broken: make(chan struct{}), stderr: excerpt.Head{Limit: 512},
	}
	for range cap(c.free) {
		c.free <- nil // allocated on first use
	}
	go c.readLoop()
	go c.writeLoop()
	if proc.Stderr() != nil {
		go io.Copy(&c.stderr, proc.Stderr())
	}
	return c, nil
}

// readLoop passes frames of the process to frames until an error or close.
func (c *conn) readLoop() {
	defer close(c.frames)
	for {
		f, err := readFrame(c.proc.Stdout())
		if err != nil {
			c.readErr = err
			return
		}
		select {
		case c.frames <- f:
		case <-c.stop:
			if !c.writing.Load() {
				c.readErr = io.ErrClosedPipe
				return
			}
		}
	}
}

// writeLoop writes the buffers of out to the process until an error or close.
func (c *conn) writeLoop() {
	defer c.proc.Stdin().Close()
	for {
		select {
		case b := <-c.out:
			if _, err := c.proc.Stdin().Write(b); err != nil {
				close(c.broken)
				return
			}
			c.free <- b[:0]
		case <-c.stop:
			return
		}
	}
}

// close kills the process. Pending operations return why.
func (c *conn) close(why error) {
	c.once.Do(func() {
		c.closeErr = why
		close(c.stop)
		if c.writing.Load() {
			go c.kill()
			return
		}
		c.proc.Close()
	})
}

// graceTime is how long a process may take to remove an incomplete file after its input has ended.
const graceTime = time.Second

// kill kills the process when its output has ended, or after graceTime.
func (c *conn) kill() {
	defer c.proc.Close()
	grace := time.After(graceTime)
	for {
		select {
		case _, ok := <-c.frames:
			if !ok {
				return
			}
		case <-grace:
			return
		}
	}
}

// dead reports whether the process has exited or cannot be used any more.
func (c *conn) dead() bool {
	select {
	case <-c.frames: // closed, or an unrequested frame, which is a protocol error
		return true
	case <-c.broken:
		return true
	case <-c.stop:
		return true
	default:
		return false
	}
}

// closeWithError closes c because of a protocol error and returns the error.
func (c *conn) closeWithError(cause error) error {
	select {
	case <-c.stop:
		return c.closeErr
	default:
	}
	if said := printable(c.stderr.String()); said != "" {
		cause = errors.Join(cause, errors.New(said))
	}
	err := caisson.Wrap(cause, caisson.Unavailable, "the helper in the sandbox that serves its files exited or sent a malformed answer; try again")
	c.close(err)
	return err
}

// recv returns the next frame.
func (c *conn) recv() (frame, error) {
	select {
	case f, ok := <-c.frames:
		if !ok {
			return frame{}, c.closeWithError(unexpectedEOF(c.readErr))
		}
		return f, nil
	case <-c.stop:
		return frame{}, c.closeErr
	}
}

// result returns the next frame, which must be a result of that kind. The error is one of the connection; an error of the
// operation is in the result.
func (c *conn) result(kind byte) (*result, error) {
	f, err := c.recv()
	if err != nil {
		return nil, err
	}
	return c.parse(f, kind)
}

// parse decodes f as a result, and closes c if f is of another kind or malformed.
func (c *conn) parse(f frame, kind byte) (*result, error) {
	var r result
	if f.kind != kind {
		return nil, c.closeWithError(errProtocol)
	}
	if err := decode(f.payload, &r); err != nil {
		return nil, c.closeWithError(err)
	}
	return &r, nil
}

// buffer returns an empty buffer for send, or a frame that the process sent early.
func (c *conn) buffer() ([]byte, *frame, error) {
	select {
	case b := <-c.free:
		return b, nil, nil
	case f, ok := <-c.frames:
		if !ok {
			return nil, nil, c.closeWithError(unexpectedEOF(c.readErr))
		}
		return nil, &f, nil
	case <-c.broken:
		return nil, nil, c.closeWithError(io.ErrClosedPipe)
	case <-c.stop:
		return nil, nil, c.closeErr
	}
}

// send passes a buffer to the writer.
func (c *conn) send(b []byte) error {
	select {
	case c.out <- b:
		return nil
	case <-c.broken:
		return c.closeWithError(io.ErrClosedPipe)
	case <-c.stop:
		return c.closeErr
	}
}

// request sends v.
func (c *conn) request(v request) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b, early, err := c.buffer()
	if err != nil {
		return err
	}
	if early != nil {
		return c.closeWithError(errProtocol)
	}
	return c.send(framing.Append(b, frameRequest, payload))
}

// sendContent sends the data of r, then an end frame. If the process refuses the rest, it sends an abort frame and reads no more
// of r. It returns the final result.
func (c *conn) sendContent(r io.Reader) (*result, error) {
	c.writing.Store(true)
	defer func() {
		select {
		case <-c.stop: // writing remains set, because the process may still be removing the file
		default:
			c.writing.Store(false)
		}
	}()
	var failed error // error of r
	for done := false; !done; {
		b, early, err := c.buffer()
		if err != nil {
			return nil, err
		}
		if early != nil {
			return c.handleRefusal(early)
		}
		if cap(b) < frameHeaderSize+chunkSize {
			b = make([]byte, 0, frameHeaderSize+chunkSize)
		}
		n, err := readFull(r, b[frameHeaderSize:frameHeaderSize+chunkSize])
		if n > 0 {
			b = b[:frameHeaderSize+n]
			framing.PutHeader(b, frameData, n)
		}
		switch {
		case err == io.EOF:
			b, done = framing.Append(b, frameEnd, nil), true
		case err != nil:
			b, done, failed = framing.Append(b, frameAbort, nil), true, err
		}
		if err := c.send(b); err != nil {
			return nil, err
		}
	}
	res, err := c.result(frameEnd)
	if failed != nil && err == nil {
		return nil, failed
	}
	return res, err
}

// readFull fills b with the data of r. Unlike io.ReadFull it returns the errors of r unchanged: an io.ErrUnexpectedEOF of r, for
// example from an interrupted upload, must not be taken for an end.
func readFull(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = r.Read(b[n:])
		n += m
	}
	return n, err
}

// handleRefusal handles an end frame that the process sent before all content was sent.
func (c *conn) handleRefusal(f *frame) (*result, error) {
	res, err := c.parse(*f, frameEnd)
	if err == nil && res.Kind == "" {
		return nil, c.closeWithError(errProtocol) // success without having received the end
	}
	if err == nil {
		var b []byte
		select {
		case b = <-c.free:
		case <-c.broken:
			return nil, c.closeWithError(io.ErrClosedPipe)
		case <-c.stop:
			return nil, c.closeErr
		}
		err = c.send(framing.Append(b, frameAbort, nil))
	}
	return res, err
}

// closeAfter closes c when ctx ends. The returned function cancels that.
func (c *conn) closeAfter(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { c.close(context.Cause(ctx)) })
}
