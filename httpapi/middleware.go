package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// bodyTimeout is how long a client may take to send a whole body, unless the handler reads it with [upload].
const bodyTimeout = 30 * time.Second

// drainTimeout is how long the rest of an upload is read and discarded after an error, so that the client gets the response.
const drainTimeout = 30 * time.Second

// uploadTimeout is how long the client may take to send the next data of an upload. It is long because a person or a slow
// program may produce the data.
const uploadTimeout = 10 * time.Minute

// middleware returns the handler of all requests of a listener. Before it calls a route, it limits the time for the body, refuses
// requests of other web sites and authenticates the caller. Only /healthz needs no authentication.
func (a *API) middleware(authenticate func(*http.Request) (caisson.Caller, *caisson.Token, error)) http.Handler {
	return http.HandlerFunc(func(raw http.ResponseWriter, r *http.Request) {
		w := &responseTracker{ResponseWriter: raw}
		defer a.router.recover(w, r)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if r.Body != http.NoBody {
			ctl := http.NewResponseController(raw)
			// The deadline also limits how long the server waits for the rest of a body that no handler reads.
			ctl.SetReadDeadline(time.Now().Add(bodyTimeout))
			// The body is replaced in a copy of r: net/http inspects the body of its own request to find out whether the client
			// still waits for permission to send it.
			r = r.WithContext(r.Context())
			r.Body = &deadlineBody{ReadCloser: r.Body, ctl: ctl}
		}
		if err := checkOrigin(r); err != nil {
			a.router.fail(w, r, err)
			return
		}
		if r.Method == http.MethodGet && r.URL.Path == "/healthz" {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			io.WriteString(w, "ok\n")
			return
		}
		caller, token, err := authenticate(r)
		ctx := caisson.WithCaller(r.Context(), caller)
		if err == nil && token != nil {
			var end func()
			if ctx, end, err = a.calls.begin(ctx, token); err == nil {
				defer end()
			}
		}
		if err != nil {
			switch caisson.KindOf(err) {
			case caisson.Exhausted:
				w.Header().Set("Retry-After", "1")
				w.Header().Set("Connection", "close")
			case caisson.Unauthed:
				w.Header().Set("Connection", "close") // frees the connection for other clients
			}
			a.router.fail(w, r, err)
			return
		}
		a.router.serve(w, r.WithContext(ctx))
	})
}

// serve dispatches r to its route. ServeMux alone would answer unknown paths and methods in plain text and redirect unclean
// paths.
func (rt *router) serve(w *responseTracker, r *http.Request) {
	escaped := r.URL.EscapedPath()
	if _, pattern := rt.mux.Handler(r); pattern == "" || path.Clean(escaped) != escaped || r.Method == http.MethodHead {
		below := "" // appended to the error message if the path is not below the API's prefix
		if !strings.HasPrefix(r.URL.Path, protocol.Prefix) {
			below = "; all requests are below " + protocol.Prefix
		}
		rt.fail(w, r, caisson.Errorf(caisson.NotFound, protocol.UnknownRequest+"%.10s %.100q%s", r.Method, r.URL.Path, below))
		return
	}
	rt.mux.ServeHTTP(w, r)
}

// recover turns a panic into a response with status 500, or into a broken connection if the response has begun.
func (rt *router) recover(w *responseTracker, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v)
	}
	if r.Context().Err() == nil {
		rt.log.ErrorContext(r.Context(), "request panicked", "method", r.Method, "path", r.URL.Path, "panic", v,
			"stack", string(debug.Stack()))
	}
	if w.wrote {
		panic(http.ErrAbortHandler)
	}
	writeError(w, protocol.ProblemOf(caisson.Wrap(errors.New("panic"), caisson.Internal, "internal error; the daemon's log has the details")))
}

// problem returns the error response for err, and logs err if it is a server error.
func (rt *router) problem(ctx context.Context, err error) *protocol.Problem {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		// Either the client has disconnected and will not read the response, or the API was closed.
		err = caisson.Wrap(err, caisson.Unavailable, "the daemon is stopping; try again")
	}
	p := protocol.ProblemOf(err)
	if p.Status >= http.StatusInternalServerError {
		level := slog.LevelError
		if ctx.Err() != nil {
			level = slog.LevelDebug // the error is a consequence of the client's disconnection
		}
		caller, _ := caisson.CallerOf(ctx)
		rt.log.Log(ctx, level, "request failed", "code", string(p.Code), "account", caller.Account, "err", err)
	}
	return p
}

// fail writes the error response for err, and then drains an upload that is not complete.
func (rt *router) fail(w *responseTracker, r *http.Request, err error) {
	p := rt.problem(r.Context(), err)
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	body, ok := r.Body.(*deadlineBody)
	drain := ok && body.hasMore(r.Header) && body.ctl.EnableFullDuplex() == nil
	writeError(w, p)
	if drain {
		body.drain()
	}
}

// responseTracker records whether the response has begun.
type responseTracker struct {
	http.ResponseWriter
	wrote bool // the response has begun
}

func (t *responseTracker) WriteHeader(status int) {
	t.wrote = true
	t.ResponseWriter.WriteHeader(status)
}

func (t *responseTracker) Write(b []byte) (int, error) {
	t.wrote = true
	return t.ResponseWriter.Write(b)
}

// Unwrap lets [http.ResponseController] reach flushing, deadlines and hijacking.
func (t *responseTracker) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// deadlineBody is the body of a request. It clears the read deadline at the end of the body. After that, the server reads only to
// detect that the client has disconnected, and it would take an expired deadline for a disconnection.
type deadlineBody struct {
	io.ReadCloser
	ctl         *http.ResponseController
	readTimeout time.Duration // timeout of each read; 0 means that the deadline is not changed
	started     bool          // part of the body has been read
	complete    bool          // the whole body has been read
}

func (b *deadlineBody) Read(p []byte) (int, error) {
	if b.readTimeout > 0 {
		b.ctl.SetReadDeadline(time.Now().Add(b.readTimeout))
	}
	n, err := b.ReadCloser.Read(p)
	b.started = true
	if errors.Is(err, io.EOF) {
		b.complete = true
		b.ctl.SetReadDeadline(time.Time{})
	}
	return n, err
}

// hasMore reports whether the client may still be sending data of an upload. It returns false if the client waits for 100
// Continue, because reading would make the server send that response.
func (b *deadlineBody) hasMore(h http.Header) bool {
	return b.readTimeout > 0 && !b.complete && (b.started || h.Get("Expect") == "")
}

// drain flushes the response and reads the rest of the body, for at most drainTimeout: if the connection were closed before the
// client has sent everything, the response would be lost.
func (b *deadlineBody) drain() {
	if b.ctl.Flush() != nil {
		return
	}
	b.readTimeout = 0
	b.ctl.SetReadDeadline(time.Now().Add(drainTimeout))
	io.Copy(io.Discard, b) // an error is ignored, because the response has been sent
}

// upload returns the body of r for reading at the client's pace, with a timeout only for each read. At most limit bytes can be
// read.
func upload(w http.ResponseWriter, r *http.Request, limit int64) io.Reader {
	if b, ok := r.Body.(*deadlineBody); ok {
		b.readTimeout = uploadTimeout
	}
	return http.MaxBytesReader(w, r.Body, limit)
}
