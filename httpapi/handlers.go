package httpapi

import (
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-dev/caisson"
)

// withoutInput returns a handler for requests without parameters, which calls do.
func withoutInput[T any](do func(context.Context) (T, error)) func(context.Context, *struct{}) (T, error) {
	return func(ctx context.Context, _ *struct{}) (T, error) { return do(ctx) }
}

// A refParam is the part of a path that refers to an object. Its method returns the name or, if the core accepts ids, the id.
type refParam interface{ ref() string }

// byRef returns a handler that calls do with the reference in the path.
func byRef[P refParam, T any](do func(context.Context, string) (T, error)) func(context.Context, *P) (T, error) {
	return func(ctx context.Context, in *P) (T, error) { return do(ctx, (*in).ref()) }
}

// removeByRef returns a handler that calls do, which has no result, with the reference in the path.
func removeByRef[P refParam](do func(context.Context, string) error) func(context.Context, *P) error {
	return func(ctx context.Context, in *P) error { return do(ctx, (*in).ref()) }
}

// An idParam is the id of an object in a path. Its method returns NotFound for text that is not an id of this kind of object.
type idParam interface{ id() (caisson.ID, error) }

// parseIDParam returns value as an id with this prefix, or NotFound if value is no such id. what is the word for the object in
// the error message.
func parseIDParam(prefix, what, value string) (caisson.ID, error) {
	id, err := caisson.ParseID(prefix, value)
	if err != nil {
		return "", caisson.Errorf(caisson.NotFound, "there is no %s %.40q", what, value)
	}
	return id, nil
}

// byID returns a handler that calls do with the id in the path.
func byID[P idParam, T any](do func(context.Context, caisson.ID) (T, error)) func(context.Context, *P) (T, error) {
	return func(ctx context.Context, in *P) (v T, err error) {
		id, err := (*in).id()
		if err != nil {
			return v, err
		}
		return do(ctx, id)
	}
}

// removeByID returns a handler that calls do, which has no result, with the id in the path.
func removeByID[P idParam](do func(context.Context, caisson.ID) error) func(context.Context, *P) error {
	return func(ctx context.Context, in *P) error {
		id, err := (*in).id()
		if err != nil {
			return err
		}
		return do(ctx, id)
	}
}

// localOnly returns fn as a handler that refuses callers who are not connected over the unix socket; see [requireLocal].
func localOnly[I, T any](fn func(context.Context, *I) (T, error)) func(context.Context, *I) (T, error) {
	return func(ctx context.Context, in *I) (v T, err error) {
		if err := requireLocal(ctx); err != nil {
			return v, err
		}
		return fn(ctx, in)
	}
}

// registerDownloadRoute registers a route whose response is the data that fn opens.
func registerDownloadRoute[I any](rt *router, o huma.Operation, contentType, description string,
	fn func(context.Context, *I) (io.ReadCloser, error),
) {
	registerStreamRoute(rt, withResponse(o, http.StatusOK, contentType, description), func(w http.ResponseWriter, r *http.Request, in *I) error {
		data, err := fn(r.Context(), in)
		if err != nil {
			return err
		}
		return streamBody(w, data, contentType)
	})
}

// registerProgressRoute registers a route whose work takes long. The response is a stream of events: progress, then the result or
// an error. result is the name of T's schema.
func registerProgressRoute[I, T any](rt *router, o huma.Operation, result string, fn func(context.Context, *I, func(caisson.Progress)) (T, error)) {
	o = withEventStream(o, "Events named progress (Progress), then one named result ("+result+") or error (Problem)")
	registerStreamRoute(rt, o, func(w http.ResponseWriter, r *http.Request, in *I) error {
		return serveProgress(rt, w, r, func(ctx context.Context, progress func(caisson.Progress)) (T, error) { return fn(ctx, in, progress) })
	})
}

// streamBody writes the data of rc as the response, as the data arrives, and closes rc.
func streamBody(w http.ResponseWriter, rc io.ReadCloser, contentType string) error {
	defer rc.Close()
	w.Header().Set("Content-Type", contentType)
	// The content is untrusted: browsers must not display it.
	w.Header().Set("Content-Disposition", "attachment")
	w.WriteHeader(http.StatusOK)
	ctl := http.NewResponseController(w)
	if err := ctl.Flush(); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := rc.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := ctl.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
