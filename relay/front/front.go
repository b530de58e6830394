// Package front is git over HTTP as a sandbox sees it, on the virtual host git.caisson.internal: the smart protocol, and of that only what
// HTTP is about. It runs in the wire process, knows no git, and decides nothing: it checks the form of a request, asks the engine for
// a stream, copies the request's body into it and what comes back out of it. Who asks is in the context of a request, put there by the
// wire; which repositories there are, and what may be done with them, the engine says.
package front

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/caisson-dev/caisson"
)

// Bounds of a request.
const (
	maxWants    = 32 << 20         // bytes of a request for objects, decoded: names of what is wanted and of what is there
	maxUnzipped = 64 << 20         // bytes of a compressed request of either sort, decoded; git compresses no packs
	idleTime    = 5 * time.Minute  // without a byte in either direction
	drainTime   = 30 * time.Second // for what is left of a body that nobody wants any more
)

// An Open asks the engine for a stream for the guest in ctx. The connection can be closed for writing alone (CloseWrite). The request's body goes
// into it, and its end with that; the whole body of the answer comes out of it.
type Open = func(ctx context.Context, in json.RawMessage) (net.Conn, error)

// A Request is what the engine is asked for.
type Request struct {
	Repo      string `json:"repo"`
	Service   string `json:"service" enum:"upload-pack,receive-pack"`
	Advertise bool   `json:"advertise"` // whether it is the list of refs that is asked for; then there is no body
	// Protocol is what the client says of the protocol's version: "version=0", "version=1", "version=2", or nothing.
	Protocol string `json:"protocol,omitempty"`
}

// Handler returns what answers on the virtual host. Requests have a [caisson.Guest] in their context.
func Handler(open Open) http.Handler {
	return &handler{open: open, wants: maxWants, unzipped: maxUnzipped, idle: idleTime, drain: drainTime}
}

type handler struct {
	open            Open
	wants, unzipped int64
	idle, drain     time.Duration
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := parse(r)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	in, err := json.Marshal(req)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	conn, err := h.open(r.Context(), in)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(r.Context(), func() { conn.Close() })()
	s, ok := conn.(stream)
	if !ok {
		h.fail(w, r, errors.New("a stream that cannot be closed for writing"))
		return
	}
	x := newExchange(h, w, r, req, s)
	if err := x.run(); err != nil {
		if x.begun || x.stuck.Load() {
			panic(http.ErrAbortHandler) // what there is of the answer must not look whole
		}
		h.fail(w, r, err)
	}
}

// errEnded is the end of a stream before there was anything of an answer.
var errEnded = caisson.Errorf(caisson.Unavailable, "the answer broke off before it began; try again in a moment")
