package flow

import "sync"

// Sizes of the read buffers (chunks), in bytes. A flow holds a buffer in each direction only while it has data to relay, but
// a sandbox or a destination that does not read makes it keep the buffer, so only a limited number of flows, the wide ones, have
// large buffers; see [Limits].Wide.
const (
	narrowChunk = 16 << 10  // for TCP flows that are not wide
	wideChunk   = 256 << 10 // for wide flows; room for about four of the wire's largest packets
)

// Pools of read buffers, shared by all forwarders.
var (
	narrowChunks   = newBufferPool(narrowChunk) // small buffers, for the data of most TCP flows
	datagramChunks = newBufferPool(maxDatagram) // for datagrams
	wideChunks     = newBufferPool(wideChunk)   // large buffers, for the data of the few TCP flows for which flow.wide is true
)

// A bufferPool is a pool of buffers of one size.
type bufferPool struct{ pool sync.Pool }

func newBufferPool(size int) *bufferPool {
	return &bufferPool{sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}}
}

func (c *bufferPool) get() *[]byte { return c.pool.Get().(*[]byte) }

// put returns a buffer to the pool; b may be nil.
func (c *bufferPool) put(b *[]byte) {
	if b != nil {
		c.pool.Put(b)
	}
}

// chunks returns the pool from which a TCP flow takes its read buffers.
func (c *flow) chunks() *bufferPool {
	if c.wide {
		return wideChunks
	}
	return narrowChunks
}
