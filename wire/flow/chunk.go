package flow

import "sync"

// How much is carried at a time. A flow holds a chunk in each direction only while there is something to carry, but a sandbox
// or a destination that does not read keeps it at that; so that only wide flows have large ones.
const (
	narrowChunk = 16 << 10
	wideChunk   = 256 << 10 // a few of the wire's largest packets
)

// The pools are shared by all forwarders.
var (
	narrowChunks   = newChunks(narrowChunk)
	datagramChunks = newChunks(maxDatagram)
	wideChunks     = newChunks(wideChunk)
)

// Chunks is a pool of buffers of one size.
type chunks struct{ pool sync.Pool }

func newChunks(size int) *chunks {
	return &chunks{sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}}
}

func (c *chunks) get() *[]byte { return c.pool.Get().(*[]byte) }

// put gives a chunk back; nil is none.
func (c *chunks) put(b *[]byte) {
	if b != nil {
		c.pool.Put(b)
	}
}

// chunks are what the flow carries its bytes in.
func (c *flow) chunks() *chunks {
	if c.wide {
		return wideChunks
	}
	return narrowChunks
}
