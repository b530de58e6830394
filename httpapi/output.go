package httpapi

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// linger is how long an output may be silent after the process has ended before it is given up: a program that it left in
// the background may hold the stream for ever.
const linger = 300 * time.Millisecond

// What such a program may still say, in bytes and in time spent waiting for it, before it is given up although it is not
// silent. What the process itself had written is in a pipe of 64 KiB.
const (
	afterExit     = 1 << 20
	afterExitTime = 5 * time.Second
)

// buffers are kept from one exec to the next: making them for each is most of what an exec costs the daemon's memory.
var buffers = sync.Pool{New: func() any { return new(pumpBuffers) }}

type pumpBuffers [2][protocol.MaxData]byte

// pump hands what r yields to sink, until r ends, sink fails, or r has been silent for linger after exited was closed.
// While sink is at work the silence does not count. In the last case a read of r is still under way: the caller
// closes the process, which ends it, and then waits on readers.
func pump(r io.Reader, exited <-chan struct{}, readers *sync.WaitGroup, sink func([]byte) error) error {
	chunks, quit := make(chan []byte), make(chan struct{})
	var readErr error                    // read after chunks is closed
	bufs := buffers.Get().(*pumpBuffers) // in turn: one is read into while the other is being sent
	readers.Go(func() {
		defer close(chunks)
		for i := 0; ; i = 1 - i {
			n, err := r.Read(bufs[i][:])
			if n > 0 {
				select {
				case chunks <- bufs[i][:n]:
				case <-quit:
					return
				}
			}
			if err != nil {
				if err != io.EOF {
					readErr = err
				}
				return
			}
		}
	})
	defer close(quit)
	var silence <-chan time.Time
	ended, left, waited := exited, afterExit, time.Duration(0)
	for {
		var since time.Time
		if ended == nil {
			since = time.Now()
			silence = time.After(linger)
		}
		select {
		case chunk, ok := <-chunks:
			if !ok {
				buffers.Put(bufs) // in all other cases a read may still be under way
				return readErr
			}
			if ended == nil {
				waited += time.Since(since)
				if left -= len(chunk); left < 0 || waited > afterExitTime {
					return nil
				}
			}
			if err := sink(chunk); err != nil {
				return err
			}
		case <-ended:
			ended = nil
		case <-silence:
			return nil
		}
	}
}

// capped keeps the beginning of what is written to it.
type capped struct {
	kept  []byte
	limit int
	size  int64
}

func (c *capped) write(b []byte) error {
	c.size += int64(len(b))
	c.kept = append(c.kept, b[:min(len(b), c.limit-len(c.kept))]...)
	return nil
}

// run waits for p to end and collects at most limit bytes of each of its outputs. What is more is read and dropped, so
// that the process never waits. If ctx ends, the process is killed.
func run(ctx context.Context, p caisson.Process, input []byte, limit int) (*protocol.ProcessResult, error) {
	outs := [2]*capped{{limit: limit}, {limit: limit}}
	var pumps, readers sync.WaitGroup
	exited := make(chan struct{})
	for i, r := range []io.Reader{p.Stdout(), p.Stderr()} {
		pumps.Go(func() { pump(r, exited, &readers, outs[i].write) }) // a broken stream is an ended one
	}
	if in := p.Stdin(); in != nil {
		readers.Go(func() {
			in.Write(input) // a process need not read its input
			in.Close()
		})
	}
	status, err := p.Wait(ctx)
	if err != nil {
		p.Close()
	}
	close(exited)
	pumps.Wait()
	p.Close()
	readers.Wait()
	if err != nil {
		return nil, err
	}
	return &protocol.ProcessResult{
		PID:    p.PID(),
		Exit:   &status,
		Stdout: protocol.NewOutput(outs[0].kept, outs[0].size),
		Stderr: protocol.NewOutput(outs[1].kept, outs[1].size),
	}, nil
}
