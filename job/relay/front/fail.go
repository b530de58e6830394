package front

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson/internal/safetext"
)

const maxText = 1000 // maximum length of an error message in bytes

// fail answers with an error as one line of plain text, which git shows as a message of the remote.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has closed the connection
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
	io.WriteString(w, line) // an error is ignored: the client may have closed the connection
	// A client that is still sending would lose an answer that is followed by a reset, so its body is read. If the client waits
	// for "100 Continue", the body is not read, because reading would send that status.
	if r.Header.Get("Expect") == "" && rc.Flush() == nil {
		h.discard(rc, r)
	}
}

// discard reads the rest of a body, for at most the time h.drain.
func (h *handler) discard(rc *http.ResponseController, r *http.Request) {
	if rc.SetReadDeadline(time.Now().Add(h.drain)) != nil {
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err == nil {
		rc.SetReadDeadline(time.Time{}) // the connection can be reused
	}
}

// noCache sets the cache headers that gitprotocol-http requires.
func noCache(h http.Header) {
	h.Set("Expires", "Fri, 01 Jan 1980 00:00:00 GMT")
	h.Set("Pragma", "no-cache")
	h.Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
}
