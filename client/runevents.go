package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/sse"
)

// WatchRun implements [caisson.Runs]. A lost connection is restored without missing or repeating an event; if that fails for
// some seconds, the channel is closed.
func (r runs) WatchRun(ctx context.Context, id caisson.ID, after int64) (<-chan caisson.RunEvent, error) {
	body, err := r.openEvents(ctx, id, after)
	if err != nil {
		return nil, err
	}
	out := make(chan caisson.RunEvent)
	go func() {
		defer close(out)
		r.follow(ctx, id, body, after, out)
	}()
	return out, nil
}

// openEvents requests the events of a run whose sequence number is greater than after.
func (r runs) openEvents(ctx context.Context, id caisson.ID, after int64) (io.ReadCloser, error) {
	return r.c.openStream(ctx, request{
		method: http.MethodGet, path: []string{"runs", string(id), "events"}, query: url.Values{"after": {strconv.FormatInt(after, 10)}},
	})
}

// follow sends the events in body to out, and then those of new connections, until the server has ended a stream regularly, ctx
// ends, or the connection cannot be restored.
func (r runs) follow(ctx context.Context, id caisson.ID, body io.ReadCloser, after int64, out chan<- caisson.RunEvent) {
	for failures := 0; failures <= maxReconnects; {
		last, err := forwardRunEvents(ctx, body, after, out)
		body.Close()
		if err == nil || ctx.Err() != nil {
			return
		}
		if last > after {
			after, failures = last, 0
		}
		for body = nil; body == nil; {
			if failures++; failures > maxReconnects {
				return
			}
			select {
			case <-time.After(time.Duration(failures) * 100 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			if body, err = r.openEvents(ctx, id, after); err != nil {
				if caisson.KindOf(err) != caisson.Unavailable {
					return
				}
				body = nil
			}
		}
	}
}

// forwardRunEvents sends the events in body whose sequence number is greater than seq to out, and returns the number of the last
// one sent, or seq. The error is nil if the server has ended the stream regularly.
func forwardRunEvents(ctx context.Context, body io.Reader, seq int64, out chan<- caisson.RunEvent) (last int64, err error) {
	in := sse.NewReader(body, protocol.MaxRunEvent)
	for {
		e, err := in.Next()
		if errors.Is(err, io.EOF) {
			return seq, nil
		}
		if err != nil {
			return seq, err
		}
		var event caisson.RunEvent
		if err := json.Unmarshal(e.Data, &event); err != nil {
			return seq, err
		}
		if event.Seq <= seq {
			continue // a server that repeats events must not cause duplicates
		}
		select {
		case out <- event:
			seq = event.Seq
		case <-ctx.Done():
			return seq, ctx.Err()
		}
	}
}
