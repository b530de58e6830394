package coder

import (
	"fmt"
	"sync"
)

// outputBuffer is a writer that keeps the beginning and the end of a command's output. It is safe for concurrent use.
type outputBuffer struct {
	mu    sync.Mutex // guards the fields below
	head  []byte     // the first bytes written; full when its length is its capacity
	tail  []byte     // the last bytes written; a ring buffer once its length is its capacity
	next  int        // write position in the ring buffer tail
	total int64      // number of bytes written, including those that are not kept
}

// newOutputBuffer returns a buffer that keeps the first head bytes and the last tail bytes.
func newOutputBuffer(head, tail int) *outputBuffer {
	return &outputBuffer{head: make([]byte, 0, head), tail: make([]byte, 0, tail)}
}

// Write implements [io.Writer].
func (c *outputBuffer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	c.total += int64(n)
	room := min(cap(c.head)-len(c.head), len(p))
	c.head, p = append(c.head, p[:room]...), p[room:]
	if len(p) > cap(c.tail) {
		p = p[len(p)-cap(c.tail):]
	}
	room = min(cap(c.tail)-len(c.tail), len(p))
	c.tail, p = append(c.tail, p[:room]...), p[room:]
	for len(p) > 0 {
		k := copy(c.tail[c.next:], p)
		c.next, p = (c.next+k)%len(c.tail), p[k:]
	}
	return n, nil
}

// String returns the data that is kept, with a note of how much is missing.
func (c *outputBuffer) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	tail := string(c.tail[c.next:]) + string(c.tail[:c.next])
	if left := c.total - int64(len(c.head)) - int64(len(tail)); left > 0 {
		return fmt.Sprintf("%s\n[%d bytes left out]\n%s", c.head, left, tail)
	}
	return string(c.head) + tail
}
