package engine

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Number and interval of retries while the wire process of an earlier daemon still holds the socket.
const (
	listenTries = 20
	listenPause = 100 * time.Millisecond
)

// listenerAddr returns the address of a listening socket.
func listenerAddr(f *os.File) (string, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return "", err
	}
	defer l.Close() // a duplicate
	return l.Addr().String(), nil
}

// listen returns a listening socket. The engine does not accept connections on it.
func listen(addr string) (*os.File, error) {
	l, err := net.Listen("tcp", addr)
	for try := 1; errors.Is(err, unix.EADDRINUSE) && try < listenTries; try++ {
		time.Sleep(listenPause)
		l, err = net.Listen("tcp", addr)
	}
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot listen on %s: %v", addr, err)
	}
	defer l.Close() // File returns a duplicate
	return l.(*net.TCPListener).File()
}
