package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	caisson "github.com/caisson-dev/caisson"
)

// Limits on open streams. The wire process counts a stream from its request until it is closed, the engine until the job at its
// other end has exited, which is slightly later.
const (
	maxStreams    = 8   // of one sandbox
	maxAllStreams = 256 // of all sandboxes
)

// maxStreamBody bounds the body of a request for a stream, in bytes.
const maxStreamBody = 4 << 10

// A streamBody is a guest's request for a stream.
type streamBody struct {
	In json.RawMessage `json:"in,omitempty"` // content of the request, for Handlers.Stream
}

func newStreamLimiter() *limiter { return newLimiter(maxStreams, maxAllStreams) }

// A stream is the wire process's end of a stream that the engine has opened.
type stream struct {
	*net.UnixConn
	once sync.Once // makes Close act only once
	done func()    // ends the count of the stream in the wire process's limiter
}

// Close closes the stream, which the wire process then no longer counts as open. Further calls return net.ErrClosed.
func (s *stream) Close() error {
	err := net.ErrClosed
	s.once.Do(func() {
		err = s.UnixConn.Close()
		s.done()
	})
	return err
}

// A wireStream is a stream for a request that came over a wire. It is closed when the context of the request ends.
type wireStream struct {
	*stream
	release func() // removes the stream from the wire and restores the buffers of the request's connection
}

// Close removes the stream from its wire, and closes it.
func (s *wireStream) Close() error {
	s.release()
	return s.stream.Close()
}

// requestStream makes the engine open a stream for a request that came over a wire. It is used in the wire process.
func (f *feed) requestStream(ctx context.Context, slots *limiter, in json.RawMessage) (net.Conn, error) {
	w := requestWire(ctx)
	if w == nil {
		return nil, caisson.Errorf(caisson.Denied, "this is for sandboxes on this machine only")
	}
	c, err := f.stream(ctx, slots, in)
	if err != nil {
		return nil, err
	}
	if !w.addStream(c) {
		c.Close()
		return nil, caisson.Errorf(caisson.Unavailable, "the sandbox's wire is being detached")
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	guest := requestConn(ctx)
	guest.widen(true)                            // gives the connection large buffers, whose memory the limits on streams bound
	return &wireStream{c, sync.OnceFunc(func() { // runs at the first Close only: guest may serve another request afterwards
		stop()
		guest.widen(false)
		w.removeStream(c)
	})}, nil
}

// stream makes the engine open a stream for the guest in ctx. If ctx ends before the engine has answered, the request counts as a
// stream until it has.
func (f *feed) stream(ctx context.Context, slots *limiter, in json.RawMessage) (*stream, error) {
	g, err := caisson.GuestOf(ctx)
	if err != nil {
		return nil, err
	}
	if len(in) > maxStreamBody {
		return nil, caisson.Errorf(caisson.Invalid, "the request has more than %s", caisson.Size(maxStreamBody))
	}
	m := feedMessage{Sandbox: g.Sandbox, Trace: g.Trace, Stream: &streamBody{in}}
	a, err := f.countedCall(ctx, slots, g.Sandbox, m, "too many streams at once; wait for one to end")
	if err != nil {
		return nil, err
	}
	c, err := a.conn()
	u, ok := c.(*net.UnixConn)
	if err == nil && !ok {
		c.Close()
		err = noAnswer(errors.New("the engine's stream is not a unix socket"))
	}
	if err != nil {
		slots.release(g.Sandbox)
		return nil, err
	}
	return &stream{UnixConn: u, done: func() { slots.release(g.Sandbox) }}, nil
}

// conn returns a connection for the descriptor that came with an answer, and closes the descriptor.
func (a *feedAnswer) conn() (net.Conn, error) {
	defer a.close()
	c, err := net.Conn(nil), errNoDescriptors
	if a.file != nil {
		c, err = net.FileConn(a.file)
	}
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Exhausted, "the sandboxes of this host have too many connections; try again")
	}
	return c, nil
}

// close closes the attached descriptor, if any.
func (a *feedAnswer) close() {
	if a.file != nil {
		a.file.Close()
		a.file = nil
	}
}

// receiveFile reads a packet with at most one descriptor; file is nil if none was sent, or if this process had no free one. It
// closes additional descriptors and returns an error, because then the two ends are out of step.
func receiveFile(conn *net.UnixConn, buf []byte) (n int, file *os.File, err error) {
	oob := make([]byte, unix.CmsgSpace(2*4)) // room for two descriptors: because of alignment it has the size of room for one
	n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return 0, nil, err
	}
	var files []*os.File
	if oobn > 0 {
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return 0, nil, fmt.Errorf("%w: control data", errMessage)
		}
		for _, m := range msgs {
			fds, err := unix.ParseUnixRights(&m)
			if err != nil {
				continue // the message carries no descriptors, so there is nothing to close
			}
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "stream"))
			}
		}
	}
	if len(files) > 1 || flags&unix.MSG_TRUNC != 0 {
		closeAll(files...)
		return 0, nil, fmt.Errorf("%w: descriptors or size", errMessage)
	}
	if len(files) == 1 {
		return n, files[0], nil
	}
	return n, nil, nil
}

// addStream records a stream, so that it is closed with the wire. It returns false if the wire is being removed.
func (w *sandboxWire) addStream(s *stream) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return false
	}
	if w.streams == nil {
		w.streams = map[*stream]struct{}{}
	}
	w.streams[s] = struct{}{}
	return true
}

func (w *sandboxWire) removeStream(s *stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.streams, s)
}

// closeStreams closes all streams of the wire.
func (w *sandboxWire) closeStreams() {
	w.mu.Lock()
	list := w.streams
	w.streams = nil
	w.mu.Unlock()
	for s := range list {
		s.Close()
	}
}
