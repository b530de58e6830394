package wire

import (
	"bytes"
	"net/http"
	"time"
)

const (
	whyTime       = 10 * time.Second // for a page to be asked for in turn, and for it to be taken
	maxRenderings = 4                // pages being made at once in the process
)

// A page is made as a whole before any of it is written, so that a sandbox that does not read holds its own turn and nothing
// that others need.
type page struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (p *page) Header() http.Header { return p.header }

// WriteHeader implements [http.ResponseWriter].
func (p *page) WriteHeader(status int) {
	if p.status == 0 {
		p.status = status
	}
}

// Write implements [http.ResponseWriter].
func (p *page) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.body.Write(b)
}

// why says what a wire has and has refused: to one request of the wire at a time, and to one of a connection.
func (h *hosts) why(rw http.ResponseWriter, r *http.Request, w *served) {
	rw.Header().Set("Connection", "close")
	late := time.NewTimer(whyTime)
	defer late.Stop()
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-late.C:
		http.Error(rw, "caisson: this sandbox asks too much at once", http.StatusServiceUnavailable)
		return
	case <-r.Context().Done():
		return
	}
	p := &page{header: rw.Header()}
	h.render(p, r, w)
	// Not the server's WriteTimeout: the answers of models take as long as they take. The connection ends with this one.
	if err := http.NewResponseController(rw).SetWriteDeadline(time.Now().Add(whyTime)); err != nil {
		panic(http.ErrAbortHandler)
	}
	if p.status != 0 {
		rw.WriteHeader(p.status)
	}
	rw.Write(p.body.Bytes())
}

func (h *hosts) render(p *page, r *http.Request, w *served) {
	h.renderings <- struct{}{}
	defer func() { <-h.renderings }()
	w.why.ServeHTTP(p, r)
}
