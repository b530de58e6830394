// Package front serves git over HTTP to sandboxes, on the virtual host git.caisson.internal. It implements the HTTP part of the
// smart protocol. It runs in the wire process, does not parse git data, and makes no decisions: it checks the form of a request,
// requests a stream from the engine, and copies the request's body into the stream and the answer from it. The wire process puts
// the guest into the context of a request; the engine decides which repositories exist and what the guest may do with them.
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

// Limits of a request.
const (
	maxFetchRequest = 32 << 20         // bytes of a decoded fetch request: names of wanted and existing objects
	maxUnzipped     = 64 << 20         // bytes of a compressed request of any kind, decoded; git does not compress packs
	idleTime        = 5 * time.Minute  // maximum time without a byte in either direction
	drainTime       = 30 * time.Second // maximum time for reading the rest of a body that is not needed
)

// OpenStream requests a stream from the engine for the guest in ctx. The connection must support CloseWrite. The request's body
// is written to it, followed by CloseWrite; the whole body of the answer is read from it.
type OpenStream = func(ctx context.Context, in json.RawMessage) (net.Conn, error)

// A Request is the request to the engine for a stream.
type Request struct {
	Repo      string `json:"repo"` // name of the repository
	Service   string `json:"service" enum:"upload-pack,receive-pack"`
	Advertise bool   `json:"advertise"` // whether this is a request for the list of refs, which has no body
	// Protocol is the protocol version that the client requests: "version=0", "version=1", "version=2", or "".
	Protocol string `json:"protocol,omitempty"`
}

// Handler returns the handler of the virtual host git.caisson.internal. Requests must have a [caisson.Guest] in their context.
func Handler(open OpenStream) http.Handler {
	return &handler{open: open, fetchLimit: maxFetchRequest, gzipLimit: maxUnzipped, idle: idleTime, drain: drainTime}
}

// A handler answers the git requests of sandboxes.
type handler struct {
	open                  OpenStream    // requests a stream from the engine
	fetchLimit, gzipLimit int64         // limits of decoded fetches and compressed requests, in bytes
	idle, drain           time.Duration // limits of the time without a byte, and of draining a body
}

// ServeHTTP answers one request of git: it copies the request to a job of the engine, and the answer back.
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
		if x.started || x.timedOut.Load() {
			panic(http.ErrAbortHandler) // so that the client does not take a partial answer for complete
		}
		h.fail(w, r, err)
	}
}

// errEnded is returned if a stream ends before the answer begins.
var errEnded = caisson.Errorf(caisson.Unavailable, "the answer broke off before it began; try again in a moment")
