// Package scriptedtest serves scripted models to tests, and records their requests.
package scriptedtest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/scripted"
)

// A Call is a recorded request.
type Call struct {
	Method string             // HTTP method
	Path   string             // the escaped path, with the query
	Host   string             // the header Host
	Header http.Header        // the headers of the request, except Host
	Body   []byte             // body of the request
	Status int                // HTTP status of the answer; 0 if there was none
	Billed caisson.TokenCount // the tokens that the model charged
	Done   bool               // the model's handler has returned
}

// A Recorder records the calls that it forwards to a model. It is safe for concurrent use.
type Recorder struct {
	model http.Handler // the model to which calls are forwarded

	mu     sync.Mutex         // guards the fields below and the elements of calls
	calls  []*Call            // in the order of their arrival
	billed caisson.TokenCount // sum of the charged tokens
	bills  int                // number of calls for which tokens were charged
}

// NewRecorder returns a recorder for model. Charged tokens are counted only if model is a [scripted.Model].
func NewRecorder(model http.Handler) *Recorder { return &Recorder{model: model} }

// Serve serves script on a socket until the test ends. It returns the URL, without /v1, and the recorder.
func Serve(t testing.TB, script string) (url string, r *Recorder) {
	t.Helper()
	m, err := scripted.New([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	r = NewRecorder(m)
	srv := httptest.NewServer(r)
	t.Cleanup(func() {
		srv.CloseClientConnections() // ends answers that hang
		srv.Close()
	})
	return srv.URL, r
}

// ServeHTTP records a request and forwards it to the model.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, "the body did not arrive whole", http.StatusBadRequest)
		return
	}
	c := &Call{Method: req.Method, Path: req.URL.RequestURI(), Host: req.Host, Header: req.Header.Clone(), Body: body}
	r.mu.Lock()
	r.calls = append(r.calls, c)
	r.mu.Unlock()
	ctx := scripted.WithBill(req.Context(), func(t caisson.TokenCount) {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.Billed = t
		r.bills++
		r.billed.Input += t.Input
		r.billed.Output += t.Output
		r.billed.CacheRead += t.CacheRead
		r.billed.CacheWrite += t.CacheWrite
	})
	req = req.WithContext(ctx)
	req.Body = io.NopCloser(bytes.NewReader(body))
	r.model.ServeHTTP(&status{ResponseWriter: w, r: r, c: c}, req)
	r.mu.Lock()
	c.Done = true
	r.mu.Unlock()
}

// Calls returns copies of the recorded calls in the order of their arrival.
func (r *Recorder) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Call
	for _, c := range r.calls {
		out = append(out, *c)
	}
	return out
}

// Billed returns the number of calls for which tokens were charged, and the sum of the tokens.
func (r *Recorder) Billed() (calls int, t caisson.TokenCount) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bills, r.billed
}

// Cost returns the sum of the costs of all calls at the prices p, each rounded as in the ledger.
func (r *Recorder) Cost(p caisson.Prices) caisson.USD {
	r.mu.Lock()
	defer r.mu.Unlock()
	var sum caisson.USD
	for _, c := range r.calls {
		sum += p.Cost(c.Billed)
	}
	return sum
}

// Reset discards all recorded calls.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls, r.billed, r.bills = nil, caisson.TokenCount{}, 0
}

// status is a response writer that records the HTTP status of the answer in a Call.
type status struct {
	http.ResponseWriter
	r *Recorder // the recorder of c
	c *Call     // the call that is answered
}

// WriteHeader implements [http.ResponseWriter].
func (s *status) WriteHeader(code int) {
	s.note(code)
	s.ResponseWriter.WriteHeader(code)
}

// Write implements [http.ResponseWriter].
func (s *status) Write(p []byte) (int, error) {
	s.note(http.StatusOK)
	return s.ResponseWriter.Write(p)
}

// note records the status of the answer, unless one is recorded already.
func (s *status) note(code int) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.c.Status == 0 {
		s.c.Status = code
	}
}

// Unwrap returns the underlying writer, with which [http.ResponseController] flushes.
func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }
