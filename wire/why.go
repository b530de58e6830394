package wire

import (
	"bytes"
	"net/http"
	"time"
)

const (
	whyTimeout    = 10 * time.Second // time limit for waiting until no other page is rendered, and for writing the page
	maxRenderings = 4                // pages about refused connections that are rendered concurrently in the process
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

// serveWhy serves the page of a wire's policy and recent refusals. One page per wire is rendered at a time, and a connection is
// closed after one page.
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

// render renders the page into p. It waits while maxRenderings other pages are rendered.
func (h *virtualHosts) render(p *bufferedResponse, r *http.Request, w *sandboxWire) {
	h.renderings <- struct{}{}
	defer func() { <-h.renderings }()
	w.whyHandler.ServeHTTP(p, r)
}
