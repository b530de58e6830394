package wire

import (
	"bytes"
	"net/http"
	"time"
)

const (
	whyTimeout    = 10 * time.Second // for waiting for the sandbox's previous page of http://caisson.internal, and for sending one
	maxRenderings = 4                // pages of http://caisson.internal that are rendered concurrently, for all sandboxes
)

// A bufferedResponse buffers a response completely before any of it is written, so that a sandbox that does not read blocks only
// its own next page and no shared resource.
type bufferedResponse struct {
	header http.Header
	status int // HTTP status; 0 until WriteHeader is called
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (p *bufferedResponse) Header() http.Header { return p.header }

// WriteHeader implements [http.ResponseWriter].
func (p *bufferedResponse) WriteHeader(status int) {
	if p.status == 0 {
		p.status = status
	}
}

// Write implements [http.ResponseWriter].
func (p *bufferedResponse) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.body.Write(b)
}

// serveWhy serves http://caisson.internal: pages about the wire and its recent refusals. One page per wire is rendered at a time,
// and a connection is closed after one page.
func (h *virtualHosts) serveWhy(rw http.ResponseWriter, r *http.Request, w *sandboxWire) {
	rw.Header().Set("Connection", "close")
	select {
	case w.whySlot <- struct{}{}:
		defer func() { <-w.whySlot }()
	case <-time.After(whyTimeout):
		http.Error(rw, "caisson: this sandbox makes too many requests at once", http.StatusServiceUnavailable)
		return
	case <-r.Context().Done():
		return
	}
	p := &bufferedResponse{header: rw.Header()}
	h.render(p, r, w)
	// The deadline is set here, because the server has no WriteTimeout: model answers may take any time. The connection is closed
	// after this response, so the deadline affects no other.
	if err := http.NewResponseController(rw).SetWriteDeadline(time.Now().Add(whyTimeout)); err != nil {
		panic(http.ErrAbortHandler)
	}
	if p.status != 0 {
		rw.WriteHeader(p.status)
	}
	rw.Write(p.body.Bytes())
}

// render writes the page of http://caisson.internal that r requests to p. It waits while maxRenderings other pages are rendered.
func (h *virtualHosts) render(p *bufferedResponse, r *http.Request, w *sandboxWire) {
	h.renderings <- struct{}{}
	defer func() { <-h.renderings }()
	w.whyHandler.ServeHTTP(p, r)
}
