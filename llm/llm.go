// Package llm is the model gateway: the endpoint at which sandboxes find models, and the one place where a provider's key
// is used. It knows APIs only as dialects.
//
// A call is read whole, and only what its dialect knows of it goes on. The model is one of the grant's. The most that the call can
// cost is set aside before it is forwarded, with the answer limited to what budgets afford, and what it did cost is in the
// ledger before the guest has the end of the answer: a short answer waits as a whole for the ledger, of a long one the last
// byte, of a stream whatever arrived together with its final event.
//
// The request to the provider is made from nothing: path from the dialect, headers from the dialect, body from what was
// understood. Nothing follows a redirect, no proxy is taken from the environment, no file is opened.
//
// What an answer cost is what the provider says. Where it does not say, the row is marked as estimated. What is set aside while
// the call is under way is always the most that it can cost:
//
//   - The connection broke before there was a status, or an answer broke off: the input that the provider stated at the
//     beginning, else an estimate from the request's text (a token for 3 bytes, 1600 for an image). Of a stream as many tokens of
//     output as bytes of it were seen, and 500 for each second, because models reason without showing it, but never more than was
//     granted; of other answers all the output that was granted, because providers complete them. Budgets count the bound of the
//     input and all the output that was granted, so that they hold whatever the text was.
//   - An answer came to its end without saying: the bound of the input; of a stream as many tokens of output as bytes of it were
//     seen, and 500 for each second, but never more than was granted; of other answers, and of streams without an end of their
//     own, all the output that was granted.
//   - The provider answered with an error: nothing, if it is the API's own (JSON) or below 500; all that was set aside if
//     something between broke (502, 504 and others that are not JSON, except 503).
//
// A guest that goes away does not end its call at the provider, as that does not make it cheaper with all of them: the answer
// is read to its end, which says what it cost. That takes at most [Timeouts].Linger, and ends with the guest's grant, as
// when its sandbox does; then the answer has broken off.
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
	"github.com/caisson-dev/caisson/llm/dialect"
)

// Config is what a gateway is made of.
type Config struct {
	// APIs are those that are served; of two that have the same path the first is taken. Required.
	APIs []API
	// Meter is asked before each call and told after it. Required.
	Meter caisson.Meter
	// Grant returns what a guest may use now; nil is nothing. Required. It is called for each request and must not block.
	Grant func(ctx context.Context, g caisson.Guest) *caisson.ModelGrant
	// Dial connects to providers; addr is host:port with a name that it resolves. Required.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Local makes what answers for a provider of kind scripted. nil: there can be none.
	Local func(p caisson.Provider, script string) (http.Handler, error)
	// Roots are the authorities that are trusted for providers. nil: the system's, which needs files.
	Roots *x509.CertPool
	// Record returns where to write the prompts and answers of a guest whose grant says so: one JSON object per line and
	// call, of at most a few MiB, in one Write. nil, or a nil Writer, records nothing.
	Record func(g caisson.Guest) io.Writer
	// Log gets one line per call at debug level, never prompts. nil: none.
	Log      *slog.Logger
	Timeouts Timeouts
}

// An API is a dialect and who speaks it.
type API struct {
	Dialect dialect.Dialect
	// Kinds are those of the providers that speak it, besides scripted.
	Kinds []string
	// Mark is a header that only its clients send. It tells two APIs with the same path apart (GET /v1/models). May be "".
	Mark string
}

// Timeouts bound how long a call waits; zero values mean the defaults.
type Timeouts struct {
	Connect time.Duration // to a provider; 10 s
	Header  time.Duration // until the provider begins its answer; 10 min
	Idle    time.Duration // between two pieces of an answer, and for the guest to take one; 5 min
	Body    time.Duration // for the guest to send its request; 60 s
	Linger  time.Duration // for the rest of an answer whose guest went away; 60 s
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
	config Config
	setup  atomic.Pointer[setup]
	change sync.Mutex // held by Configure
	seats  seats
	states states
	memory memory
	parses chan struct{} // holds one for each large body that is being parsed
}

var _ http.Handler = (*Gateway)(nil)

// New returns a gateway that knows no model until Configure is called.
func New(c Config) (*Gateway, error) {
	if len(c.APIs) == 0 || c.Meter == nil || c.Grant == nil || c.Dial == nil {
		return nil, errors.New("llm: Config needs APIs, Meter, Grant and Dial")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Timeouts = c.Timeouts.orDefaults()
	g := &Gateway{config: c, seats: newSeats(), states: newStates(), parses: make(chan struct{}, maxParses)}
	g.setup.Store(&setup{})
	return g, nil
}

// ServeHTTP serves one request of the guest in its context. It panics with [http.ErrAbortHandler] to cut an answer off that
// must not look complete.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	api, e, found := g.find(r)
	guest, err := caisson.GuestOf(r.Context())
	if err != nil {
		api.Dialect.Error(w, &dialect.Refusal{Status: http.StatusUnauthorized, Code: "unauthorized", Message: "this request did not come from a sandbox that is known here"})
		return
	}
	if !found {
		err = refuse(http.StatusNotFound, "not_found", "%s %.80q is no part of the APIs that this gateway serves", r.Method, r.URL.EscapedPath())
	} else {
		err = g.serve(w, r, guest, api, e)
	}
	if err != nil {
		api.Dialect.Error(w, dialect.Refused(err))
	}
}

// find returns the API that a request is for. If there is none, it returns the one in whose shape to say so.
func (g *Gateway) find(r *http.Request) (api *API, e dialect.Endpoint, found bool) {
	path := r.URL.EscapedPath()
	apis := g.config.APIs
	for i := range apis {
		marked := apis[i].Mark != "" && r.Header[http.CanonicalHeaderKey(apis[i].Mark)] != nil
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
