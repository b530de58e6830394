// Package llm is the model gateway: the endpoint for model calls of sandboxes, and the only code that uses the keys of providers.
// It supports APIs through dialects only.
//
// The gateway reads a request as a whole and forwards only the fields that its dialect supports. The model is a granted one.
// The maximum cost of the call is reserved before it is forwarded, with the answer limited to what the budgets afford. The actual
// cost is in the ledger before the guest has the end of the answer: until the ledger is written, the gateway holds back a short
// answer as a whole, the last byte of a long one, and the data of a stream that arrived together with its final event.
//
// The request to the provider is built from scratch: the path and the headers come from the dialect, and the body from the parsed
// request. The gateway follows no redirects, uses no proxy from the environment, and opens no files.
//
// The cost of an answer is what the provider reports. If the provider does not report it, the row is marked as estimated. The
// amount that is reserved while the call is in progress is always its maximum cost. The estimates are:
//
//   - The connection broke before there was a status, or an answer broke off: the input is what the provider reported at the
//     beginning, otherwise an estimate from the request's text (a token per 3 bytes, 1600 per image). The output of a stream is
//     the number of its bytes, plus 500 tokens per second of the call, because models reason without showing it, but at most what
//     was reserved. The output of other answers is all that was reserved, because providers complete them. Budgets count the
//     maximum input and all the output that was reserved, so that they hold for any text.
//   - An answer was complete but did not report its usage: the input is its maximum. The output of a stream is the number of its
//     bytes, plus 500 tokens per second of the call, but at most what was reserved. The output of other answers, and of streams
//     without a final event, is all that was reserved.
//   - The provider returned an error: nothing, if the error is the API's (JSON) or its status is below 500; all that was reserved
//     if an intermediary failed (502, 504 and others that are not JSON, except 503).
//
// If a guest disconnects, its call at the provider continues, because cancelling does not make it cheaper with all providers: the
// gateway reads the answer to its end, which reports the cost. That takes at most [Timeouts].Linger, and is cancelled when the
// guest's grant ends, for example with its sandbox; the answer then counts as broken off.
package llm

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

// Config configures a gateway.
type Config struct {
	// APIs are the APIs to serve. If two have the same path, the first one is used. Required.
	APIs []API
	// Meter reserves the cost of each call before it is made and settles it afterwards. Required.
	Meter caisson.Meter
	// Grant returns the current grant of a guest; nil allows nothing. Required. It is called for each request and must not block.
	Grant func(ctx context.Context, g caisson.Guest) *caisson.ModelGrant
	// Dial connects to providers. addr is host:port; Dial resolves the host name. Required.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Local returns the handler of a provider of kind scripted. If nil, such providers are not supported.
	Local func(p caisson.Provider, script string) (http.Handler, error)
	// Roots are the trusted certificate authorities of providers; nil selects the system's, which requires access to files.
	Roots *x509.CertPool
	// Record returns the writer for the prompts and answers of a guest whose grant has Record set. Each call is one JSON object
	// on one line of a few MiB at most, in one Write. nil, or a nil Writer, records nothing.
	Record func(g caisson.Guest) io.Writer
	// Log receives failures and, at debug level, one line per call, without prompts; nil discards them.
	Log      *slog.Logger
	Timeouts Timeouts
}

// An API is a dialect and the kinds of providers that implement it.
type API struct {
	Dialect dialect.Dialect
	// Kinds are the kinds of providers that implement the API, in addition to scripted.
	Kinds []string
	// MarkerHeader is a header that only clients of this API send. It distinguishes two APIs with the same path (GET /v1/models).
	// May be "".
	MarkerHeader string
}

// Timeouts limit the duration of a call; zero values mean the defaults.
type Timeouts struct {
	Connect time.Duration // for connecting to a provider; default 10 s
	Header  time.Duration // until the first byte of the provider's answer; default 10 min
	Idle    time.Duration // between two reads of an answer, and for a write to the guest; default 5 min
	Body    time.Duration // for reading the guest's request; default 60 s
	Linger  time.Duration // for the rest of an answer after the guest has disconnected; default 60 s
}

func (t Timeouts) orDefaults() Timeouts {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&t.Connect, 10 * time.Second}, {&t.Header, 10 * time.Minute}, {&t.Idle, 5 * time.Minute}, {&t.Body, time.Minute}, {&t.Linger, time.Minute}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	return t
}

// A Gateway serves the calls of all sandboxes. It is safe for concurrent use.
type Gateway struct {
	config       Config                // as passed to New, with defaults
	setup        atomic.Pointer[setup] // the models, the providers and their keys; replaced by Configure
	configureMu  sync.Mutex            // serializes Configure
	limiters     limiters              // limit the calls of each sandbox
	serverStates serverStates          // ids of the objects that each account has stored at the providers, such as files
	bodyMemory   bodyMemory            // limits the bytes of request bodies by account
	parseSlots   chan struct{}         // semaphore for parsing large bodies
}

var _ http.Handler = (*Gateway)(nil)

// New returns a gateway. It serves no models until Configure is called.
func New(c Config) (*Gateway, error) {
	if len(c.APIs) == 0 || c.Meter == nil || c.Grant == nil || c.Dial == nil {
		return nil, errors.New("llm: Config needs APIs, Meter, Grant and Dial")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Timeouts = c.Timeouts.orDefaults()
	g := &Gateway{config: c, limiters: newLimiters(), serverStates: newServerStates(), parseSlots: make(chan struct{}, maxParses)}
	g.setup.Store(&setup{})
	return g, nil
}

// ServeHTTP serves one request of the guest in its context. It panics with [http.ErrAbortHandler] to cut off an answer that must
// not appear complete.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	api, e, found := g.find(r)
	guest, err := caisson.GuestOf(r.Context())
	if err != nil {
		api.Dialect.Error(w, &dialect.Refusal{Status: http.StatusUnauthorized, Code: "unauthorized", Message: "this request did not come from a known sandbox"})
		return
	}
	if !found {
		err = refuse(http.StatusNotFound, "not_found", "%s %.80q is no part of the APIs that this gateway serves", r.Method, r.URL.EscapedPath())
	} else {
		err = g.serve(w, r, guest, api, e)
	}
	if err != nil {
		api.Dialect.Error(w, dialect.AsRefusal(err))
	}
}

// find returns the API and the endpoint of a request. If found is false, api is the one whose format to use for the error.
func (g *Gateway) find(r *http.Request) (api *API, e dialect.Endpoint, found bool) {
	path := r.URL.EscapedPath()
	apis := g.config.APIs
	for i := range apis {
		marked := apis[i].MarkerHeader != "" && r.Header[http.CanonicalHeaderKey(apis[i].MarkerHeader)] != nil
		if marked {
			if e, ok := apis[i].Dialect.Endpoint(r.Method, path); ok {
				return &apis[i], e, true
			}
		}
		if marked || api == nil {
			api = &apis[i]
		}
	}
	for i := range apis {
		if e, ok := apis[i].Dialect.Endpoint(r.Method, path); ok {
			return &apis[i], e, true
		}
	}
	return api, dialect.Endpoint{}, false
}
