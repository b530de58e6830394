// Package subruns implements sub-runs: agents in a sandbox start runs of other agents, wait for their answers, and cancel them.
// It serves the virtual host tools.caisson.internal, with a small HTTP API and with the Model Context Protocol, which
// off-the-shelf agents support.
//
// The handler runs in the wire process and makes no decisions: the wire puts the guest into the context of a request, and the
// [Executor] in the engine decides whether that guest may do what it requests. The engine responds immediately and never waits
// for a run; the handler waits by polling the engine. Requests of a guest are limited in size, decoded strictly, and re-encoded
// before they are sent to the engine.
package subruns

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

const (
	maxBody     = 256 << 10        // bytes of a request body
	bodyTimeout = 10 * time.Second // time limit for reading a request body
	maxWait     = 300              // seconds that a request may wait for a run to end
)

// A Call sends a request to the engine on behalf of the guest in ctx. name is "agents", "start", "run" or "cancel".
type Call = func(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error)

// Handler returns the handler for the host tools.caisson.internal. The context of each request must hold a [caisson.Guest].
func Handler(call Call) http.Handler {
	return &handler{call: call, limiters: limiters{all: map[caisson.ID]*limiter{}}, pending: pending{all: map[pendingKey][]*pendingRequest{}}}
}

// handler serves the virtual host tools.caisson.internal.
type handler struct {
	call     Call     // sends a request to the engine on behalf of the guest
	limiters limiters // bound the requests in progress of each sandbox
	pending  pending  // requests that notifications can cancel
}

// ServeHTTP routes a request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g, err := caisson.GuestOf(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	t := h.limiters.acquire(g.Sandbox)
	if t == nil {
		writeError(w, errBusy)
		return
	}
	defer h.limiters.release(g.Sandbox)
	e := &engineClient{call: h.call, limiter: t}
	id, isRun := strings.CutPrefix(r.URL.Path, "/v1/runs/")
	id, isCancel := strings.CutSuffix(id, "/cancel")
	method, status := http.MethodGet, http.StatusOK
	var serve func(http.ResponseWriter, *http.Request, *engineClient, string) (any, error) // nil for the Model Context Protocol
	switch {
	case r.URL.Path == "/mcp":
		method = http.MethodPost
	case r.URL.Path == "/v1/agents":
		serve = listAgents
	case r.URL.Path == "/v1/runs":
		method, status, serve = http.MethodPost, http.StatusCreated, startRun
	case isRun && isCancel:
		method, serve = http.MethodPost, cancelRun
	case isRun:
		serve = showRun
	default:
		writeError(w, caisson.Errorf(caisson.NotFound, "there are /v1/agents, /v1/runs and /mcp here, and nothing else"))
		return
	}
	if r.Method != method {
		w.Header().Set("Allow", method)
		writeErrorBody(w, http.StatusMethodNotAllowed, string(caisson.Invalid), "use "+method+" here")
		return
	}
	if serve == nil {
		h.mcp(w, r, e, g.Sandbox)
	} else if out, err := serve(w, r, e, id); err != nil {
		writeError(w, err)
	} else {
		writeJSON(w, status, out)
	}
}

// statuses maps kinds of errors to HTTP status codes.
var statuses = map[caisson.Kind]int{
	caisson.Invalid: http.StatusBadRequest, caisson.NotFound: http.StatusNotFound, caisson.Conflict: http.StatusConflict,
	caisson.Denied: http.StatusForbidden, caisson.Unauthed: http.StatusUnauthorized, caisson.Exhausted: http.StatusTooManyRequests,
	caisson.Unavailable: http.StatusServiceUnavailable, caisson.Internal: http.StatusInternalServerError,
}

// errTooLarge rejects a request body of more than maxBody.
var errTooLarge = caisson.Errorf(caisson.Invalid, "the body has more than %s; send less", caisson.Size(maxBody))

// writeError responds with an error.
func writeError(w http.ResponseWriter, err error) {
	spent, isSpent := errors.AsType[*budgetError](err)
	switch {
	case isSpent:
		writeErrorBody(w, http.StatusPaymentRequired, caisson.RunNoCredits, spent.msg)
	case errors.Is(err, errTooLarge):
		writeErrorBody(w, http.StatusRequestEntityTooLarge, string(caisson.Invalid), caisson.MessageOf(err))
	default:
		if errors.Is(err, errBusy) {
			w.Header().Set("Retry-After", "1")
		}
		writeErrorBody(w, statuses[caisson.KindOf(err)], string(caisson.KindOf(err)), caisson.MessageOf(err))
	}
}

// writeErrorBody responds with an error as a JSON object with a message and a code.
func writeErrorBody(w http.ResponseWriter, status int, code, msg string) {
	writeJSON(w, status, struct {
		Error string `json:"error"`
		Code  string `json:"code"`
	}{msg, code})
}

// writeJSON responds with v as JSON. A failed write cannot be reported to the client and is ignored.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, `{"error":"internal error","code":"internal"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	w.Write(b)
}

// readBody reads the body of a request. Returns errTooLarge if it exceeds maxBody, and an error if it takes longer than
// bodyTimeout.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, errTooLarge
	}
	c := http.NewResponseController(w)
	c.SetReadDeadline(time.Now().Add(bodyTimeout)) // fails only for test connections without deadlines
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	c.SetReadDeadline(time.Time{})
	switch {
	case err != nil:
		return nil, caisson.Wrap(err, caisson.Invalid, "the body did not arrive whole; send it again")
	case len(b) > maxBody:
		return nil, errTooLarge
	}
	return b, nil
}
