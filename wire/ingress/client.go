package ingress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// deadlines bounds the time of each operation on the connection of a client. A deadline is removed when its operation ends,
// because a deadline that passes ends the request even if no operation is in progress. Safe for concurrent use.
type deadlines struct {
	rc    *http.ResponseController // sets deadlines; also flushes and hijacks
	times Times                    // how long the operations may take

	mu     sync.Mutex
	reads  int  // operations in progress that read from the client; guarded by mu
	unread bool // part of the body is unread, and net/http reads it before it answers; guarded by mu
	done   bool // the handler has returned, so the ResponseController must not be used; guarded by mu
}

func newDeadlines(w http.ResponseWriter, r *http.Request, times Times) *deadlines {
	d := &deadlines{rc: http.NewResponseController(w), times: times}
	if r.ProtoMajor == 1 {
		d.unread = r.Body != nil && r.Body != http.NoBody
		d.rc.SetWriteDeadline(time.Time{}) // removes the deadline of the previous request on the connection
	}
	return d
}

// beginRead begins a read of the body. It returns false if the handler has returned.
func (d *deadlines) beginRead() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done {
		return false
	}
	d.reads++
	d.rc.SetReadDeadline(time.Now().Add(d.times.Body))
	return true
}

// endRead ends a read of the body. all reports whether the whole body was read.
func (d *deadlines) endRead(all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if all {
		d.unread = false
	}
	d.release()
}

// release ends an operation that reads from the client. The caller must hold d.mu.
func (d *deadlines) release() {
	if d.reads--; d.reads == 0 && !d.done {
		d.rc.SetReadDeadline(time.Time{})
	}
}

// write calls f, which writes to the client, and bounds its time.
func (d *deadlines) write(f func()) {
	d.mu.Lock()
	d.setWriteDeadlines()
	reads := d.unread
	if reads {
		d.reads++
	}
	d.mu.Unlock()
	f()
	d.mu.Lock()
	defer d.mu.Unlock()
	if reads {
		d.release()
	}
	if !d.done {
		d.rc.SetWriteDeadline(time.Time{})
	}
}

// setWriteDeadlines sets the write deadline, and the read deadline if the body is unread and not being read; d.mu must be held.
func (d *deadlines) setWriteDeadlines() {
	if d.done {
		return
	}
	d.rc.SetWriteDeadline(time.Now().Add(d.times.Write))
	if d.unread && d.reads == 0 {
		d.rc.SetReadDeadline(time.Now().Add(d.times.Body))
	}
}

// finish must be called when the handler returns. It bounds the time of what net/http does afterwards: it sends the end of the
// answer, and reads the rest of the body.
func (d *deadlines) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setWriteDeadlines()
	d.done = true
}

// A responder writes the HTTP response to a client. It bounds the time of each write.
type responder struct {
	http.ResponseWriter
	*deadlines
	status int            // status of the response; 0 until it was written
	bytes  atomic.Int64   // bytes of the response's body that were sent to the client
	atEnd  func(f func()) // makes f be called when the request ends; nil until the request is passed on
}

// Unwrap lets an http.ResponseController find the underlying writer.
func (w *responder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (w *responder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.status = status
	}
	w.write(func() { w.ResponseWriter.WriteHeader(status) })
}

// Write implements [io.Writer].
func (w *responder) Write(p []byte) (n int, err error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.write(func() { n, err = w.ResponseWriter.Write(p) })
	w.bytes.Add(int64(n))
	return n, err
}

// FlushError lets an http.ResponseController flush what was written.
func (w *responder) FlushError() (err error) {
	w.write(func() { err = w.rc.Flush() })
	return err
}

// Hijack implements [http.Hijacker], for WebSockets. The connection is closed when the request ends, also if the client does not
// read.
func (w *responder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := w.rc.Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.status = http.StatusSwitchingProtocols
	w.atEnd(func() { c.Close() })
	stream := &clientStream{c, w}
	return stream, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(stream)), nil
}

// A clientStream is the connection to a client that has changed to another protocol.
type clientStream struct {
	net.Conn
	answer *responder // has the time limit of each write, and counts the bytes sent to the client
}

// Write implements [net.Conn].
func (s *clientStream) Write(p []byte) (int, error) {
	s.Conn.SetWriteDeadline(time.Now().Add(s.answer.times.Write))
	n, err := s.Conn.Write(p)
	s.answer.bytes.Add(int64(n))
	return n, err
}

// errBodyTimeout reports that a client did not send its body.
var errBodyTimeout = errors.New("the request's body did not arrive in time")

// A clientBody is the body of a request. It bounds the time for which each read waits for data. The transport may read it
// after the handler has returned.
type clientBody struct {
	io.ReadCloser
	call      *call      // the request, which Read cancels if the client does not send data in time
	deadlines *deadlines // sets the deadline of each read
}

// Read implements [io.Reader]. If it waits too long for data, it cancels the request with errBodyTimeout.
func (b *clientBody) Read(p []byte) (int, error) {
	if !b.deadlines.beginRead() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.ReadCloser.Read(p)
	b.deadlines.endRead(err == io.EOF)
	b.call.touch()
	if ne, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && ne.Timeout() {
		b.call.cancel(errBodyTimeout)
		return n, errBodyTimeout
	}
	return n, err
}
