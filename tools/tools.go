// Package tools is what an agent can do with other agents from inside its sandbox: start runs of them, wait for their answers, and cancel
// them. It answers on the virtual host tools.caisson.internal, as a small HTTP API and by the Model Context Protocol, which stock agents
// speak.
//
// It runs in the wire process and decides nothing: who asks is in the context of a request, put there by the wire, and whether
// that guest may have what it asks for the engine says. The engine answers at once and never waits for a run; waiting is done here, by asking
// again: the [Host] that it asks is in the engine. What a guest sends is bounded, decoded strictly, and encoded anew before the engine sees it.
package tools

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
	maxBody  = 256 << 10        // bytes of a request's body
	bodyTime = 10 * time.Second // for a body to arrive
	maxWait  = 300              // seconds that a question about a run is held
)

// A Call has the engine do something for the guest in ctx: "agents", "start", "run" or "cancel".
type Call = func(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error)

// Handler returns what answers on the virtual host. Requests have a [caisson.Guest] in their context.
func Handler(call Call) http.Handler {
	return &handler{call: call, seats: seats{all: map[caisson.ID]*seat{}}, pending: pending{all: map[pendingKey][]*job{}}}
}

type handler struct {
	call    Call
	seats   seats
	pending pending
}

// ServeHTTP finds what a request asks for.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g, err := caisson.GuestOf(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	t := h.seats.take(g.Sandbox)
	if t == nil {
		fail(w, errBusy)
		return
	}
	defer h.seats.leave(g.Sandbox)
	e := &engine{call: h.call, seat: t}
	id, isRun := strings.CutPrefix(r.URL.Path, "/v1/runs/")
	id, isCancel := strings.CutSuffix(id, "/cancel")
	switch {
	case r.URL.Path == "/mcp":
		if only(w, r, http.MethodPost) {
			h.mcp(w, r, e, g.Sandbox)
		}
	case r.URL.Path == "/v1/agents":
		if only(w, r, http.MethodGet) {
			listAgents(w, r, e)
		}
	case r.URL.Path == "/v1/runs":
		if only(w, r, http.MethodPost) {
			startRun(w, r, e)
		}
	case isRun && isCancel:
		if only(w, r, http.MethodPost) {
			cancelRun(w, r, e, id)
		}
	case isRun:
		if only(w, r, http.MethodGet) {
			showRun(w, r, e, id)
		}
	default:
		fail(w, caisson.Errorf(caisson.NotFound, "there are /v1/agents, /v1/runs and /mcp here, and nothing else"))
	}
}

// only reports whether a request has the one method that its path has, and refuses it otherwise.
func only(w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method == method {
		return true
	}
	w.Header().Set("Allow", method)
	refuse(w, http.StatusMethodNotAllowed, string(caisson.Invalid), "use "+method+" here")
	return false
}

// statuses are those of errors by kind.
var statuses = map[caisson.Kind]int{
	caisson.Invalid: http.StatusBadRequest, caisson.NotFound: http.StatusNotFound, caisson.Conflict: http.StatusConflict,
	caisson.Denied: http.StatusForbidden, caisson.Unauthed: http.StatusUnauthorized, caisson.Exhausted: http.StatusTooManyRequests,
	caisson.Unavailable: http.StatusServiceUnavailable, caisson.Internal: http.StatusInternalServerError,
}

// errTooLarge is a body that has more than maxBody.
var errTooLarge = caisson.Errorf(caisson.Invalid, "the body has more than %s; send less", caisson.Size(maxBody))

// fail answers with an error.
func fail(w http.ResponseWriter, err error) {
	spent, isSpent := errors.AsType[*spentError](err)
	switch {
	case isSpent:
		refuse(w, http.StatusPaymentRequired, caisson.RunNoCredits, spent.msg)
	case errors.Is(err, errTooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, string(caisson.Invalid), caisson.MessageOf(err))
	default:
		if errors.Is(err, errBusy) {
			w.Header().Set("Retry-After", "1")
		}
		refuse(w, statuses[caisson.KindOf(err)], string(caisson.KindOf(err)), caisson.MessageOf(err))
	}
}

func refuse(w http.ResponseWriter, status int, code, msg string) {
	answer(w, status, struct {
		Error string `json:"error"`
		Code  string `json:"code"`
	}{msg, code})
}

// answer writes v as JSON. There is nobody to tell if it does not arrive.
func answer(w http.ResponseWriter, status int, v any) {
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

// readBody reads the whole body of a request, soon.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, errTooLarge
	}
	c := http.NewResponseController(w)
	c.SetReadDeadline(time.Now().Add(bodyTime)) // a connection that has no deadlines is a test's
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
