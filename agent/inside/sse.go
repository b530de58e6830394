package inside

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// Bounds of a stream of events, in bytes.
const (
	maxEvent  = 4 << 20
	maxStream = 64 << 20
)

var errTooLong = errors.New("the answer is larger than it may be")

// events reads Server-Sent Events.
type events struct {
	r    *bufio.Reader
	left int64 // bytes that may still come
}

func newEvents(r io.Reader) *events {
	return &events{r: bufio.NewReaderSize(r, 32<<10), left: maxStream}
}

// next returns the data of the next event that has any. At the end it returns what an event that was not ended has, and then io.EOF.
func (e *events) next() ([]byte, error) {
	var data []byte
	some := false
	for {
		line, err := e.line()
		if err != nil {
			if err == io.EOF && some {
				return data, nil
			}
			return nil, err
		}
		if len(line) == 0 {
			if some {
				return data, nil
			}
			continue
		}
		value, ok := bytes.CutPrefix(line, []byte("data"))
		if !ok || len(value) > 0 && value[0] != ':' {
			continue // another field, or a comment
		}
		if some {
			data = append(data, '\n')
		}
		value = bytes.TrimPrefix(bytes.TrimPrefix(value, []byte(":")), []byte(" "))
		if data, some = append(data, value...), true; len(data) > maxEvent {
			return nil, errTooLong
		}
	}
}

// line returns the next line without its end; io.EOF only if there is nothing left at all. It is valid until the next call.
func (e *events) line() ([]byte, error) {
	var long []byte
	for {
		part, err := e.r.ReadSlice('\n')
		if e.left -= int64(len(part)); e.left < 0 || len(long)+len(part) > maxEvent {
			return nil, errTooLong
		}
		switch {
		case err == bufio.ErrBufferFull:
			long = append(long, part...)
			continue
		case err == io.EOF && len(long)+len(part) > 0: // a last line without an end
		case err != nil:
			return nil, err
		}
		if long != nil {
			part = append(long, part...)
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(part, []byte("\n")), []byte("\r")), nil
	}
}
