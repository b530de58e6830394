package flow

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	caisson "github.com/caisson-dev/caisson"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/waiter"
)

// A streamRelay copies the bytes of a TCP connection between a guest and the destination without inspecting them. Each direction
// may end separately; an error in one resets both.
type streamRelay struct {
	c    *flow           // the flow that is relayed
	g    *guestConn      // the sandbox's connection
	up   *net.TCPConn    // connection to the destination
	conn syscall.RawConn // raw connection to the destination, for reading from its descriptor

	workers sync.WaitGroup // the goroutines of both directions
	out     chan struct{}  // closed when the direction from the sandbox has ended
	in      chan struct{}  // closed when the direction to the sandbox has ended
}

func newStreamRelay(c *flow, g *guestConn, up *net.TCPConn) (*streamRelay, error) {
	conn, err := up.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &streamRelay{c: c, g: g, up: up, conn: conn, out: make(chan struct{}), in: make(chan struct{})}, nil
}

// startOut begins to relay from the sandbox, starting with head. If line is not nil, HTTP in the first line is refused.
func (r *streamRelay) startOut(head []byte, line *firstLine) {
	r.workers.Go(func() {
		defer close(r.out)
		err := r.sendOut(head, line)
		if errors.Is(err, errHTTP) {
			r.c.refuse("", caisson.Verdict{Rule: -1, Reason: errHTTP.Error()})
		}
		if !errors.Is(err, io.EOF) || r.up.CloseWrite() != nil {
			r.c.end("")
		}
	})
}

// startIn begins to relay from the destination. mayBegin, unless nil, is called once, after the first read from the destination.
// False means that the sandbox has sent data first: then nothing is relayed.
func (r *streamRelay) startIn(mayBegin func() bool) {
	r.workers.Go(func() {
		defer close(r.in)
		err := r.sendIn(mayBegin)
		if errors.Is(err, errNotFirst) {
			return
		}
		if !errors.Is(err, io.EOF) || r.g.CloseWrite() != nil {
			r.c.end("")
			return
		}
		if mayBegin != nil { // if the sandbox has sent nothing yet, a read of its first bytes fails after the time halfClosed
			r.g.SetReadDeadline(time.Now().Add(r.c.f.times.halfClosed))
		}
	})
}

// wait waits until both directions have ended, and closes the sandbox's connection. If only one has ended, it resets the flow
// when no data was relayed for the time halfClosed.
func (r *streamRelay) wait() {
	defer r.workers.Wait()
	idle := time.NewTimer(r.c.f.times.halfClosed)
	defer idle.Stop()
	before, out, in, gone := int64(-1), r.out, r.in, r.g.ended
	for out != nil || in != nil {
		select {
		case <-out:
			out = nil
		case <-in:
			in = nil
		case <-gone:
			gone = nil
			if r.g.failed() {
				r.c.end("")
			}
		case <-idle.C:
			now := r.c.out.Load() + r.c.in.Load()
			if (out == nil || in == nil) && now == before {
				r.c.end("")
			}
			before = now
			idle.Reset(r.c.f.times.halfClosed)
		}
	}
	r.g.Close()
}

// errHTTP is returned by sendOut if the first line contains HTTP.
var errHTTP = errors.New("the first line looks like HTTP, but does not begin like a request")

// sendOut relays from the sandbox until its direction ends, which it reports as io.EOF, or until an error.
func (r *streamRelay) sendOut(head []byte, line *firstLine) error {
	write := func(p []byte) error {
		if line != nil && line.isHTTP(p) {
			return errHTTP
		}
		_, err := r.up.Write(p)
		return err
	}
	if len(head) > 0 {
		if err := write(head); err != nil {
			return err
		}
	}
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp)
	r.g.wq.EventRegister(&entry)
	defer r.g.wq.EventUnregister(&entry)
	return r.g.receive(ready, write)
}

// errNotFirst is returned by sendIn if mayBegin returned false.
var errNotFirst = errors.New("the sandbox has sent data first")

// sendIn relays from the destination until its direction ends, which it reports as io.EOF, or until an error. mayBegin, unless
// nil, is called after the first read; if it returns false, the sandbox has sent data first, and sendIn returns errNotFirst.
func (r *streamRelay) sendIn(mayBegin func() bool) error {
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp)
	r.g.wq.EventRegister(&entry)
	defer r.g.wq.EventUnregister(&entry)
	chunks := r.c.chunks()
	for {
		chunk, n, err := r.receive(chunks)
		if mayBegin != nil && !mayBegin() {
			if err == nil { // data was read that cannot be relayed, because the sandbox has sent data first
				r.c.end("")
			}
			err = errNotFirst
		}
		mayBegin = nil
		if err == nil {
			err = r.g.send(ready, (*chunk)[:n])
		}
		chunks.put(chunk)
		if err != nil {
			return err
		}
	}
}

// receive reads from the destination; the error is io.EOF at the end.
func (r *streamRelay) receive(chunks *bufferPool) (chunk *[]byte, n int, err error) {
	chunk, n, err = readChunk(r.conn, chunks)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return chunk, n, err
}

// readChunk waits for data and reads it into a buffer from chunks, to which the caller must return the buffer unless it is nil.
func readChunk(conn syscall.RawConn, chunks *bufferPool) (chunk *[]byte, n int, err error) {
	var errno error
	err = conn.Read(func(fd uintptr) bool {
		chunk = chunks.get()
		for {
			n, errno = unix.Read(int(fd), *chunk)
			if errno != unix.EINTR {
				break
			}
		}
		if errno == unix.EAGAIN {
			chunks.put(chunk)
			chunk = nil
			return false
		}
		return true
	})
	if err == nil {
		err = errno
	}
	return chunk, n, err
}
