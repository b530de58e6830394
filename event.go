package caisson

import (
	"context"
	"time"
)

// An Event is something that happened to an object, in the words of docs/architecture.md: "sandbox.running",
// "snapshot.created", "exec.ended". Data holds no secrets and no output of sandboxes.
type Event struct {
	Seq     int64             `json:"seq" doc:"Ever growing; the cursor for replay"`
	At      time.Time         `json:"at"`
	Account string            `json:"account"`
	Type    string            `json:"type"`
	Subject string            `json:"subject" doc:"ID or name of the object"`
	Data    map[string]string `json:"data,omitempty"`
}

// Events is the record of what happened.
type Events interface {
	// Watch returns the events of the caller's account after seq, stored ones first, then new ones as they happen, until
	// ctx ends; the channel is then closed. subject "" means every object. A reader that is too slow misses nothing: it
	// is served from the store again.
	Watch(ctx context.Context, subject string, after int64) (<-chan Event, error)
}
