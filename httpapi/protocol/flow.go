package protocol

import (
	"context"
	"errors"
	"io"
	"sync"
)

// ErrWindow means that a peer has sent more, or granted more, than the flow-control window allows.
var ErrWindow = errors.New("window exceeded")

// Credit is the sender's side of a channel's flow control: how many bytes may still be sent. Safe for concurrent use.
type Credit struct {
	mu     sync.Mutex
	n      int           // bytes that may be sent; guarded by mu
	change chan struct{} // closed and replaced when n grows; guarded by mu
}

// NewCredit returns a credit of [WindowSize] bytes.
func NewCredit() *Credit { return &Credit{n: WindowSize, change: make(chan struct{})} }

// Take waits until at least one byte may be sent, and takes at most limit bytes. It returns the cause of ctx if ctx ends first.
func (c *Credit) Take(ctx context.Context, limit int) (int, error) {
	for {
		c.mu.Lock()
		n := min(c.n, limit)
		c.n -= n
		change := c.change
		c.mu.Unlock()
		if n > 0 || limit <= 0 {
			return n, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// Grant adds n bytes, for which the receiver has made room. It returns ErrWindow if n is not positive or the credit would exceed
// [WindowSize].
func (c *Credit) Grant(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n <= 0 || c.n+n > WindowSize {
		return ErrWindow
	}
	c.n += n
	close(c.change)
	c.change = make(chan struct{})
	return nil
}

// Queue is the receiver's side of a channel's flow control: it holds at most [WindowSize] bytes that were received and not read
// yet. One goroutine may call Push and another one Read at the same time; Close is safe for concurrent use.
type Queue struct {
	grant func(n int) // permits the peer to send n more bytes; called by Read without mu

	mu         sync.Mutex
	ready      *sync.Cond // signalled when data is added and when the queue is closed
	buf        []byte     // data that was received and not read yet; guarded by mu
	ungranted  int        // number of bytes that were read, but not granted to the peer again yet; guarded by mu
	ended      error      // error that Read returns once buf is empty; nil before Close; guarded by mu
	windowUsed int        // number of bytes of the peer's window in use, len(buf)+ungranted; guarded by mu
}

// NewQueue returns a queue that calls grant when the peer may send n bytes more.
func NewQueue(grant func(n int)) *Queue {
	q := &Queue{grant: grant}
	q.ready = sync.NewCond(&q.mu)
	return q
}

// Push adds received data. It never blocks. It returns ErrWindow if the peer exceeds its window. Data for a closed queue is
// discarded.
func (q *Queue) Push(b []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.windowUsed+len(b) > WindowSize {
		return ErrWindow
	}
	if q.ended != nil {
		return nil
	}
	q.windowUsed += len(b)
	q.buf = append(q.buf, b...)
	q.ready.Signal()
	return nil
}

// Close ends the queue: after the data that it holds, Read returns err, or io.EOF if err is nil. Later calls have no effect.
func (q *Queue) Close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended != nil {
		return
	}
	if q.ended = err; err == nil {
		q.ended = io.EOF
	}
	q.ready.Broadcast()
}

// Read implements [io.Reader].
func (q *Queue) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	q.mu.Lock()
	for len(q.buf) == 0 && q.ended == nil {
		q.ready.Wait()
	}
	if len(q.buf) == 0 {
		err := q.ended
		q.buf = nil
		q.mu.Unlock()
		return 0, err
	}
	n := copy(p, q.buf)
	q.buf = q.buf[n:]
	q.ungranted += n
	grant := 0
	// Half a window is granted at a time: few messages are sent, and the sender still has the other half.
	if q.ungranted >= WindowSize/2 && q.ended == nil {
		grant, q.ungranted = q.ungranted, 0
		q.windowUsed -= grant
	}
	q.mu.Unlock()
	if grant > 0 {
		q.grant(grant)
	}
	return n, nil
}
