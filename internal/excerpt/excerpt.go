// Package excerpt keeps the beginning or the end of a process's output, for messages about failures.
package excerpt

import (
	"io"
	"slices"
	"strings"
	"sync"
)

// A Head keeps the first Limit bytes that are written to it, which contain the reason when a Go program crashes. It is safe for
// concurrent use.
type Head struct {
	Limit int // number of bytes that are kept

	mu  sync.Mutex
	buf []byte // the bytes that are kept; guarded by mu
}

// Write implements [io.Writer]. It never fails.
func (h *Head) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf = append(h.buf, b[:min(len(b), h.Limit-len(h.buf))]...)
	return len(b), nil
}

// String returns the bytes that were kept.
func (h *Head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.buf)
}

// A Tail keeps the last Limit bytes that are written to it: most programs report the reason of a failure at the end. It is safe
// for concurrent use.
type Tail struct {
	Limit int // number of bytes that are kept

	mu  sync.Mutex
	buf []byte // the last bytes written, at most twice Limit; guarded by mu
}

// Write implements [io.Writer]. It never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b[max(0, len(b)-t.Limit):]...)
	if len(t.buf) > 2*t.Limit {
		t.buf = slices.Clone(t.buf[len(t.buf)-t.Limit:])
	}
	return len(b), nil
}

// String returns the bytes that were kept.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf[max(0, len(t.buf)-t.Limit):])
}

// ReadTail reads r to its end, of any length, and returns the last n bytes. Bytes that are not UTF-8 are replaced by U+FFFD.
func ReadTail(r io.Reader, n int) string {
	t := Tail{Limit: n}
	io.Copy(&t, r) // after an error of r, what was read before it is returned
	return strings.ToValidUTF8(t.String(), "\uFFFD")
}
