package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// bodyTimeout is how long a client may take to send a small body, or one part of a large one.
const bodyTimeout = 30 * time.Second

// drainTime is for how long the rest of an upload is read that has failed already.
const drainTime = 30 * time.Second

// uploadTimeout is how long an upload may make no progress: it may be fed by a person or a slow program.
const uploadTimeout = 10 * time.Minute

// front wraps the routes in everything that is the same for all requests of a listener. Deny by default: authenticate
// decides before any route sees the request, /healthz alone needs nobody.
func (a *API) front(authenticate func(*http.Request) (caisson.Caller, error)) http.Handler {
	return http.HandlerFunc(func(raw http.ResponseWriter, r *http.Request) {
		w := &tracked{ResponseWriter: raw}
		defer a.router.recover(w, r)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if r.Body != http.NoBody {
			ctl := http.NewResponseController(raw)
			// The deadline also bounds how long the server waits for the rest of a body that nobody wants.
			ctl.SetReadDeadline(time.Now().Add(bodyTimeout))
			// On a copy: net/http looks at its own request's body to see whether the client still waits to send it.
			r = r.WithContext(r.Context())
			r.Body = &timedBody{ReadCloser: r.Body, ctl: ctl}
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
		caller, err := authenticate(r)
		if err != nil {
			switch caisson.KindOf(err) {
			case caisson.Exhausted:
				w.Header().Set("Retry-After", "1")
				w.Header().Set("Connection", "close")
			case caisson.Unauthed:
				w.Header().Set("Connection", "close") // others may want its place
			}
			a.router.fail(w, r, err)
			return
		}
		r = r.WithContext(caisson.WithCaller(r.Context(), caller))
		a.router.serve(w, r)
	})
}

// serve hands r to its route. ServeMux would answer unknown paths and methods in plain text and redirect unclean paths.
func (rt *router) serve(w *tracked, r *http.Request) {
	escaped := r.URL.EscapedPath()
	if _, pattern := rt.mux.Handler(r); pattern == "" || path.Clean(escaped) != escaped || r.Method == http.MethodHead {
		rt.fail(w, r, caisson.Errorf(caisson.NotFound, "the API has no %.10s %.100q", r.Method, r.URL.Path))
		return
	}
	rt.mux.ServeHTTP(w, r)
}

// recover turns a panic into a 500, or into a broken connection if the answer has begun.
func (rt *router) recover(w *tracked, r *http.Request) {
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
	rt.write(w, protocol.ProblemOf(caisson.Wrap(errors.New("panic"), caisson.Internal, "internal error; the daemon's log has the details")))
}

// problem returns err as its answer, and logs it if the fault is ours.
func (rt *router) problem(ctx context.Context, err error) *protocol.Problem {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		// The client has gone and will not read this, or the API was closed.
		err = caisson.Wrap(err, caisson.Unavailable, "the daemon is stopping; try again")
	}
	p := protocol.ProblemOf(err)
	if p.Status >= http.StatusInternalServerError {
		level := slog.LevelError
		if ctx.Err() != nil {
			level = slog.LevelDebug // the client left; whatever broke then is a consequence
		}
		caller, _ := caisson.CallerOf(ctx)
		rt.log.Log(ctx, level, "request failed", "code", string(p.Code), "account", caller.Account, "err", err)
	}
	return p
}

// fail answers with err.
func (rt *router) fail(w *tracked, r *http.Request, err error) {
	p := rt.problem(r.Context(), err)
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	body, ok := r.Body.(*timedBody)
	drain := ok && body.coming(r.Header) && body.ctl.EnableFullDuplex() == nil
	rt.write(w, p)
	if drain {
		body.drain()
	}
}

// tracked remembers whether an answer has begun.
type tracked struct {
	http.ResponseWriter
	wrote bool
}

func (t *tracked) WriteHeader(status int) {
	t.wrote = true
	t.ResponseWriter.WriteHeader(status)
}

func (t *tracked) Write(b []byte) (int, error) {
	t.wrote = true
	return t.ResponseWriter.Write(b)
}

// Unwrap lets [http.ResponseController] reach flushing, deadlines and hijacking.
func (t *tracked) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// timedBody lifts the read deadline at the end of the body: from then on the server reads only to notice that the client
// has gone, and a deadline there would look like that.
type timedBody struct {
	io.ReadCloser
	ctl  *http.ResponseController
	pace time.Duration // if set, every read gets this long
	some bool          // it has been read from
	all  bool          // to its end
}

func (b *timedBody) Read(p []byte) (int, error) {
	if b.pace > 0 {
		b.ctl.SetReadDeadline(time.Now().Add(b.pace))
	}
	n, err := b.ReadCloser.Read(p)
	b.some = true
	if errors.Is(err, io.EOF) {
		b.all = true
		b.ctl.SetReadDeadline(time.Time{})
	}
	return n, err
}

// coming reports whether this is an upload of which there may be more. One that waits for leave to send it would get that by reading.
func (b *timedBody) coming(h http.Header) bool {
	return b.pace > 0 && !b.all && (b.some || h.Get("Expect") == "")
}

// drain reads what is left, for a while, once the answer is written: a connection that is closed before takes the answer with it.
func (b *timedBody) drain() {
	if b.ctl.Flush() != nil {
		return
	}
	b.pace = 0
	b.ctl.SetReadDeadline(time.Now().Add(drainTime))
	io.Copy(io.Discard, b) // whatever comes of it: the answer is out
}

// upload returns the body of r for reading at the client's pace, at most limit bytes.
func upload(w http.ResponseWriter, r *http.Request, limit int64) io.Reader {
	if b, ok := r.Body.(*timedBody); ok {
		b.pace = uploadTimeout
	}
	return http.MaxBytesReader(w, r.Body, limit)
}
