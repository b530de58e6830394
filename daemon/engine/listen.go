package engine

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/reach"
)

// listen tries to bind an address listenTries times, with pauses, because the wire process of an earlier daemon may still use it.
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
	defer l.Close() // l has a duplicate of the descriptor of f
	return l.Addr().String(), nil
}

// listen returns a listening socket on addr. setting is the name of the setting with this address, for errors. The engine does
// not accept connections on the socket.
func listen(setting, addr string) (*os.File, error) {
	l, err := reach.Listen(setting, addr)
	for try := 1; errors.Is(err, unix.EADDRINUSE) && try < listenTries; try++ {
		time.Sleep(listenPause)
		l, err = reach.Listen(setting, addr)
	}
	if err != nil {
		return nil, err
	}
	defer l.Close() // File returns a duplicate of the descriptor, which stays open
	return l.(*net.TCPListener).File()
}
