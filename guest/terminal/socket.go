package terminal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/frame"
)

// Dir is the directory in a sandbox that contains the sockets of its terminals, each named by the id of its terminal. Only root
// in the sandbox can connect to them.
const Dir = "/dev/.caisson/terminals"

// Socket returns the path of a terminal's socket in a sandbox.
func Socket(id caisson.ID) string { return Dir + "/" + string(id) }

// Sockets is the path of a directory with sockets of terminals, usually [Dir].
type Sockets string

// path calls f with a path of the file called name in the directory d. The path is short enough for the address of a unix socket,
// and must not be used after f has returned.
func (d Sockets) path(name string, f func(path string) error) error {
	path := filepath.Join(string(d), name)
	if len(path) <= 100 {
		return f(path)
	}
	dir, err := os.Open(string(d))
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name))
}

// Listen creates the socket of a terminal and listens on it. Returns Exhausted if there are [caisson.MaxTerminals] terminals.
// Closing the listener removes the socket.
func (d Sockets) Listen(id caisson.ID) (_ Listener, err error) {
	if err := os.MkdirAll(filepath.Dir(string(d)), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(string(d), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	ids, err := d.list()
	if err != nil {
		return nil, err
	}
	if len(ids) >= caisson.MaxTerminals {
		ids = slices.DeleteFunc(ids, func(id caisson.ID) bool {
			_, err := d.ask(id, kindInfo)
			return err != nil
		})
	}
	if len(ids) >= caisson.MaxTerminals {
		return nil, caisson.Errorf(caisson.Exhausted, "the sandbox has %d terminals already; remove one", caisson.MaxTerminals)
	}
	l := &listener{name: filepath.Join(string(d), string(id))}
	err = d.path(string(id), func(path string) (err error) {
		l.socket, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, err
	}
	l.socket.SetUnlinkOnClose(false) // the path in /proc is not valid any more when the listener is closed
	return l, nil
}

// A listener implements [Listener] with a unix socket.
type listener struct {
	socket *net.UnixListener // the listening socket
	name   string            // path of the socket
}

// Accept implements [Listener]. It ignores ctx; Close ends the call.
func (l *listener) Accept(context.Context) (*os.File, error) {
	conn, err := l.socket.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer conn.Close() // the returned file has a duplicate of the descriptor
	return conn.File()
}

// Close implements [Listener]: it removes the socket and closes it.
func (l *listener) Close() error { return errors.Join(os.Remove(l.name), l.socket.Close()) }

// list returns the ids of the terminals that have a socket. A terminal in the list may be gone.
func (d Sockets) list() (ids []caisson.ID, err error) {
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if id, err := caisson.ParseID(caisson.TerminalPrefix, e.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// connect connects to the socket of a terminal. If the terminal is gone, it removes the socket and returns an error.
func (d Sockets) connect(id caisson.ID) (conn net.Conn, err error) {
	err = d.path(string(id), func(path string) (err error) {
		conn, err = net.Dial("unix", path)
		return err
	})
	if errors.Is(err, unix.ECONNREFUSED) {
		os.Remove(filepath.Join(string(d), string(id)))
	}
	return conn, err
}

// ask connects to a terminal, sends a frame of this kind without payload, and returns the info frame that the terminal answers.
func (d Sockets) ask(id caisson.ID, kind byte) (t caisson.Terminal, err error) {
	conn, err := d.connect(id)
	if err != nil {
		return t, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(helloTimeout))
	if _, err := conn.Write(frame.Append(nil, kind, nil)); err != nil {
		return t, err
	}
	got, payload, err := frame.Read(conn, serverLimits)
	if err == nil && got != kindInfo {
		err = frame.ErrProtocol
	}
	if err != nil {
		return t, err
	}
	return parseInfo(payload)
}

// List returns information about the terminals with a socket in the directory, oldest first.
func (d Sockets) List() (list []caisson.Terminal, err error) {
	ids, err := d.list()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if t, err := d.ask(id, kindInfo); err == nil && t.ID == id { // otherwise the terminal is gone, or another one has the socket
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b caisson.Terminal) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// Remove kills the program of a terminal, which then ends. Returns NotFound if there is no such terminal.
func (d Sockets) Remove(id caisson.ID) error {
	_, err := d.ask(id, kindKill)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return caisson.Errorf(caisson.NotFound, "there is no terminal %s", id)
	}
	return err
}
