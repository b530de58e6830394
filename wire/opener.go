package wire

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	caisson "github.com/caisson-dev/caisson"
)

// streamWait is how long a request for a stream waits for another stream to end: the wire process closes a stream before the
// engine learns that the job at its other end has exited.
const streamWait = 10 * time.Second

// streams limits the number of connections from sandboxes to running git jobs, for all wire processes. Safe for concurrent use.
type streams struct {
	limiter *limiter // counts the open streams

	mu    sync.Mutex
	ended chan struct{} // closed when a stream ends; guarded by mu
}

func newStreams() *streams {
	return &streams{limiter: newStreamLimiter(), ended: make(chan struct{})}
}

// acquire waits until the sandbox may have another stream. It returns Exhausted after streamWait.
func (s *streams) acquire(ctx context.Context, id caisson.ID) error {
	late := time.After(streamWait)
	for {
		s.mu.Lock()
		ended := s.ended
		s.mu.Unlock()
		if s.limiter.acquire(id) {
			return nil
		}
		select {
		case <-ended:
		case <-late:
			return caisson.Errorf(caisson.Exhausted, "too many streams at once; wait for one to end")
		case <-ctx.Done():
			return caisson.Wrap(ctx.Err(), caisson.Unavailable, "the sandbox's wire is being detached")
		}
	}
}

// release counts the end of a stream, and wakes the callers of acquire.
func (s *streams) release(id caisson.ID) {
	s.limiter.release(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ended)
	s.ended = make(chan struct{})
}

// openStream answers a request for a stream in the background. It returns false if more requests are unanswered than the wire
// process may send.
func (s *processState) openStream(ctx context.Context, conn *net.UnixConn, msg feedMessage, background func(func())) bool {
	return s.respond(conn, s.pendingStreams, msg.Sandbox, background, func() (feedAnswer, *os.File, func(), error) {
		file, cancel, err := s.stream(ctx, msg)
		if err != nil && caisson.KindOf(err) == caisson.Internal {
			s.m.log.ErrorContext(ctx, "a stream of a sandbox could not be opened", "sandbox", msg.Sandbox, "err", err)
		}
		return feedAnswer{N: msg.N, Stream: true}, file, cancel, err
	})
}

// stream opens the requested stream. The record of the wire, not the message, names the guest: a stream belongs to a sandbox and
// continues if the sandbox is assigned to another run. The returned stream counts towards the limit of streams until its job has
// exited; cancel stops the job.
func (s *processState) stream(ctx context.Context, msg feedMessage) (_ *os.File, cancel func(), err error) {
	s.m.mu.Lock()
	a := s.m.wires[msg.Sandbox]
	s.m.mu.Unlock()
	switch {
	case s.m.handlers.Stream == nil || a == nil:
		return nil, nil, caisson.Errorf(caisson.Denied, "no stream of that kind is granted to this sandbox")
	case len(msg.Stream.In) > maxStreamBody:
		return nil, nil, caisson.Errorf(caisson.Invalid, "the request has more than %s", caisson.Size(maxStreamBody))
	}
	ctx, cancel = context.WithCancel(ctx)
	stop := context.AfterFunc(a.ctx, cancel)
	release := func() { stop(); cancel() } // releases ctx
	if err := s.m.streams.acquire(ctx, msg.Sandbox); err != nil {
		release()
		return nil, nil, err
	}
	s.m.mu.Lock()
	g := a.guest // read after acquire, during which the guest may have changed
	s.m.mu.Unlock()
	file, done, err := s.callStreamHandler(caisson.WithGuest(ctx, g), msg.Stream.In)
	if err != nil {
		release()
		s.m.streams.release(msg.Sandbox)
		return nil, nil, err
	}
	go func() {
		<-done
		release()
		s.m.streams.release(msg.Sandbox)
	}()
	return file, cancel, nil
}

// callStreamHandler calls Handlers.Stream and checks that its result is complete.
func (s *processState) callStreamHandler(ctx context.Context, in json.RawMessage) (*os.File, <-chan struct{}, error) {
	file, done, err := s.m.handlers.Stream(ctx, in)
	if err == nil && (file == nil || done == nil) {
		err = errors.New("a stream without a file or a done channel")
	}
	if err != nil && file != nil {
		file.Close()
	}
	return file, done, err
}

// descriptorMessage returns the control message that passes f's descriptor. f must stay open until the message is sent.
func descriptorMessage(f *os.File) ([]byte, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var rights []byte
	err = raw.Control(func(fd uintptr) { rights = unix.UnixRights(int(fd)) })
	return rights, err
}
