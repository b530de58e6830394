package protocol

import (
	"bytes"
	"fmt"
)

// The names of server-sent events.
const (
	EventProgress = "progress" // event with a caisson.Progress as its data
	EventResult   = "result"   // last event of a request, with the result as its data
	EventError    = "error"    // last event of a request, with a Problem as its data
	EventHappened = "event"    // event with a caisson.Event as its data, and that event's sequence number as its id
	EventFile     = "file"     // event with a caisson.FileEvent as its data
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
