// Package duplex copies between two connections in both directions.
package duplex

import (
	"context"
	"io"
	"sync"
)

// A Conn is a connection that can be closed in one direction.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error // ends the direction to the other side
}

// bufferSize is the size of the buffer of each direction in bytes.
const bufferSize = 128 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }} // buffers of Copy

// Copy copies between a and b until both directions have ended, one of them has failed, or ctx is cancelled; then it closes both. It
// passes the end of file of one direction on while the other one continues.
func Copy(ctx context.Context, a, b Conn) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ended := make(chan error, 2)
	for _, d := range [][2]Conn{{a, b}, {b, a}} {
		wg.Go(func() { ended <- oneWay(d[0], d[1]) })
	}
	defer b.Close()
	defer a.Close()
	for range 2 {
		select {
		case err := <-ended:
			if err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// oneWay copies from src to dst until the end of file, and then closes dst for writing.
func oneWay(dst, src Conn) error {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	// The structs hide the methods WriteTo and ReadFrom, which would use other buffers than buf.
	if _, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf[:]); err != nil {
		return err
	}
	return dst.CloseWrite()
}
