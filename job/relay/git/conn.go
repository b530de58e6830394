package git

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// StallTimeout is how long a connection may be idle: a read or write fails if no byte is transferred for this time.
const StallTimeout = 2 * time.Minute

// ClientConn is the connection to the client that sent a request.
type ClientConn struct {
	net.Conn
	file       *os.File      // the socket of Conn, for poll
	Stall      time.Duration // how long a read or write may be idle
	Wrote      bool          // whether any byte was written
	readsEnded atomic.Bool   // whether EndReads was called
}

// NewClientConn returns a ClientConn on a duplicate of the socket file. The caller must not close file while the ClientConn is
// used, and must close it afterwards.
func NewClientConn(file *os.File) (*ClientConn, error) {
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return &ClientConn{Conn: c, file: file, Stall: StallTimeout}, nil
}

// Read reads what the client sends. It fails if no byte arrives for the time p.Stall, and after EndReads.
func (p *ClientConn) Read(b []byte) (int, error) {
	p.SetReadDeadline(time.Now().Add(p.Stall))
	if p.readsEnded.Load() { // EndReads may have been called before the deadline was set
		p.SetReadDeadline(time.Now())
	}
	return p.Conn.Read(b)
}

// EndReads makes reads fail, including a read in progress.
func (p *ClientConn) EndReads() {
	p.readsEnded.Store(true)
	p.SetReadDeadline(time.Now())
}

// Write sends b to the client. It fails if no byte can be written for the time p.Stall.
func (p *ClientConn) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		// Data is written in pieces of 32 KiB because the deadline covers a whole write, and a slow reader must not time out.
		p.SetWriteDeadline(time.Now().Add(p.Stall))
		m, err := p.Conn.Write(b[n:min(len(b), n+32<<10)])
		if n += m; m > 0 {
			p.Wrote = true
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Watch returns a context that is cancelled when the other end closes the connection. A half-closed connection, on which the
// request is complete, does not count as closed. stop ends the watch.
func (p *ClientConn) Watch(ctx context.Context) (watched context.Context, stop func(), err error) {
	fd, err := unix.FcntlInt(p.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	runtime.KeepAlive(p.file)
	if err != nil {
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	watched, cancel := context.WithCancel(ctx)
	go func() {
		defer unix.Close(fd)
		for watched.Err() == nil {
			fds := []unix.PollFd{{Fd: int32(fd)}}
			n, err := unix.Poll(fds, watchInterval)
			if err != nil && !errors.Is(err, unix.EINTR) || n > 0 && fds[0].Revents&closedEvents != 0 {
				cancel()
			}
		}
	}()
	return watched, cancel, nil
}

// closedEvents has the poll events of a socket whose other end is closed.
const closedEvents = unix.POLLHUP | unix.POLLERR | unix.POLLNVAL

// PeerClosed reports whether the other end has closed the connection. The context of Watch may be cancelled slightly later.
func (p *ClientConn) PeerClosed() bool {
	fds := []unix.PollFd{{Fd: int32(p.file.Fd())}}
	n, err := unix.Poll(fds, 0)
	runtime.KeepAlive(p.file)
	return err == nil && n > 0 && fds[0].Revents&closedEvents != 0
}

// watchInterval is the interval, in milliseconds, at which Watch checks whether its context has ended. It detects a closed
// connection at once.
const watchInterval = 200

// Finish shuts down the connection for writing, which marks the end of the answer even if another process has the socket open,
// and closes it.
func (p *ClientConn) Finish() {
	if c, ok := p.Conn.(*net.UnixConn); ok {
		c.CloseWrite()
	}
	p.Close()
}

// Body returns a reader of a request that may be compressed with gzip, as HTTP clients do with long requests; a packet line never
// begins with the magic number of gzip. The reader fails with an Exhausted error after limit bytes.
func Body(r io.Reader, limit int64) (io.Reader, error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	head, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.Equal(head, []byte{0x1f, 0x8b}) {
		return LimitReader(buffered, limit, errTooLong), nil
	}
	unpacked, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, err
	}
	return LimitReader(unpacked, limit, errTooLong), nil
}

// errTooLong is the error of Body for a request that exceeds the limit.
var errTooLong = caisson.Errorf(caisson.Exhausted, "the request is too long")

// LimitReader returns a reader like io.LimitReader that fails with exceeded if r has more than limit bytes.
func LimitReader(r io.Reader, limit int64, exceeded error) io.Reader {
	return &limitedReader{r: r, left: limit, exceeded: exceeded}
}

// A limitedReader reads from r and fails with exceeded if r has more than left bytes.
type limitedReader struct {
	r        io.Reader
	left     int64
	exceeded error // the error for more than left bytes
}

func (l *limitedReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p[:min(int64(len(p)), l.left+1)])
	if l.left -= int64(n); l.left < 0 {
		return 0, l.exceeded
	}
	return n, err
}

// RequestError returns the error to report for a request that could not be read.
func RequestError(err error) error {
	if _, ok := errors.AsType[*caisson.Error](err); ok {
		return err
	}
	return caisson.Wrap(err, caisson.Invalid, "the request cannot be read to its end")
}
