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

// maxReconnects is the maximum number of consecutive tries to connect again after a connection was lost.
const maxReconnects = 5

// A watch is a stream of events that continues over a new connection when its connection is lost.
type watch[T any] struct {
	// open requests the events whose sequence numbers are greater than after.
	open    func(ctx context.Context, after int64) (io.ReadCloser, error)
	seq     func(T) int64 // returns the sequence number of an event
	name    string        // name of the server-sent events to return; "" means all
	limit   int           // maximum size of an event, in bytes
	endless bool          // the events never end, so the end of a response means that the connection was lost
}

// start returns a channel that receives the events whose sequence numbers are greater than after. If the connection is lost, it
// connects again, and no event is missed or repeated. If that fails for some seconds, the channel is closed.
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

// follow sends the events in body, and then those from new connections, to out. It returns when the events or ctx have ended, or
// when it cannot connect again.
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

// forward sends the events in body whose sequence numbers are greater than seq to out. It returns the number of the last event
// that it has sent, or seq if there was none. The error is nil if the events have ended.
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
			continue // the server has repeated an event that was sent to out before
		}
		select {
		case out <- event:
			seq = w.seq(event)
		case <-ctx.Done():
			return seq, ctx.Err()
		}
	}
}
