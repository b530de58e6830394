package inside

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
)

// A conn is one running "inside files" as the host sees it. Two goroutines of its own do all reading and writing, so that
// no call ever waits for a stream whose other end chooses not to move; they end when the conn is closed and its streams
// let go of them.
//
// A conn serves one call at a time.
type conn struct {
	proc   caisson.Process
	frames chan frame    // from the process; closed when reading ended
	out    chan []byte   // to the process; buffers go back through free
	free   chan []byte   // buffers for out
	stop   chan struct{} // closed by close
	broken chan struct{} // closed when writing failed
	stderr excerpt

	// writing is set while a file in the sandbox is half-written: then the process may clean up before it is killed.
	writing atomic.Bool

	once sync.Once
	why  error // set before stop is closed
	read error // set before frames is closed
}

func newConn(proc caisson.Process) (*conn, error) {
	if proc.Stdin() == nil || proc.Stdout() == nil {
		proc.Close()
		return nil, caisson.Errorf(caisson.Internal, "the helper in the sandbox was started without its streams")
	}
	c := &conn{
		proc: proc, frames: make(chan frame), out: make(chan []byte), free: make(chan []byte, 2),
		stop: make(chan struct{}), broken: make(chan struct{}),
	}
	for range cap(c.free) {
		c.free <- nil // grown on first use
	}
	go c.reads()
	go c.writes()
	if proc.Stderr() != nil {
		go io.Copy(&c.stderr, proc.Stderr())
	}
	return c, nil
}

func (c *conn) reads() {
	defer close(c.frames)
	for {
		f, err := readFrame(c.proc.Stdout())
		if err != nil {
			c.read = err
			return
		}
		select {
		case c.frames <- f:
		case <-c.stop:
			if !c.writing.Load() {
				c.read = io.ErrClosedPipe
				return
			}
		}
	}
}

func (c *conn) writes() {
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

// close ends the process. Whatever waits for it returns why.
func (c *conn) close(why error) {
	c.once.Do(func() {
		c.why = why
		close(c.stop)
		if c.writing.Load() {
			go c.kill()
			return
		}
		c.proc.Close()
	})
}

// graceTime is how long a process has to remove what it had half-written, once its input has ended.
const graceTime = time.Second

// kill ends the process when it has ended its output, or after graceTime.
func (c *conn) kill() {
	defer c.proc.Close()
	grace := time.NewTimer(graceTime)
	defer grace.Stop()
	for {
		select {
		case _, ok := <-c.frames:
			if !ok {
				return
			}
		case <-grace.C:
			return
		}
	}
}

// dead reports whether the process is known to have ended.
func (c *conn) dead() bool {
	select {
	case <-c.frames: // closed, or the process spoke without being asked, which is no better
		return true
	case <-c.broken:
		return true
	case <-c.stop:
		return true
	default:
		return false
	}
}

// bad closes c for not keeping to the protocol and returns the error to say so.
func (c *conn) bad(cause error) error {
	select {
	case <-c.stop:
		return c.why
	default:
	}
	if said := c.stderr.String(); said != "" {
		cause = errors.Join(cause, errors.New(said))
	}
	err := caisson.Wrap(cause, caisson.Unavailable, "the helper in the sandbox that serves its files ended or answered nonsense; try again")
	c.close(err)
	return err
}

// recv returns the next frame.
func (c *conn) recv() (frame, error) {
	select {
	case f, ok := <-c.frames:
		if !ok {
			return frame{}, c.bad(noEOF(c.read))
		}
		return f, nil
	case <-c.stop:
		return frame{}, c.why
	}
}

// result returns the next frame, which must be a result of that kind. The error is the connection's or the result's.
func (c *conn) result(kind byte) (*result, error) {
	f, err := c.recv()
	if err != nil {
		return nil, err
	}
	return c.parse(f, kind)
}

func (c *conn) parse(f frame, kind byte) (*result, error) {
	var r result
	if f.kind != kind {
		return nil, c.bad(errProtocol)
	}
	if err := decode(f.payload, &r); err != nil {
		return nil, c.bad(err)
	}
	return &r, nil
}

// buffer returns an empty buffer for send, or an early frame of the process instead.
func (c *conn) buffer() ([]byte, *frame, error) {
	select {
	case b := <-c.free:
		return b, nil, nil
	case f, ok := <-c.frames:
		if !ok {
			return nil, nil, c.bad(noEOF(c.read))
		}
		return nil, &f, nil
	case <-c.broken:
		return nil, nil, c.bad(io.ErrClosedPipe)
	case <-c.stop:
		return nil, nil, c.why
	}
}

// send hands a buffer to the writer.
func (c *conn) send(b []byte) error {
	select {
	case c.out <- b:
		return nil
	case <-c.broken:
		return c.bad(io.ErrClosedPipe)
	case <-c.stop:
		return c.why
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
		return c.bad(errProtocol)
	}
	return c.send(appendFrame(b, frameRequest, payload))
}

// content sends what r yields as data, then an end. If the process does not want all of it, that is told it, and the rest
// of r is not read. It returns the final result.
func (c *conn) content(r io.Reader) (*result, error) {
	c.writing.Store(true)
	defer func() {
		select {
		case <-c.stop: // and stays so: the process is on its own now
		default:
			c.writing.Store(false)
		}
	}()
	var failed error // of r
	for done := false; !done; {
		b, early, err := c.buffer()
		if err != nil {
			return nil, err
		}
		if early != nil {
			return c.refused(early)
		}
		if cap(b) < frameHead+chunkSize {
			b = make([]byte, 0, frameHead+chunkSize)
		}
		n, err := readFull(r, b[frameHead:frameHead+chunkSize])
		if n > 0 {
			b = b[:frameHead+n]
			putHead(b, frameData, n)
		}
		switch {
		case err == io.EOF:
			b, done = appendFrame(b, frameEnd, nil), true
		case err != nil:
			b, done, failed = appendFrame(b, frameAbort, nil), true, err
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

// readFull fills b as far as r goes. Unlike io.ReadFull it never makes an error of its own: an io.ErrUnexpectedEOF is r's,
// an upload that broke off say, and must not pass for an end.
func readFull(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = r.Read(b[n:])
		n += m
	}
	return n, err
}

// refused handles an end that came before the content did.
func (c *conn) refused(f *frame) (*result, error) {
	res, err := c.parse(*f, frameEnd)
	if err == nil && res.Kind == "" {
		return nil, c.bad(errProtocol) // success without having seen the end
	}
	if err == nil {
		var b []byte
		select {
		case b = <-c.free:
		case <-c.broken:
			return nil, c.bad(io.ErrClosedPipe)
		case <-c.stop:
			return nil, c.why
		}
		err = c.send(appendFrame(b, frameAbort, nil))
	}
	return res, err
}

// bind closes c when ctx ends. The returned function undoes that.
func (c *conn) bind(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { c.close(context.Cause(ctx)) })
}

// excerpt keeps the first few hundred bytes that are written to it.
type excerpt struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
}

func (e *excerpt) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.buf = append(e.buf, b[:min(len(b), 512-len(e.buf))]...)
	return len(b), nil
}

func (e *excerpt) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return plain(string(e.buf))
}
