package subruns

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

const (
	keepAlive    = 10 * time.Second // interval between progress messages while the state does not change
	writeTimeout = 30 * time.Second // time limit of one write to the client
)

// A stream is a response sent as Server-Sent Events. A nil stream stands for a response in one piece; startKeepAlive,
// stopKeepAlive and update do nothing for it.
type stream struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	token json.RawMessage // the client's progress token; nil if the client requests no notifications of progress

	mu    sync.Mutex
	count int            // number of progress messages sent; guarded by mu
	state string         // text of the progress messages, with the state of the run; guarded by mu
	stop  chan struct{}  // closed by stopKeepAlive; nil if no keep-alives are sent
	wg    sync.WaitGroup // the goroutine that sends keep-alives
	err   error          // error of the first failed write; guarded by mu
}

// newStream writes the header of the response.
func newStream(w http.ResponseWriter) *stream {
	s := &stream{w: w, c: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	s.write(": caisson\n\n")
	return s
}

// write sends text. Its deadline keeps a client that does not read from blocking the request forever.
func (s *stream) write(text string) error {
	s.c.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails only for test connections without deadlines
	_, err := s.w.Write([]byte(text))
	if err == nil {
		err = s.c.Flush()
	}
	s.c.SetWriteDeadline(time.Time{})
	return err
}

// startKeepAlive reports the state of a run and starts sending a keep-alive every keepAlive until stopKeepAlive is called.
func (s *stream) startKeepAlive(r *run) {
	if s == nil {
		return
	}
	s.update(r)
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

func (s *stream) stopKeepAlive() {
	if s == nil || s.stop == nil {
		return
	}
	close(s.stop)
	s.wg.Wait()
	s.stop = nil
}

// update sends a progress message if the state of the run has changed. Returns the error of the first failed write.
func (s *stream) update(r *run) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	about := "run " + string(r.ID) + " of " + r.Agent + " is " + string(r.State)
	if about != s.state {
		s.state = about
		s.progress()
	}
	return s.err
}

// progress sends a progress message: a notification if the client has sent a token, otherwise an SSE comment. The caller must
// hold mu.
func (s *stream) progress() {
	if s.err != nil {
		return
	}
	s.count++
	if s.token == nil {
		s.err = s.write(": " + s.state + "\n\n")
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
	}{"2.0", "notifications/progress", params{s.token, s.count, s.state}})
}

// event sends v as JSON in one event.
func (s *stream) event(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write("event: message\ndata: " + string(b) + "\n\n")
}

// end sends the response r, which ends the stream. A failed write cannot be reported to the client and is ignored.
func (s *stream) end(r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = s.event(r)
	}
}
