package protocol

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// The names of server-sent events.
const (
	EventProgress = "progress" // data is a caisson.Progress
	EventResult   = "result"   // data is the answer; the last event
	EventError    = "error"    // data is a Problem; the last event
	EventHappened = "event"    // data is a caisson.Event, the id its sequence number
	EventFile     = "file"     // data is a caisson.FileEvent
)

// MaxEvent bounds the size of one server-sent event in bytes; those of runs are bounded by [MaxRunEvent].
const MaxEvent = 4 << 20

// An SSE is one server-sent event.
type SSE struct {
	ID   int64  // 0 if it has none
	Name string // "" if it has none
	Data []byte // one line
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

// ErrEvent says that a stream of events is malformed.
var ErrEvent = errors.New("malformed event stream")

// An SSEReader reads server-sent events.
type SSEReader struct {
	r *bufio.Reader
	// Max bounds one event in bytes; [MaxEvent] at first.
	Max int
}

// NewSSEReader returns a reader of the events in r.
func NewSSEReader(r io.Reader) *SSEReader { return &SSEReader{r: bufio.NewReader(r), Max: MaxEvent} }

// Next returns the next event. A stream that ends between events ends with io.EOF, one that is cut off within an event
// with io.ErrUnexpectedEOF.
func (s *SSEReader) Next() (SSE, error) {
	var e SSE
	var data [][]byte
	started, size := false, 0
	for {
		line, err := s.line(&size)
		if err != nil {
			if errors.Is(err, io.EOF) && (started || len(line) > 0) {
				err = io.ErrUnexpectedEOF
			}
			return SSE{}, err
		}
		if len(line) == 0 {
			if started {
				e.Data = bytes.Join(data, []byte("\n"))
				return e, nil
			}
			size = 0
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			e.Name, started = string(value), true
		case "data":
			data, started = append(data, value), true
		case "id":
			id, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil {
				return SSE{}, fmt.Errorf("%w: id %.40q", ErrEvent, value)
			}
			e.ID, started = id, true
		default: // comments, and fields of later versions
		}
	}
}

// line returns the next line without its end, as a copy; size is what the event has used of its bytes.
func (s *SSEReader) line(size *int) ([]byte, error) {
	var line []byte
	for {
		part, err := s.r.ReadSlice('\n')
		if *size += len(part); *size > s.Max {
			return nil, fmt.Errorf("%w: an event of more than %d bytes", ErrEvent, s.Max)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}
