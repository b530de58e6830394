package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/sse"
)

// events implements [caisson.Events] by requests to a daemon.
type events struct{ c *requester }

// maxReconnects is the number of consecutive attempts to restore a lost connection.
const maxReconnects = 5

// Watch implements [caisson.Events]. A lost connection is restored without missing or repeating an event; if that fails for
// some seconds, the channel is closed.
func (e events) Watch(ctx context.Context, subject string, after int64) (<-chan caisson.Event, error) {
	body, err := e.open(ctx, subject, after)
	if err != nil {
		return nil, err
	}
	out := make(chan caisson.Event)
	go func() {
		defer close(out)
		e.follow(ctx, body, subject, after, out)
	}()
	return out, nil
}

// open requests the events about subject whose sequence number is greater than after.
func (e events) open(ctx context.Context, subject string, after int64) (io.ReadCloser, error) {
	q := url.Values{"after": {strconv.FormatInt(after, 10)}}
	if subject != "" {
		q.Set("subject", subject)
	}
	return e.c.openStream(ctx, request{method: http.MethodGet, path: []string{"events"}, query: q})
}

// follow sends the events in body to out, and then those of new connections, until ctx ends or the connection cannot be restored.
func (e events) follow(ctx context.Context, body io.ReadCloser, subject string, after int64, out chan<- caisson.Event) {
	for failures := 0; ; {
		if body != nil {
			for event := range eventData[caisson.Event](body, protocol.EventHappened) {
				select {
				case out <- event:
					after, failures = event.Seq, 0
				case <-ctx.Done():
				}
				if ctx.Err() != nil {
					break
				}
			}
			body.Close()
		}
		if failures++; failures > maxReconnects {
			return
		}
		select {
		case <-time.After(time.Duration(failures) * 100 * time.Millisecond):
		case <-ctx.Done():
			return
		}
		var err error
		if body, err = e.open(ctx, subject, after); err != nil {
			if caisson.KindOf(err) != caisson.Unavailable {
				return
			}
			body = nil
		}
	}
}

// eventData yields the decoded data of the server-sent events in r that have this name, until r ends or an error occurs.
func eventData[T any](r io.Reader, name string) func(yield func(T) bool) {
	return func(yield func(T) bool) {
		in := sse.NewReader(r, protocol.MaxEvent)
		for {
			e, err := in.Next()
			if err != nil {
				return
			}
			if string(e.Name) != name {
				continue
			}
			var v T
			if json.Unmarshal(e.Data, &v) != nil || !yield(v) {
				return
			}
		}
	}
}

// forwardEvents sends the data of the server-sent events in r that have this name to out, until r or ctx ends.
func forwardEvents[T any](ctx context.Context, r io.Reader, name string, out chan<- T) {
	for v := range eventData[T](r, name) {
		select {
		case out <- v:
		case <-ctx.Done():
			return
		}
	}
}

// callWithProgress sends a request for a long operation, reports its progress and returns its result.
func callWithProgress[T any](ctx context.Context, c *requester, req request, progress func(caisson.Progress)) (T, error) {
	var zero T
	body, err := c.openStream(ctx, req)
	if err != nil {
		return zero, err
	}
	defer body.Close()
	in := sse.NewReader(body, protocol.MaxEvent)
	for {
		e, err := in.Next()
		if err != nil {
			return zero, c.incompleteResponse(ctx, err)
		}
		switch string(e.Name) {
		case protocol.EventProgress:
			var p caisson.Progress
			if err := json.Unmarshal(e.Data, &p); err != nil {
				return zero, c.incompleteResponse(ctx, err)
			}
			if progress != nil {
				progress(p)
			}
		case protocol.EventResult:
			var v T
			if err := json.Unmarshal(e.Data, &v); err != nil {
				return zero, c.incompleteResponse(ctx, err)
			}
			return v, nil
		case protocol.EventError:
			return zero, protocol.ParseProblem(http.StatusInternalServerError, e.Data)
		}
	}
}

// incompleteResponse returns the error for an incomplete or malformed response.
func (c *requester) incompleteResponse(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return caisson.Wrap(err, caisson.Unavailable, "the daemon's answer broke off or is malformed")
}
