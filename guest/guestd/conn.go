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

// A conn is the host's end of a running process of "guestd files". Two goroutines read and write its streams, so that a call
// never blocks on a stream; they exit when the conn is closed and their current operation on the stream returns.
//
// A conn serves one call at a time.
type conn struct {
	proc   caisson.Process // the process of "guestd files"
	frames chan frame      // frames that the process has sent; closed when reading has ended
	out    chan []byte     // buffers with frames to send to the process; they are returned through free
	free   chan []byte     // buffers that are free for use with out
	stop   chan struct{}   // closed by the method close
	broken chan struct{}   // closed when writing to the process has failed
	stderr excerpt.Head    // beginning of the process's standard error, for messages

	// writing is set while the process writes a file: close then lets the process remove the incomplete file before it is killed.
	writing atomic.Bool

	once     sync.Once // makes later calls of close have no effect
	closeErr error     // reason for which close was called; set before stop is closed
	readErr  error     // error of reading from the process; set before frames is closed
}

// newConn returns a conn for the process proc, and starts its goroutines. It closes proc and returns an error if proc has no
// standard input or output.
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
		c.free <- nil // a buffer is allocated on its first use
	}
	go c.readLoop()
	go c.writeLoop()
	if proc.Stderr() != nil {
		go io.Copy(&c.stderr, proc.Stderr())
	}
	return c, nil
}

// readLoop reads frames from the process and sends them to c.frames, until reading fails or c is closed.
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

// writeLoop writes the buffers that it receives from c.out to the process, until writing fails or c is closed.
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

// close kills the process. Operations of c that are in progress return the error why.
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

// graceTime is how long a process of "guestd files" may take to remove an incomplete file after its input has ended.
const graceTime = time.Second

// kill kills the process when its output has ended, but at the latest after graceTime.
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

// dead reports whether an idle process has exited or cannot be used any more.
func (c *conn) dead() bool {
	select {
	case <-c.frames: // the output has ended, or the process has sent a frame without a request, which violates the protocol
		return true
	case <-c.broken:
		return true
	case <-c.stop:
		return true
	default:
		return false
	}
}

// closeWithError closes c because the process has exited or violated the protocol, and returns an error with the cause. If c is
// closed already, it returns the error with which it was closed.
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

// recv returns the next frame from the process.
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

// recvResult receives the next frame, which must be of the given kind and contain a result. It returns errors of the connection
// to the process; an error of the operation is in the result.
func (c *conn) recvResult(kind byte) (*result, error) {
	f, err := c.recv()
	if err != nil {
		return nil, err
	}
	return c.parseResult(f, kind)
}

// parseResult decodes the result in the frame f. If f is malformed or not of the given kind, it closes c and returns an error.
func (c *conn) parseResult(f frame, kind byte) (*result, error) {
	var r result
	if f.kind != kind {
		return nil, c.closeWithError(errProtocol)
	}
	if err := decode(f.payload, &r); err != nil {
		return nil, c.closeWithError(err)
	}
	return &r, nil
}

// takeBuffer waits for a free buffer and returns it; or, if the process sends a frame before that, it returns the frame.
func (c *conn) takeBuffer() ([]byte, *frame, error) {
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

// send passes a buffer to writeLoop, which writes it to the process.
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

// request sends the request v to the process.
func (c *conn) request(v request) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b, early, err := c.takeBuffer()
	if err != nil {
		return err
	}
	if early != nil {
		return c.closeWithError(errProtocol)
	}
	return c.send(framing.Append(b, frameRequest, payload))
}

// sendContent sends the data of r and an end frame, and returns the result in the end frame of the process. If the process
// refuses further content, it sends an abort frame and does not read r to its end. If r fails, it sends an abort frame and
// returns r's error.
func (c *conn) sendContent(r io.Reader) (*result, error) {
	c.writing.Store(true)
	defer func() {
		select {
		case <-c.stop: // c.writing remains set: the process may still be removing the incomplete file
		default:
			c.writing.Store(false)
		}
	}()
	var failed error // error of reading r
	for done := false; !done; {
		b, early, err := c.takeBuffer()
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
	res, err := c.recvResult(frameEnd)
	if failed != nil && err == nil {
		return nil, failed
	}
	return res, err
}

// readFull fills b with data of r. Unlike io.ReadFull, which returns io.ErrUnexpectedEOF at the end of r, it returns io.EOF then,
// and io.ErrUnexpectedEOF only if r returns it, for example because an upload was interrupted.
func readFull(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = r.Read(b[n:])
		n += m
	}
	return n, err
}

// handleRefusal handles the frame f that the process sent before it had received all content. It must be an end frame with an
// error; handleRefusal then sends an abort frame and returns the result.
func (c *conn) handleRefusal(f *frame) (*result, error) {
	res, err := c.parseResult(*f, frameEnd)
	if err == nil && res.Kind == "" {
		return nil, c.closeWithError(errProtocol) // the process reports success, but has not received all content
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

// closeAfter makes the end of ctx close c. release undoes that, and returns false if ctx has ended already.
func (c *conn) closeAfter(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { c.close(context.Cause(ctx)) })
}
