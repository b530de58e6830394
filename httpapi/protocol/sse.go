package protocol

import (
	"bytes"
	"fmt"
)

// The names of server-sent events.
const (
	EventProgress = "progress" // its data is a caisson.Progress
	EventResult   = "result"   // its data is the answer; the last event
	EventError    = "error"    // its data is a Problem; the last event
	EventHappened = "event"    // its data is a caisson.Event, its id the sequence number of that event
	EventFile     = "file"     // its data is a caisson.FileEvent
)

// MaxEvent is the maximum size of the data of one server-sent event in bytes; for events of runs it is [MaxRunEvent].
const MaxEvent = 4 << 20

// An SSE is one server-sent event.
type SSE struct {
	ID   int64  // id of the event; 0 if it has none
	Name string // name of the event; "" if it has none
	Data []byte // data of the event, one line without line breaks
}

// Encode returns e in wire form. Data must not contain line breaks, which JSON never does.
func (e SSE) Encode() []byte {
	var b bytes.Buffer
	if e.ID != 0 {
		fmt.Fprintf(&b, "id: %d\n", e.ID)
	}
	if e.Name != "" {
		fmt.Fprintf(&b, "event: %s\n", e.Name)
	}
	fmt.Fprintf(&b, "data: %s\n\n", e.Data)
	return b.Bytes()
}
