package engine

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// How long to wait for the wire process of an earlier daemon to be gone, which has the socket too.
const (
	listenTries = 20
	listenPause = 100 * time.Millisecond
)

// listen returns a socket that listens. The engine accepts nobody there.
func listen(addr string) (*os.File, error) {
	l, err := net.Listen("tcp", addr)
	for try := 1; errors.Is(err, unix.EADDRINUSE) && try < listenTries; try++ {
		time.Sleep(listenPause)
		l, err = net.Listen("tcp", addr)
	}
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot listen on %s: %v", addr, err)
	}
	defer l.Close() // the file is a duplicate
	return l.(*net.TCPListener).File()
}

func (e *Engine) closeListener() error {
	if e.listener == nil {
		return nil
	}
	return e.listener.Close()
}
