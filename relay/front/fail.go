package front

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson/internal/safetext"
)

const maxText = 1000 // bytes of what is said of an error

// fail answers with an error, in one line of plain text: git shows that as what the remote says.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // nobody listens
	}
	status, msg := statusOf(err)
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	noCache(header)
	if refused, ok := errors.AsType[*refusal](err); ok && refused.allow != "" {
		header.Set("Allow", refused.allow)
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		header.Set("Retry-After", "2")
	}
	line := "caisson: " + safetext.Escape(msg[:min(len(msg), maxText)]) + "\n"
	header.Set("Content-Length", strconv.Itoa(len(line)))
	rc := http.NewResponseController(w)
	if rc.EnableFullDuplex() != nil {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
	io.WriteString(w, line) // who has gone does not hear it
	// A client that is still sending would lose an answer that is followed by a reset. One that waits for leave to send must not
	// be given that, which reading would do.
	if r.Header.Get("Expect") == "" && rc.Flush() == nil {
		h.discard(rc, r)
	}
}

// discard reads what there is of a body, for a while.
func (h *handler) discard(rc *http.ResponseController, r *http.Request) {
	if rc.SetReadDeadline(time.Now().Add(h.drain)) != nil {
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err == nil {
		rc.SetReadDeadline(time.Time{}) // the connection goes on
	}
}

// noCache says what gitprotocol-http wants to be said.
func noCache(h http.Header) {
	h.Set("Expires", "Fri, 01 Jan 1980 00:00:00 GMT")
	h.Set("Pragma", "no-cache")
	h.Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
}
