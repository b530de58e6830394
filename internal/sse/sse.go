// Package sse parses streams of server-sent events as defined by the WHATWG HTML standard, section 9.2.6, in bounded memory.
package sse

import (
	"bytes"
	"errors"
	"io"
)

// maxField is the number of bytes that are kept of an event's id or name.
const maxField = 256

// An Event is one event. Its slices are valid until more of the stream is parsed.
type Event struct {
	ID   []byte // value of the event's last "id" field that contains no NUL, at most maxField bytes; empty if it has none
	Name []byte // value of the event's last "event" field, at most maxField bytes; empty if it has none
	Data []byte // values of the event's "data" fields, joined by line feeds; at most [Splitter.Max] bytes
	Lost int64  // number of bytes of data that were dropped because they exceed [Splitter.Max]
}

// A Splitter parses a stream that is written to it in pieces of any size. Lines end with CR, LF or CRLF, and an event ends
// with an empty line. A byte order mark at the beginning of the stream, comments, unknown fields, events without data and an
// event that the stream does not complete are skipped. So is "retry", because all callers have their own rules for
// reconnecting. A Splitter must not be used by several goroutines at once.
type Splitter struct {
	Max int // maximum size of an event's data, in bytes

	event   Event  // the current event
	open    bool   // event has a field, and its end has not been parsed
	hasData bool   // event has a "data" field
	line    []byte // the beginning of the current line, at most Max+16 bytes
	lost    int64  // number of bytes of the current line that are not in line
	cr      bool   // the last byte was CR; an LF after it belongs to the same line end
	begun   bool   // the first line has ended
}

// Write parses the next piece of the stream and calls each for every event that it completes.
func (s *Splitter) Write(p []byte, each func(Event)) {
	for len(p) > 0 {
		var ended bool
		if p, ended = s.next(p); ended {
			each(s.event)
		}
	}
}

// next parses p up to the end of the first event that ends in it, or all of p, and returns the rest.
func (s *Splitter) next(p []byte) (rest []byte, ended bool) {
	for len(p) > 0 && !ended {
		after := s.cr
		if s.cr = false; after && p[0] == '\n' {
			p = p[1:]
			continue
		}
		near := p[:min(len(p), 1<<10)] // limits the length of each search for LF, which is repeated after each CR
		end := len(near)
		if lf := bytes.IndexByte(near, '\n'); lf >= 0 {
			end = lf
		}
		if cr := bytes.IndexByte(near[:end], '\r'); cr >= 0 {
			end = cr
		}
		s.appendToLine(near[:end])
		if p = p[end:]; end < len(near) {
			s.cr = p[0] == '\r'
			p, ended = p[1:], s.finishLine()
		}
	}
	return p, ended
}

// appendToLine appends p to the current line. Of a comment line, only the first piece is kept.
func (s *Splitter) appendToLine(p []byte) {
	if bytes.HasPrefix(s.text(), []byte{':'}) {
		return
	}
	// Max does not include the byte order mark and the name of the field, which have at most 16 bytes.
	n := min(len(p), s.Max+16-len(s.line))
	s.line = append(s.line, p[:n]...)
	s.lost += int64(len(p) - n)
}

// text returns the current line without the byte order mark.
func (s *Splitter) text() []byte {
	if s.begun {
		return s.line
	}
	return bytes.TrimPrefix(s.line, []byte("\ufeff"))
}

// finishLine parses the current line, and reports whether it ends an event.
func (s *Splitter) finishLine() (ended bool) {
	line, lost := s.text(), s.lost
	s.line, s.lost, s.begun = s.line[:0], 0, true
	if len(line) == 0 {
		ended, s.open = s.open && s.hasData, false
		return ended
	}
	field, value, _ := bytes.Cut(line, []byte{':'})
	value = bytes.TrimPrefix(value, []byte{' '})
	switch string(field) {
	case "data":
		e := s.currentEvent()
		if s.hasData {
			s.add([]byte{'\n'})
		}
		s.hasData = true
		s.add(value)
		e.Lost += lost
	case "event":
		e := s.currentEvent()
		e.Name = append(e.Name[:0], value[:min(len(value), maxField)]...)
	case "id":
		if e := s.currentEvent(); bytes.IndexByte(value, 0) < 0 {
			e.ID = append(e.ID[:0], value[:min(len(value), maxField)]...)
		}
	}
	return false
}

// currentEvent returns the event to which a new field belongs: the current event, or a new one if the current event has ended.
func (s *Splitter) currentEvent() *Event {
	if e := &s.event; !s.open {
		*e = Event{ID: e.ID[:0], Name: e.Name[:0], Data: e.Data[:0]}
		s.open, s.hasData = true, false
	}
	return &s.event
}

// add appends p to the data of the current event, up to Max bytes.
func (s *Splitter) add(p []byte) {
	n := min(len(p), s.Max-len(s.event.Data))
	s.event.Data = append(s.event.Data, p[:n]...)
	s.event.Lost += int64(len(p) - n)
}

// ErrTooLong is returned by [Reader.Next] for an event whose data exceeds the limit of the Reader.
var ErrTooLong = errors.New("a server-sent event is larger than it may be")

// A Reader reads events from an [io.Reader], by the rules of a [Splitter]. The number and the length of comments and of other
// skipped lines are not limited; they use bounded memory.
type Reader struct {
	r    io.Reader
	err  error    // the last error of r
	s    Splitter // parses the stream
	buf  []byte   // the buffer into which r is read
	rest []byte   // part of buf that has not been parsed
}

// NewReader returns a Reader that accepts up to limit bytes of data per event.
func NewReader(r io.Reader, limit int) *Reader {
	return &Reader{r: r, s: Splitter{Max: limit}, buf: make([]byte, 16<<10)}
}

// Next returns the next event, or the error of the underlying reader. If the stream ends within a line or an event, the error is
// io.ErrUnexpectedEOF instead of io.EOF.
func (r *Reader) Next() (Event, error) {
	for {
		var ended bool
		r.rest, ended = r.s.next(r.rest)
		s := &r.s
		switch {
		case s.event.Lost > 0, s.lost > 0 && bytes.HasPrefix(s.text(), []byte("data:")):
			return Event{}, ErrTooLong
		case ended:
			return s.event, nil
		case r.err == io.EOF && (s.open || len(s.line) > 0):
			return Event{}, io.ErrUnexpectedEOF
		case r.err != nil:
			return Event{}, r.err
		}
		n, err := r.r.Read(r.buf)
		r.rest, r.err = r.buf[:n], err
	}
}
