package gate

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
)

// Bounds of what is read of a host directory in one comparison.
const (
	maxHostFile  = 1 << 30
	maxHostBytes = 8 << 30
)

// state is what is at a path: on the host, in the base, or in the sandbox.
type state struct {
	stat
	content string // sha256 of a file; "" if it is not known
	link    string
	data    []byte // of a small file on the host; else nil
	// odd says why the path cannot be compared with anything: it is behind a symlink, or unreadable. Empty for most.
	odd string
}

var nothing = state{stat: stat{typ: typeNone}}

func (s *state) none() bool { return s.typ == typeNone }

// node is s as a plan has it.
func (s *state) node() Node {
	switch s.typ {
	case typeNone:
		return Node{}
	case typeSymlink:
		return Node{Type: s.typ, Hash: HashText([]byte(s.link)), Link: []byte(s.link)}
	case typeFile:
		return Node{Type: s.typ, Mode: s.mode, Hash: s.content}
	}
	return Node{Type: s.typ, Mode: s.mode}
}

// hash is the [HashOf] s.
func (s *state) hash() string { return HashOf(s.typ, s.mode, s.content, s.link) }

// equal reports whether two states are known to be the same in all that is applied.
func (s *state) equal(o *state) bool {
	if s.typ != o.typ || s.odd != "" || o.odd != "" {
		return false
	}
	switch s.typ {
	case typeNone:
		return true
	case typeFile:
		return s.mode == o.mode && s.content != "" && s.content == o.content
	case typeSymlink:
		return s.link == o.link
	case typeDir:
		return s.mode&permissions == o.mode&permissions
	}
	return false
}

// hostReader looks at a directory as it is now.
type hostReader struct {
	ctx  context.Context
	root int
	left int64
	buf  []byte
}

func newHostReader(ctx context.Context, root int) *hostReader {
	return &hostReader{ctx: ctx, root: root, left: maxHostBytes, buf: make([]byte, 256<<10)}
}

// look returns what is at path, without its content.
func (r *hostReader) look(path string) (state, error) {
	if err := r.ctx.Err(); err != nil {
		return nothing, err
	}
	fd, err := openUnder(r.root, path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	switch {
	case err == unix.ENOENT || err == unix.ENOTDIR:
		return nothing, nil
	case err == unix.ELOOP:
		return state{stat: stat{typ: typeNone}, odd: "a directory above it is a symlink now"}, nil
	case err == unix.EXDEV:
		return state{stat: stat{typ: typeNone}, odd: "another file system is mounted above it now"}, nil
	case err != nil && shut(err):
		return state{stat: stat{typ: typeNone}, odd: "its owner cannot look at it"}, nil
	case err != nil:
		return nothing, fmt.Errorf("look at %s: %w", safetext.Path(path), err)
	}
	defer unix.Close(fd)
	st, err := lookAt(fd, "")
	if err != nil {
		return nothing, fmt.Errorf("look at %s: %w", safetext.Path(path), err)
	}
	s := state{stat: st}
	if st.typ == typeSymlink {
		buf := make([]byte, maxPathLen+1)
		n, err := unix.Readlinkat(fd, "", buf)
		if err != nil {
			return nothing, fmt.Errorf("read the link %s: %w", safetext.Path(path), err)
		}
		s.link = string(buf[:n])
	}
	return s, nil
}

// state returns what is at path, with its content.
func (r *hostReader) state(path string) (state, error) {
	s, err := r.look(path)
	if err != nil || s.typ != typeFile {
		return s, err
	}
	return s, r.fill(path, &s)
}

// fill adds the content of the file at path, which looks like s.
func (r *hostReader) fill(path string, s *state) error {
	if s.size > maxHostFile || s.size > r.left {
		s.odd = "it is too large to be compared"
		return nil
	}
	r.left -= s.size
	if s.size <= smallFile {
		data, err := readContent(r.ctx, r.root, path, &s.stat, smallFile)
		if err != nil {
			return r.explain(path, s, err)
		}
		s.data, s.content = data, HashText(data)
		return nil
	}
	fd, err := openContent(r.root, path)
	if err != nil {
		return r.explain(path, s, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, io.LimitReader(file, s.size+1), r.buf)
	if err != nil {
		return r.explain(path, s, err)
	}
	after, err := lookAt(fd, "")
	if err != nil {
		return err
	}
	if n != s.size || !after.same(&s.stat) {
		return r.explain(path, s, errChanged)
	}
	s.content = hex.EncodeToString(h.Sum(nil))
	return nil
}

// explain makes of an error in reading what it says of the path.
func (r *hostReader) explain(path string, s *state, err error) error {
	switch {
	case r.ctx.Err() != nil:
		return r.ctx.Err()
	case errors.Is(err, errChanged):
		s.odd = "it is changing at the moment"
	case unexpected(err) == nil:
		s.odd = "its owner cannot read it"
	default:
		return fmt.Errorf("read %s: %w", safetext.Path(path), err)
	}
	return nil
}

// names returns the names in the directory at path; more than limit are an error.
func (r *hostReader) names(path string, limit int) ([]string, error) {
	fd, err := openDir(r.root, path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return readNames(fd, limit)
}
