package service

import (
	"fmt"
	"sync"
)

// logSize is the number of bytes that are kept of the end of a service's output.
const logSize = 256 << 10

// A ring keeps the last logSize bytes that were written to it. Readers can wait for more.
type ring struct {
	mu      sync.Mutex    // guards the fields below
	buf     []byte        // the end of the output, at most twice logSize; guarded by mu
	end     int64         // number of bytes written so far; guarded by mu
	changed chan struct{} // closed at the next write; guarded by mu
}

// newRing returns a ring to which nothing was written.
func newRing() *ring { return &ring{changed: make(chan struct{})} }

// Write appends b to the output. It never fails.
func (r *ring) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.buf)+len(b) > 2*logSize {
		r.buf = append(r.buf[:0], r.buf[max(0, len(r.buf)-logSize):]...)
	}
	r.buf = append(r.buf, b[max(0, len(b)-logSize):]...)
	r.end += int64(len(b))
	close(r.changed)
	r.changed = make(chan struct{})
	return len(b), nil
}

// read returns at most limit bytes of the output from position at on, and the position after them. If the output at that position
// is no longer kept, b begins with a line that says how much is missing. changed is closed when more output is written.
func (r *ring) read(at int64, limit int) (b []byte, next int64, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.buf[max(0, len(r.buf)-logSize):]
	if oldest := r.end - int64(len(kept)); at < oldest {
		b = fmt.Appendf(b, "[caisson: %d bytes of output are not kept]\n", oldest-at)
		at = oldest
	}
	part := kept[at-(r.end-int64(len(kept))):]
	part = part[:min(len(part), limit)]
	return append(b, part...), at + int64(len(part)), r.changed
}
