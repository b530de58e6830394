package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/sse"
)

// maxReconnects is the number of consecutive attempts to restore a lost connection.
const maxReconnects = 5

// A watch is a stream of events that is continued over several connections.
type watch[T any] struct {
	open    func(ctx context.Context, after int64) (io.ReadCloser, error) // requests the events whose sequence number is greater than after
	seq     func(T) int64                                                 // returns the sequence number of an event
	name    string                                                        // name of the server-sent events; "" means all
	limit   int                                                           // maximum size of an event in bytes
	endless bool                                                          // the end of a stream is a lost connection, not the end of the events
}

// start returns a channel with the events whose sequence number is greater than after. A lost connection is restored without
// missing or repeating an event; if that fails for some seconds, the channel is closed.
func (w watch[T]) start(ctx context.Context, after int64) (<-chan T, error) {
	body, err := w.open(ctx, after)
	if err != nil {
		return nil, err
	}
	out := make(chan T)
	go func() {
		defer close(out)
		w.follow(ctx, body, after, out)
	}()
	return out, nil
}

// follow sends the events in body to out, and then those of new connections, until the events have ended, ctx ends, or the
// connection cannot be restored.
func (w watch[T]) follow(ctx context.Context, body io.ReadCloser, after int64, out chan<- T) {
	for failures := 0; failures <= maxReconnects; {
		last, err := w.forward(ctx, body, after, out)
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
			if body, err = w.open(ctx, after); err != nil {
				if caisson.KindOf(err) != caisson.Unavailable {
					return
				}
				body = nil
			}
		}
	}
}

// forward sends the events in body whose sequence number is greater than seq to out, and returns the number of the last one sent,
// or seq. The error is nil if the events have ended.
func (w watch[T]) forward(ctx context.Context, body io.Reader, seq int64, out chan<- T) (last int64, err error) {
	in := sse.NewReader(body, w.limit)
	for {
		e, err := in.Next()
		if errors.Is(err, io.EOF) && !w.endless {
			return seq, nil
		}
		if err != nil {
			return seq, err
		}
		if w.name != "" && string(e.Name) != w.name {
			continue
		}
		var event T
		if err := json.Unmarshal(e.Data, &event); err != nil {
			return seq, err
		}
		if w.seq(event) <= seq {
			continue // a server that repeats events must not cause duplicates
		}
		select {
		case out <- event:
			seq = w.seq(event)
		case <-ctx.Done():
			return seq, ctx.Err()
		}
	}
}
