package httpapi

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// silenceTimeout is how long an output may be silent after the process has exited. After that time the output is not read any
// further, although it has not ended: a background process that the process has started may keep the stream open for ever.
const silenceTimeout = 300 * time.Millisecond

// Limits of the output after the process has exited, for background processes that are not silent. When one of them is exceeded,
// the output is not read any further. The pipe may still contain up to 64 KiB of output of the process itself, so that
// maxOutputAfterExit must be higher than 64 KiB.
const (
	maxOutputAfterExit = 1 << 20         // maximum number of bytes that are read after the exit
	maxWaitAfterExit   = 5 * time.Second // maximum time spent waiting for output after the exit
)

// bufferPool contains *pumpBuffers for reuse: allocating them for each exec would be most of the memory that an exec needs in
// the daemon.
var bufferPool = sync.Pool{New: func() any { return new(pumpBuffers) }}

// pumpBuffers are the two buffers of one call of pump.
type pumpBuffers [2][protocol.MaxData]byte

// pump passes the data of r to sink, until r ends, sink fails, or, after exited was closed, r has been silent for silenceTimeout
// or has exceeded maxOutputAfterExit or maxWaitAfterExit. The time that sink takes does not count as silence. If pump returns
// before r has ended, a read of r is still in progress: the caller must close the process, which ends the read, and then wait for
// readers.
func pump(r io.Reader, exited <-chan struct{}, readers *sync.WaitGroup, sink func([]byte) error) error {
	chunks, quit := make(chan []byte), make(chan struct{})
	var readErr error                       // error of r other than io.EOF; valid once chunks is closed
	bufs := bufferPool.Get().(*pumpBuffers) // used alternately: r is read into one buffer while the other one is being sent
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
	ended, left, waited := exited, maxOutputAfterExit, time.Duration(0)
	for {
		var since time.Time
		if ended == nil {
			since = time.Now()
			silence = time.After(silenceTimeout)
		}
		select {
		case chunk, ok := <-chunks:
			if !ok {
				bufferPool.Put(bufs) // the buffers are not reused in other cases, in which a read may still be in progress
				return readErr
			}
			if ended == nil {
				waited += time.Since(since)
				if left -= len(chunk); left < 0 || waited > maxWaitAfterExit {
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

// limitedBuffer keeps the first limit bytes that are written to it.
type limitedBuffer struct {
	kept  []byte // the first bytes that were written
	limit int    // maximum number of bytes to keep
	size  int64  // number of bytes written, including those that were not kept
}

func (c *limitedBuffer) write(b []byte) error {
	c.size += int64(len(b))
	c.kept = append(c.kept, b[:min(len(b), c.limit-len(c.kept))]...)
	return nil
}

// collectOutput waits for p to exit and collects at most limit bytes of each of its outputs. It reads and discards the rest, so
// that the process never blocks. If ctx ends, the process is killed.
func collectOutput(ctx context.Context, p caisson.Process, input []byte, limit int) (*protocol.ProcessResult, error) {
	outs := [2]*limitedBuffer{{limit: limit}, {limit: limit}}
	var pumps, readers sync.WaitGroup
	exited := make(chan struct{})
	for i, r := range []io.Reader{p.Stdout(), p.Stderr()} {
		pumps.Go(func() { pump(r, exited, &readers, outs[i].write) }) // a read error counts as the end of the output
	}
	if in := p.Stdin(); in != nil {
		readers.Go(func() {
			in.Write(input) // an error is ignored: a process may exit or close its input without reading all of it
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
