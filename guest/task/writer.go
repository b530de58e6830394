package task

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// A Writer writes the lines of a task, each with one call of the underlying writer. It is safe for concurrent use.
type Writer struct {
	mu    sync.Mutex // guards the fields below
	w     io.Writer  // the underlying writer
	order lineOrder  // checks the order of the lines
	err   error      // error of the underlying writer; later lines are not written
}

// ErrRefused is wrapped by the error of [Writer.Write] for a line that was not written because a [Reader] would reject it.
var ErrRefused = errors.New("not a line")

// NewWriter returns a Writer that writes lines to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes one line and returns its length in bytes. The error wraps [ErrRefused], or is an error of the underlying writer,
// after which no line is written any more.
func (w *Writer) Write(l Line) (int, error) {
	out := l.encoded()
	if err := out.check(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	b, err := marshal(out)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if b = append(b, '\n'); len(b) > MaxLine {
		return 0, fmt.Errorf("%w: type %s with %d bytes, %d are allowed", ErrRefused, l.Type, len(b), MaxLine)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	if err := w.order.next(&out); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	n, err := w.w.Write(b)
	w.err = err
	return n, err
}

// lineOrder checks that the lines of a task are in a valid order.
type lineOrder struct {
	final, ended, changed bool            // whether there was a line of type assistant_final, end and changes
	marks                 map[string]bool // the values of Mark that have occurred
}

// errEnded is the error for a line after the end line.
var errEnded = errors.New("a line after the end")

// next returns an error if the line w must not follow the previous lines; otherwise it records the line.
func (o *lineOrder) next(w *encodedLine) error {
	if o.ended {
		return errEnded
	}
	switch w.Type {
	case "assistant_final":
		if o.final {
			return errors.New("a second assistant_final")
		}
		o.final = true
	case "text_delta":
		if o.final {
			return errors.New("text after assistant_final")
		}
	case LineMark:
		if o.marks[w.Mark] {
			return fmt.Errorf("a second mark %s", w.Mark)
		}
		if o.marks == nil {
			o.marks = map[string]bool{}
		}
		o.marks[w.Mark] = true
	case LineChanges:
		if o.changed {
			return errors.New("a second line of changes")
		}
		o.changed = true
	case LineEnd:
		if o.final != (w.Error == nil) {
			return errors.New("an end has either assistant_final before it or an error")
		}
		o.ended = true
	}
	return nil
}
