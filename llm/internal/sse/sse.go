// Package sse splits a stream of server-sent events into events while it passes, in bounded memory.
package sse

import "bytes"

// DefaultMax is how many bytes of an event are kept if nothing else is said.
const DefaultMax = 4 << 20

// An Event is one event. Its slices are only valid during the call that got it.
type Event struct {
	Name []byte // of the last "event" line; empty if there was none
	Data []byte // "data" lines, joined by line feeds; at most Max bytes
	Lost int64  // bytes of data beyond that, which were dropped
}

// A Splitter finds events as the HTML standard defines them: lines end with CR, LF or both, a byte order mark at the
// beginning and comments are skipped, and an event ends with an empty line; what comes after the last of these is none. The events are
// the same whatever the pieces in which the stream is written. The zero value is ready to use, by one goroutine at a time.
type Splitter struct {
	// Max bounds the bytes that are kept of a line and of an event's data; 0 means DefaultMax.
	Max int

	line  []byte // the beginning of a line of which the end has not been written yet
	data  []byte
	name  []byte
	lost  int64 // of the line
	gone  int64 // of the event's data
	has   bool  // the event has a data line
	cr    bool  // the last byte was CR: LF after it belongs to it
	begun bool  // the first line is over
}

// Write takes the next piece of the stream and calls each for all events that it completes.
func (s *Splitter) Write(p []byte, each func(Event)) {
	if s.cr && len(p) > 0 {
		s.cr = false
		if p[0] == '\n' {
			p = p[1:]
		}
	}
	lf := -1 // where the next line feed at or after i is; looked for once only, as there may be many CR before it
	for i := 0; i < len(p); {
		if lf < i {
			if lf = bytes.IndexByte(p[i:], '\n'); lf < 0 {
				lf = len(p)
			} else {
				lf += i
			}
		}
		end := lf
		if cr := bytes.IndexByte(p[i:lf], '\r'); cr >= 0 {
			end = i + cr
		}
		if end == len(p) {
			s.keep(p[i:])
			return
		}
		s.finish(p[i:end], each)
		i = end + 1
		if p[end] == '\r' {
			switch {
			case i == len(p):
				s.cr = true
			case p[i] == '\n':
				i++
			}
		}
	}
}

func (s *Splitter) max() int {
	if s.Max > 0 {
		return s.Max
	}
	return DefaultMax
}

// keep adds to the line that is not finished.
func (s *Splitter) keep(p []byte) {
	// "data: " does not count, so that lines and data have the same bound.
	n := min(len(p), max(0, s.max()+16-len(s.line)))
	s.line = append(s.line, p[:n]...)
	s.lost += int64(len(p) - n)
}

// finish handles the line that ends with p.
func (s *Splitter) finish(p []byte, each func(Event)) {
	if len(s.line) > 0 || s.lost > 0 || len(p) > s.max()+16 {
		s.keep(p)
		p = s.line
	}
	lost := s.lost
	s.line, s.lost = s.line[:0], 0
	if !s.begun {
		s.begun = true
		p = bytes.TrimPrefix(p, []byte("\ufeff"))
	}
	if len(p) == 0 {
		s.dispatch(each)
		return
	}
	field, value, _ := bytes.Cut(p, []byte{':'})
	value = bytes.TrimPrefix(value, []byte{' '})
	switch string(field) {
	case "data":
		s.append(value, lost)
	case "event":
		s.name = append(s.name[:0], value[:min(len(value), 256)]...)
	}
}

func (s *Splitter) append(value []byte, lost int64) {
	if s.has {
		s.add([]byte{'\n'})
	}
	s.has = true
	s.add(value)
	s.gone += lost
}

func (s *Splitter) add(p []byte) {
	n := min(len(p), max(0, s.max()-len(s.data)))
	s.data = append(s.data, p[:n]...)
	s.gone += int64(len(p) - n)
}

func (s *Splitter) dispatch(each func(Event)) {
	if s.has {
		each(Event{Name: s.name, Data: s.data, Lost: s.gone})
	}
	s.name, s.data, s.gone, s.has = s.name[:0], s.data[:0], 0, false
}
