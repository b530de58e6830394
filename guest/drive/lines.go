package drive

import (
	"bufio"
	"errors"
	"io"
)

// maxJSON is the maximum length of one JSON value, in bytes. Agents put whole files and outputs of commands into one value.
const maxJSON = 8 << 20

// lines reads lines from r, and truncates lines of more than limit bytes.
type lines struct {
	r     *bufio.Reader // the input
	limit int           // maximum length of a line, in bytes
	buf   []byte        // the line that the method next has returned last
}

// newLines returns a reader of the lines of r that truncates lines of more than limit bytes.
func newLines(r io.Reader, limit int) *lines {
	return &lines{r: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// next returns the next line without its newline; it is valid until the next call. If the line is too long, line is its beginning
// and whole is false. ok is false at the end of the input.
func (l *lines) next() (line []byte, whole, ok bool) {
	l.buf = l.buf[:0]
	whole = true
	for {
		part, err := l.r.ReadSlice('\n')
		if room := l.limit - len(l.buf); len(part) > room {
			part, whole = part[:room], false
		}
		l.buf = append(l.buf, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if n := len(l.buf); n > 0 && l.buf[n-1] == '\n' {
			l.buf = l.buf[:n-1]
			return l.buf, whole, true
		}
		return l.buf, whole, err == nil || len(l.buf) > 0
	}
}
