package baseline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// Limits of the contents that are read from a host directory in one comparison.
const (
	maxHostFile  = 1 << 30 // maximum size of one file in bytes
	maxHostBytes = 8 << 30 // maximum size of all files together in bytes
)

// State is the state of a path on the host, in a base directory or in a sandbox.
type State struct {
	fsat.Stat
	Content string // SHA-256 of a file's content in hexadecimal; "" if it is not known
	Link    string // target of a symlink
	Data    []byte // content of a file on the host of at most fsat.MaxSmallFile bytes; nil for other states
	// Unreadable is the reason why the path cannot be compared, such as a parent directory that is a symlink, or "" if it can.
	Unreadable string
}

// Absent is the State of a path that does not exist.
var Absent = State{Stat: fsat.Stat{Type: fsat.TypeNone}}

// None reports whether the path does not exist.
func (s *State) None() bool { return s.Type == fsat.TypeNone }

// Node returns s in the form that plans use.
func (s *State) Node() gate.Node {
	switch s.Type {
	case fsat.TypeNone:
		return gate.Node{}
	case fsat.TypeSymlink:
		return gate.Node{Type: s.Type, Hash: gate.HashText([]byte(s.Link)), Link: []byte(s.Link)}
	case fsat.TypeFile:
		return gate.Node{Type: s.Type, Mode: s.Mode, Hash: s.Content}
	}
	return gate.Node{Type: s.Type, Mode: s.Mode}
}

// Hash returns a hash of the type, the mode, the content and the target in s. It ignores the mode of a symlink.
func (s *State) Hash() string { return overlay.HashOf(s.Type, s.Mode, s.Content, s.Link) }

// Equal reports whether two states are equal in all properties that an apply changes. It returns false if that is unknown.
func (s *State) Equal(o *State) bool {
	if s.Type != o.Type || s.Unreadable != "" || o.Unreadable != "" {
		return false
	}
	switch s.Type {
	case fsat.TypeNone:
		return true
	case fsat.TypeFile:
		return s.Mode == o.Mode && s.Content != "" && s.Content == o.Content
	case fsat.TypeSymlink:
		return s.Link == o.Link
	case fsat.TypeDir:
		return s.Mode&fsat.Permissions == o.Mode&fsat.Permissions
	}
	return false
}

// A HostReader reads the current states of the paths of a directory. The contents that it reads are limited to maxHostBytes.
type HostReader struct {
	ctx  context.Context
	Root int   // file descriptor of the directory
	left int64 // number of bytes of contents that may still be read
	buf  []byte
}

// NewHostReader returns a HostReader for the directory with the file descriptor root.
func NewHostReader(ctx context.Context, root int) *HostReader {
	return &HostReader{ctx: ctx, Root: root, left: maxHostBytes, buf: make([]byte, 256<<10)}
}

// Look returns the current state of path without its content.
func (r *HostReader) Look(path string) (State, error) {
	if err := r.ctx.Err(); err != nil {
		return Absent, err
	}
	fd, err := fsat.Open(r.Root, path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	switch {
	case err == unix.ENOENT || err == unix.ENOTDIR:
		return Absent, nil
	case err == unix.ELOOP:
		return State{Stat: fsat.Stat{Type: fsat.TypeNone}, Unreadable: "a directory above it is a symlink now"}, nil
	case err == unix.EXDEV:
		return State{Stat: fsat.Stat{Type: fsat.TypeNone}, Unreadable: "another file system is mounted above it now"}, nil
	case err != nil && fsat.Inaccessible(err):
		return State{Stat: fsat.Stat{Type: fsat.TypeNone}, Unreadable: "its owner cannot look at it"}, nil
	case err != nil:
		return Absent, fmt.Errorf("look at %s: %w", safetext.Path(path), err)
	}
	defer unix.Close(fd)
	st, err := fsat.Lstat(fd, "")
	if err != nil {
		return Absent, fmt.Errorf("look at %s: %w", safetext.Path(path), err)
	}
	s := State{Stat: st}
	if st.Type == fsat.TypeSymlink {
		buf := make([]byte, fsat.MaxPathLen+1)
		n, err := unix.Readlinkat(fd, "", buf)
		if err != nil {
			return Absent, fmt.Errorf("read the link %s: %w", safetext.Path(path), err)
		}
		s.Link = string(buf[:n])
	}
	return s, nil
}

// State returns the current state of path with its content.
func (r *HostReader) State(path string) (State, error) {
	s, err := r.Look(path)
	if err != nil || s.Type != fsat.TypeFile {
		return s, err
	}
	return s, r.AddContent(path, &s)
}

// AddContent reads the file at path and sets the content in its state s, or sets s.Unreadable if the content cannot be read or
// is too large.
func (r *HostReader) AddContent(path string, s *State) error {
	if s.Size > maxHostFile || s.Size > r.left {
		s.Unreadable = "it is too large to be compared"
		return nil
	}
	r.left -= s.Size
	if s.Size <= fsat.MaxSmallFile {
		data, err := fsat.ReadContent(r.ctx, r.Root, path, &s.Stat, fsat.MaxSmallFile)
		if err != nil {
			return r.SetUnreadable(path, s, err)
		}
		s.Data, s.Content = data, gate.HashText(data)
		return nil
	}
	fd, err := fsat.OpenContent(r.Root, path)
	if err != nil {
		return r.SetUnreadable(path, s, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, io.LimitReader(file, s.Size+1), r.buf)
	if err != nil {
		return r.SetUnreadable(path, s, err)
	}
	after, err := fsat.Lstat(fd, "")
	if err != nil {
		return err
	}
	if n != s.Size || !after.Same(&s.Stat) {
		return r.SetUnreadable(path, s, fsat.ErrChanged)
	}
	s.Content = hex.EncodeToString(h.Sum(nil))
	return nil
}

// SetUnreadable sets s.Unreadable if err, of reading path, is caused by the path's permissions or a concurrent change. It
// returns all other errors.
func (r *HostReader) SetUnreadable(path string, s *State, err error) error {
	switch {
	case r.ctx.Err() != nil:
		return r.ctx.Err()
	case errors.Is(err, fsat.ErrChanged):
		s.Unreadable = "it is changing at the moment"
	case fsat.UnlessConcurrent(err) == nil:
		s.Unreadable = "its owner cannot read it"
	default:
		return fmt.Errorf("read %s: %w", safetext.Path(path), err)
	}
	return nil
}

// Names returns the names in the directory at path. It returns an error if there are more than limit.
func (r *HostReader) Names(path string, limit int) ([]string, error) {
	fd, err := fsat.OpenDir(r.Root, path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return fsat.ReadNames(fd, limit)
}
