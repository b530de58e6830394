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

// Stall is how long the other end of a connection may neither send nor take a byte.
const Stall = 2 * time.Minute

// A Peer is the connection to whom a request came from.
type Peer struct {
	net.Conn
	file  *os.File // the same socket, to ask the kernel about
	Stall time.Duration
	Wrote bool // whether anything was written
	over  atomic.Bool
}

// NewPeer takes a socket, which stays the caller's; the peer is closed on its own.
func NewPeer(file *os.File) (*Peer, error) {
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return &Peer{Conn: c, file: file, Stall: Stall}, nil
}

func (p *Peer) Read(b []byte) (int, error) {
	p.SetReadDeadline(time.Now().Add(p.Stall))
	if p.over.Load() { // endReads may have come before that
		p.SetReadDeadline(time.Now())
	}
	return p.Conn.Read(b)
}

// EndReads makes reads fail, also one that is under way.
func (p *Peer) EndReads() {
	p.over.Store(true)
	p.SetReadDeadline(time.Now())
}

func (p *Peer) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		// Piece by piece, because a deadline is for a whole write, and whoever reads slowly makes progress, too.
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

// Watch returns a context that ends when the other end has closed the connection; a half-closed one, whose request is at its end,
// is not closed. stop ends the watch.
func (p *Peer) Watch(ctx context.Context) (watched context.Context, stop func(), err error) {
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
			if err != nil && !errors.Is(err, unix.EINTR) || n > 0 && fds[0].Revents&hungUp != 0 {
				cancel()
			}
		}
	}()
	return watched, cancel, nil
}

// hungUp is what the kernel says of a socket whose other end is closed.
const hungUp = unix.POLLHUP | unix.POLLERR | unix.POLLNVAL

// Gone reports whether the other end has closed the connection. A watch may say so a little later.
func (p *Peer) Gone() bool {
	fds := []unix.PollFd{{Fd: int32(p.file.Fd())}}
	n, err := unix.Poll(fds, 0)
	runtime.KeepAlive(p.file)
	return err == nil && n > 0 && fds[0].Revents&hungUp != 0
}

// watchInterval is how often, in milliseconds, it is asked whether the watch has ended; the end of the connection is seen at once.
const watchInterval = 200

// Finish tells the other end that the answer is at its end, whoever else has the socket.
func (p *Peer) Finish() {
	if c, ok := p.Conn.(*net.UnixConn); ok {
		c.CloseWrite()
	}
	p.Close()
}

// Body returns a reader of a request that may be compressed, as clients of HTTP do with long ones: packet lines never begin like gzip.
// It ends with an Exhausted error after limit bytes.
func Body(r io.Reader, limit int64) (io.Reader, error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	head, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.Equal(head, []byte{0x1f, 0x8b}) {
		return &limited{r: buffered, left: limit}, nil
	}
	unpacked, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, err
	}
	return &limited{r: unpacked, left: limit}, nil
}

// A limited is an io.LimitedReader whose end is an error.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p[:min(int64(len(p)), l.left+1)])
	if l.left -= int64(n); l.left < 0 {
		return 0, caisson.Errorf(caisson.Exhausted, "the request is too long")
	}
	return n, err
}

// RequestError says why a request could not be read.
func RequestError(err error) error {
	if _, ok := errors.AsType[*caisson.Error](err); ok {
		return err
	}
	return caisson.Wrap(err, caisson.Invalid, "the request cannot be read to its end")
}
