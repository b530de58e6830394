package ingress

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// A refusal is an HTTP error with which the ingress itself answers a request, in place of a response of the sandbox.
type refusal struct {
	status     int      // HTTP status
	msg        string   // text of the error
	allow      []string // the allowed methods, for the header field Allow
	challenge  string   // value of the header field WWW-Authenticate; "": no such field
	retryAfter int      // seconds, for the header field Retry-After; 0: no such field
}

func (r *refusal) Error() string { return r.msg }

var (
	errTooLarge = &refusal{status: http.StatusRequestEntityTooLarge, msg: "the request is larger than the route allows"}
	errPath     = &refusal{status: http.StatusBadRequest, msg: "the path of the request is not allowed"}
	errForeign  = &refusal{status: http.StatusForbidden, msg: "pages of other origins may not use this address with your credentials"}
	errWorker   = &refusal{status: http.StatusForbidden, msg: "hosts with signed URLs have no service workers, which could read their tokens"}
	errExpired  = &refusal{status: http.StatusUnauthorized, msg: "the signed URL has expired; ask for a new one"}
	errRevoked  = &refusal{status: http.StatusNotFound, msg: "the route is gone"}
	errBusy     = &refusal{status: http.StatusTooManyRequests, msg: "too many requests; try again later", retryAfter: 1}
)

// permits reports whether t allows a request that an earlier table of routes has admitted: the route still exists, leads to the
// same port, and has the same host, path and authentication.
func (t *table) permits(c *call) bool {
	if c.route.id == "" {
		return true // a host PORT-SANDBOX.DOMAIN has no entry; the daemon verifies the token of the request
	}
	now := t.routes[c.route.id]
	if now == nil {
		return false
	}
	a, b := now.spec, c.route.spec
	return now.sandbox == c.route.sandbox && a.Port == b.Port && a.Host == b.Host && a.Path == b.Path &&
		a.Auth.Kind == b.Auth.Kind && strings.Join(a.Auth.Hashes, " ") == strings.Join(b.Auth.Hashes, " ")
}

// handleProxyError answers a request that could not be passed on, or whose answer cannot be read. It implements
// [httputil.ReverseProxy.ErrorHandler].
func handleProxyError(w http.ResponseWriter, r *http.Request, err error) {
	if cause := context.Cause(r.Context()); cause != nil {
		err = cause
	}
	refuse(w.(*responder), r, err)
}

// refusalFor returns the answer to a request that failed with err.
func refusalFor(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return errTooLarge
	}
	if e, ok := errors.AsType[*caisson.Error](err); ok {
		switch caisson.KindOf(e) {
		case caisson.Unavailable, caisson.Exhausted:
			return &refusal{status: http.StatusServiceUnavailable, msg: caisson.MessageOf(e), retryAfter: 2}
		case caisson.Denied, caisson.Unauthed:
			return &refusal{status: http.StatusForbidden, msg: caisson.MessageOf(e)}
		case caisson.Conflict, caisson.NotFound:
			return &refusal{status: http.StatusBadGateway, msg: caisson.MessageOf(e)}
		}
		return &refusal{status: http.StatusBadGateway, msg: "the sandbox cannot be reached"}
	}
	switch {
	case errors.Is(err, errTimeout), errors.Is(err, errIdle):
		return &refusal{status: http.StatusGatewayTimeout, msg: err.Error()}
	case errors.Is(err, errBodyTimeout):
		return &refusal{status: http.StatusRequestTimeout, msg: err.Error()}
	}
	return &refusal{status: http.StatusBadGateway, msg: "the sandbox gave no valid answer"}
}

// maxText bounds the text of an error with which the ingress itself answers a request, in bytes before escaping.
const maxText = 500

// refuse answers with an error as one line of text. If an answer has begun, or the client has disconnected, it ends the
// connection instead.
func refuse(out *responder, r *http.Request, err error) {
	if out.status != 0 || errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler)
	}
	why := refusalFor(err)
	h := out.Header()
	clear(h)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if why.allow != nil {
		h.Set("Allow", strings.Join(why.allow, ", "))
	}
	if why.challenge != "" {
		h.Set("WWW-Authenticate", why.challenge)
	}
	if why.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(why.retryAfter))
	}
	line := "caisson: " + safetext.Escape(why.msg[:min(len(why.msg), maxText)]) + "\n"
	h.Set("Content-Length", strconv.Itoa(len(line)))
	out.WriteHeader(why.status)
	if r.Method != http.MethodHead {
		io.WriteString(out, line) // an error is ignored: the client may be gone
	}
}

// logEntry returns the entry for a request in its route's log.
func logEntry(c *call, r *http.Request, out *responder, start, end time.Time) caisson.RouteRequest {
	status := out.status
	if status == 0 {
		status = 499 // logged if the client disconnected, or the request was cut off
	}
	const most = 256 // bytes of the path in the log
	path := r.URL.EscapedPath()
	return caisson.RouteRequest{
		At: start.UTC(), Client: c.client.String(), Method: r.Method[:min(len(r.Method), 16)], Path: path[:min(len(path), most)], Status: status,
		Duration: caisson.Duration(end.Sub(start)), Bytes: caisson.Size(out.bytes.Load()),
	}
}
