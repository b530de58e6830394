package task

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/caisson-dev/caisson"
)

// A Reader reads lines that a sandbox sends and that may be hostile. The lines that it returns are within the limits of this
// package and in a valid order. It must be used by one goroutine at a time.
type Reader struct {
	r         *bufio.Reader // stream of the lines
	remaining int64         // number of bytes that may still be read
	n         int           // number of lines that were begun, for error messages
	order     lineOrder     // checks the order of the lines
	err       error         // error that later calls of Next return
}

// NewReader returns a Reader of the lines that r contains. output is the field Output of their task, from which the limit on all
// lines together is derived.
func NewReader(r io.Reader, output caisson.Size) *Reader {
	// Events take at most output, each of two logs four thirds of it in base64, and the last lines a little more than MaxLine.
	limit := 4*min(int64(output), 1<<50) + 4*MaxLine
	return &Reader{r: bufio.NewReaderSize(r, 64<<10), remaining: limit}
}

// Next returns the next line. Returns io.EOF after the end line, and io.ErrUnexpectedEOF if the stream has no end line. Any other
// error describes an invalid line, or comes from the underlying reader. After an error, later calls return the same error.
func (r *Reader) Next() (Line, error) {
	var l Line
	if r.err == nil {
		l, r.err = r.next()
	}
	return l, r.err
}

// next reads, decodes and checks the next line.
func (r *Reader) next() (Line, error) {
	b, err := r.read()
	if err != nil {
		if errors.Is(err, io.EOF) && !r.order.ended {
			err = io.ErrUnexpectedEOF
		}
		return Line{}, err
	}
	var w encodedLine
	if err := unmarshal(b, &w); err != nil {
		return Line{}, fmt.Errorf("line %d: %w", r.n, err)
	}
	if err := errors.Join(w.check(), r.order.next(&w)); err != nil {
		return Line{}, fmt.Errorf("line %d: %w", r.n, err)
	}
	if w.Args, err = compact(w.Args); err != nil {
		return Line{}, fmt.Errorf("line %d: %w", r.n, err)
	}
	return w.decoded(), nil
}

// read returns the next line without its newline. It keeps at most MaxLine bytes in memory.
func (r *Reader) read() ([]byte, error) {
	var line []byte
	for {
		part, err := r.r.ReadSlice('\n')
		if len(part) > 0 && len(line) == 0 {
			r.n++
		}
		if r.remaining -= int64(len(part)); r.remaining < 0 {
			return nil, fmt.Errorf("line %d: the output is too large", r.n)
		}
		if len(line)+len(part) > MaxLine {
			return nil, fmt.Errorf("line %d: longer than %d bytes", r.n, MaxLine)
		}
		switch {
		case err == nil && line == nil:
			return part[:len(part)-1], nil
		case err == nil:
			return append(line, part[:len(part)-1]...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			line = append(line, part...)
		case errors.Is(err, io.EOF) && len(line)+len(part) > 0:
			return nil, io.ErrUnexpectedEOF // the stream ends within a line
		default:
			return nil, err
		}
	}
}

// compact returns the JSON value raw without white space between its tokens; nil for nil.
func compact(raw json.RawMessage) (json.RawMessage, error) {
	if raw == nil {
		return nil, nil
	}
	var b bytes.Buffer
	err := json.Compact(&b, raw)
	return b.Bytes(), err
}
