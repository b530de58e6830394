package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/sse"
)

// events implements [caisson.Events] by requests to a daemon.
type events struct{ c *requester }

// Watch implements [caisson.Events]. If the connection is lost, it connects again, and no event is missed or repeated.
func (e events) Watch(ctx context.Context, subject string, after int64) (<-chan caisson.Event, error) {
	return watch[caisson.Event]{
		open: func(ctx context.Context, after int64) (io.ReadCloser, error) {
			return e.c.openStream(ctx, get("events").withParam("subject", subject).withParam("after", strconv.FormatInt(after, 10)))
		},
		seq: func(e caisson.Event) int64 { return e.Seq }, name: protocol.EventHappened, limit: protocol.MaxEvent, endless: true,
	}.start(ctx, after)
}

// forwardEvents reads server-sent events from r, decodes the data of those with this name, and sends it to out. It returns when r
// or ctx ends, or after an error.
func forwardEvents[T any](ctx context.Context, r io.Reader, name string, out chan<- T) {
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
		if json.Unmarshal(e.Data, &v) != nil {
			return
		}
		select {
		case out <- v:
		case <-ctx.Done():
			return
		}
	}
}

// callWithProgress sends a request for a long operation, calls progress with each report of progress, and returns the result.
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
			return zero, incompleteResponse(ctx, err)
		}
		switch string(e.Name) {
		case protocol.EventProgress:
			var p caisson.Progress
			if err := json.Unmarshal(e.Data, &p); err != nil {
				return zero, incompleteResponse(ctx, err)
			}
			if progress != nil {
				progress(p)
			}
		case protocol.EventResult:
			var v T
			if err := json.Unmarshal(e.Data, &v); err != nil {
				return zero, incompleteResponse(ctx, err)
			}
			return v, nil
		case protocol.EventError:
			return zero, protocol.ParseProblem(http.StatusInternalServerError, e.Data)
		}
	}
}
