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

// Dir is the directory of the terminals' sockets in a sandbox. A socket's name is the terminal's id. Only the sandbox's root may use
// them.
const Dir = "/dev/.caisson/terminals"

// Socket returns the path of a terminal's socket in a sandbox.
func Socket(id caisson.ID) string { return Dir + "/" + string(id) }

// A Sockets is a directory of sockets, usually [Dir].
type Sockets string

// path calls f with a path of the file name that is short enough for a socket's address.
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

// Listen creates the socket of a terminal. Returns Exhausted if there are [caisson.MaxTerminals]. Closing the listener removes the
// socket.
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
	l.socket.SetUnlinkOnClose(false) // path may be gone by then
	return l, nil
}

// A listener listens at a unix socket.
type listener struct {
	socket *net.UnixListener
	name   string // path of the socket
}

// Accept implements [Listener]. ctx is not used: Close ends the call.
func (l *listener) Accept(context.Context) (*os.File, error) {
	conn, err := l.socket.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer conn.Close() // the file is a duplicate
	return conn.File()
}

// Close implements [Listener].
func (l *listener) Close() error { return errors.Join(os.Remove(l.name), l.socket.Close()) }

// list returns the ids of the existing sockets.
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

// connect connects to a terminal. The socket of a terminal that is gone is removed.
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

// ask connects to a terminal, sends a frame of this kind and returns the answer.
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

// List lists the terminals, oldest first.
func (d Sockets) List() (list []caisson.Terminal, err error) {
	ids, err := d.list()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if t, err := d.ask(id, kindInfo); err == nil && t.ID == id { // otherwise the terminal is gone, or it is another socket
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b caisson.Terminal) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// Remove kills the program of a terminal. NotFound if there is no such terminal.
func (d Sockets) Remove(id caisson.ID) error {
	_, err := d.ask(id, kindKill)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return caisson.Errorf(caisson.NotFound, "there is no terminal %s", id)
	}
	return err
}
