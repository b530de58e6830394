package fake

import (
	"context"
	"io"
	"sync"
	"syscall"
)

// pipeSize is the capacity of a pipe in bytes, the same as on Linux, so that programs block at the same points.
const pipeSize = 64 << 10

// A pipe is a bounded byte stream with one reader and counted writers. Reads return io.EOF after the last writer has called
// release; writes fail with EPIPE after the reader has called closeRead.
type pipe struct {
	mu           sync.Mutex // guards all other fields
	changed      *sync.Cond // signals a change of a field, or that the context of a call was cancelled
	buf          []byte     // at most pipeSize bytes that have not been read
	writers      int        // number of writers that have not called release
	eof          bool       // makes one read return io.EOF although there are writers, for ^D at a terminal
	readerClosed bool       // the reader has called closeRead
}

// newPipe returns a pipe with one writer.
func newPipe() *pipe {
	p := &pipe{writers: 1}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// addWriter increments the number of writers.
func (p *pipe) addWriter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writers++
}

// release decrements the number of writers. After the last one, reads return io.EOF.
func (p *pipe) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writers--
	p.changed.Broadcast()
}

// closeRead closes the reading end and discards the buffer.
func (p *pipe) closeRead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readerClosed, p.buf = true, nil
	p.changed.Broadcast()
}

// sendEOF makes one Read return io.EOF once everything written so far has been read.
func (p *pipe) sendEOF() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eof = true
	p.changed.Broadcast()
}

// wakeOnCancel makes blocked calls check their context again when ctx is cancelled.
func (p *pipe) wakeOnCancel(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})
}

// read reads up to len(b) bytes. It blocks until there are some, the pipe has ended, or ctx is cancelled.
func (p *pipe) read(ctx context.Context, b []byte) (int, error) {
	defer p.wakeOnCancel(ctx)()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) == 0 {
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case p.eof:
			p.eof = false
			return 0, io.EOF
		case p.writers == 0 || p.readerClosed:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		}
		p.changed.Wait()
	}
	n := copy(b, p.buf)
	p.buf = p.buf[n:]
	p.changed.Broadcast()
	return n, nil
}

// write writes all of b. It blocks while the pipe is full, until ctx is cancelled.
func (p *pipe) write(ctx context.Context, b []byte) (n int, err error) {
	defer p.wakeOnCancel(ctx)()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		switch free := pipeSize - len(p.buf); {
		case ctx.Err() != nil:
			return n, ctx.Err()
		case p.readerClosed:
			return n, syscall.EPIPE
		case free > 0:
			k := min(free, len(b))
			p.buf = append(p.buf, b[:k]...)
			b, n = b[k:], n+k
			p.changed.Broadcast()
		default:
			p.changed.Wait()
		}
	}
	return n, nil
}

// A pipeWriter is the caller's end of a process's standard input.
type pipeWriter struct {
	pipe *pipe
	once sync.Once // makes only the first call of Close take effect
}

func (w *pipeWriter) Write(b []byte) (int, error) { return w.pipe.write(context.Background(), b) }

func (w *pipeWriter) Close() error {
	w.once.Do(w.pipe.release)
	return nil
}

// A pipeReader is the caller's end of a process's standard output or error.
type pipeReader struct{ pipe *pipe }

func (r pipeReader) Read(b []byte) (int, error) { return r.pipe.read(context.Background(), b) }
