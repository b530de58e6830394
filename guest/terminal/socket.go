package terminal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

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

// Listen creates the socket of a terminal. Returns Exhausted if there are [caisson.MaxTerminals]. The socket is removed when the
// listener is closed with the function that is returned.
func (d Sockets) Listen(id caisson.ID) (ln net.Listener, remove func(), err error) {
	if err := os.MkdirAll(filepath.Dir(string(d)), 0o755); err != nil {
		return nil, nil, err
	}
	if err := os.Mkdir(string(d), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, nil, err
	}
	ids, err := d.list()
	if err != nil {
		return nil, nil, err
	}
	if len(ids) >= caisson.MaxTerminals {
		ids = slices.DeleteFunc(ids, func(id caisson.ID) bool {
			_, _, err := d.ask(id, kindInfo)
			return err != nil
		})
	}
	if len(ids) >= caisson.MaxTerminals {
		return nil, nil, caisson.Errorf(caisson.Exhausted, "the sandbox has %d terminals already; remove one", caisson.MaxTerminals)
	}
	err = d.path(string(id), func(path string) (err error) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false) // path may be valid only now
		ln = l
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return ln, func() { os.Remove(filepath.Join(string(d), string(id))) }, nil
}

// list returns the ids of the sockets that are there.
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

// ask connects to a terminal, sends a frame of this kind and returns the answer. The socket of a terminal that is gone is removed.
func (d Sockets) ask(id caisson.ID, kind byte) (t caisson.Terminal, info []byte, err error) {
	err = d.path(string(id), func(path string) error {
		conn, err := net.DialTimeout("unix", path, helloTimeout)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(helloTimeout))
		if _, err := conn.Write(frame.Append(nil, kind, nil)); err != nil {
			return err
		}
		got, payload, err := frame.Read(conn, serverLimits)
		if err == nil && got != kindInfo {
			err = frame.ErrProtocol
		}
		if err == nil {
			t, err = parseInfo(payload)
			info = payload
		}
		return err
	})
	if errors.Is(err, syscall.ECONNREFUSED) {
		os.Remove(filepath.Join(string(d), string(id)))
	}
	return t, info, err
}

// WriteList writes the list of terminals for [ParseList], oldest first.
func (d Sockets) WriteList(w io.Writer) error {
	type entry struct {
		caisson.Terminal
		info []byte
	}
	ids, err := d.list()
	if err != nil {
		return err
	}
	var list []entry
	for _, id := range ids {
		if t, info, err := d.ask(id, kindInfo); err == nil && t.ID == id { // otherwise it is gone, or none of ours
			list = append(list, entry{t, info})
		}
	}
	slices.SortFunc(list, func(a, b entry) int {
		if c := a.StartedAt.Compare(b.StartedAt); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
	for _, e := range list[:min(len(list), caisson.MaxTerminals)] {
		if _, err := w.Write(frame.Append(nil, kindInfo, e.info)); err != nil {
			return err
		}
	}
	return nil
}

// Remove kills the program of a terminal. NotFound if there is no such terminal.
func (d Sockets) Remove(id caisson.ID) error {
	_, _, err := d.ask(id, kindKill)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return caisson.Errorf(caisson.NotFound, "there is no terminal %s", id)
	}
	return err
}
