package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// keepAliveInterval is the time between comments on an idle stream of events: proxies close connections that are silent for a
// minute.
const keepAliveInterval = 15 * time.Second

// clientWriteTimeout is how long a client may take to receive an event. A client that takes longer is treated as disconnected,
// because the handler that waits for it may hold resources. When a write fails, net/http cancels the request's context.
const clientWriteTimeout = time.Minute

// sseWriter writes server-sent events. It sends the header of the response with the first event. It is safe for concurrent use.
type sseWriter struct {
	mu      sync.Mutex // held during writes
	w       http.ResponseWriter
	ctl     *http.ResponseController
	started bool  // the header was sent, or sending it has failed
	err     error // error of the first failed write, which all later writes return
}

func newSSEWriter(w http.ResponseWriter) *sseWriter {
	return &sseWriter{w: w, ctl: http.NewResponseController(w)}
}

// start sends the header of the response, so that the client receives the status 200 before the first event occurs.
func (s *sseWriter) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(nil)
}

// send writes one server-sent event with v as its data, encoded as JSON. An id of 0 means that the event has no id.
func (s *sseWriter) send(id int64, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.sendRaw(protocol.SSE{ID: id, Name: name, Data: data})
}

// sendRaw writes one server-sent event whose data is encoded already.
func (s *sseWriter) sendRaw(e protocol.SSE) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(e.Encode())
}

// write writes b, after the header of the response if that was not sent yet. The caller must hold mu.
func (s *sseWriter) write(b []byte) error {
	if s.err != nil {
		return s.err
	}
	if !s.started {
		s.started = true
		s.w.Header().Set("Content-Type", protocol.EventType)
		s.w.WriteHeader(http.StatusOK)
	}
	s.ctl.SetWriteDeadline(time.Now().Add(clientWriteTimeout)) // the error is ignored: only writers in tests have no deadlines
	if _, s.err = s.w.Write(b); s.err == nil {
		s.err = s.ctl.Flush()
	}
	if s.err == nil {
		s.ctl.SetWriteDeadline(time.Time{}) // the connection may be reused for other requests
	}
	return s.err
}

// comment writes a comment, which clients ignore.
func (s *sseWriter) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write([]byte(":\n\n"))
}

// keepAlive starts to write a comment every keepAliveInterval. stop ends that, and returns when no further comment will be
// written.
func (s *sseWriter) keepAlive() (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(keepAliveInterval)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				s.comment()
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// serveProgress executes work and streams its progress, then its result or its error. If work fails before anything was streamed,
// serveProgress returns the error.
func serveProgress[T any](rt *router, w http.ResponseWriter, r *http.Request, work func(context.Context, func(caisson.Progress)) (T, error)) error {
	s := newSSEWriter(w)
	v, err := func() (T, error) {
		defer s.keepAlive()() // keepAlive also ends if work panics, because nothing may be written after the handler has returned
		return work(r.Context(), func(p caisson.Progress) {
			s.send(0, protocol.EventProgress, p) // an error is ignored: a disconnection cancels the context
		})
	}()
	switch {
	case err == nil:
		return s.send(0, protocol.EventResult, v)
	case !s.started:
		return err
	default:
		return s.send(0, protocol.EventError, rt.problem(r.Context(), err))
	}
}
