package tools

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

const (
	keepAlive = 10 * time.Second // between signs of life
	writeTime = 30 * time.Second // for what is written to be taken
)

// A stream is an answer as Server-Sent Events. Its methods do nothing for a nil stream, which is an answer in one piece.
type stream struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	token json.RawMessage // of progress; nil if the client wants to hear of none

	mu    sync.Mutex
	n     int           // progress so far; guarded by mu
	about string        // what is waited for; guarded by mu
	stop  chan struct{} // closed by rest
	wg    sync.WaitGroup
	err   error // guarded by mu
}

// newStream begins the answer.
func newStream(w http.ResponseWriter) *stream {
	s := &stream{w: w, c: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	s.write(": caisson\n\n")
	return s
}

// write sends text. A client that does not read must not hold the request for ever.
func (s *stream) write(text string) error {
	s.c.SetWriteDeadline(time.Now().Add(writeTime)) // a connection that has no deadlines is a test's
	_, err := s.w.Write([]byte(text))
	if err == nil {
		err = s.c.Flush()
	}
	s.c.SetWriteDeadline(time.Time{})
	return err
}

// watch gives signs of life until rest is called.
func (s *stream) watch(r *run) {
	if s == nil {
		return
	}
	s.see(r)
	stop := make(chan struct{})
	s.stop = stop
	s.wg.Go(func() {
		t := time.NewTicker(keepAlive)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				s.mu.Lock()
				s.progress()
				s.mu.Unlock()
			case <-stop:
				return
			}
		}
	})
}

func (s *stream) rest() {
	if s == nil || s.stop == nil {
		return
	}
	close(s.stop)
	s.wg.Wait()
	s.stop = nil
}

// see tells what has become of a run. The error is that nobody reads any more.
func (s *stream) see(r *run) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	about := "run " + string(r.ID) + " of " + r.Agent + " is " + string(r.State)
	if about != s.about {
		s.about = about
		s.progress()
	}
	return s.err
}

// progress says that there is some. It needs mu.
func (s *stream) progress() {
	if s.err != nil {
		return
	}
	s.n++
	if s.token == nil {
		s.err = s.write(": " + s.about + "\n\n")
		return
	}
	type params struct {
		Token    json.RawMessage `json:"progressToken"`
		Progress int             `json:"progress"`
		Message  string          `json:"message"`
	}
	s.err = s.event(struct {
		Version string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  params `json:"params"`
	}{"2.0", "notifications/progress", params{s.token, s.n, s.about}})
}

func (s *stream) event(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write("event: message\ndata: " + string(b) + "\n\n")
}

// end sends the answer itself. There is nobody to tell if it does not arrive.
func (s *stream) end(r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = s.event(r)
	}
}
