package drive

import (
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/guest/task"
)

// Limits on the length of terminal sequences, in bytes. The part of a sequence after the limit is treated as text.
const (
	maxControl = 64      // length of a control sequence, which begins with ESC [
	maxString  = 4 << 10 // length of a string, such as OSC, which begins with ESC ]
)

// cleanState is the position of a [cleaner] in a terminal sequence.
type cleanState int

const (
	cleanGround       cleanState = iota // in text, outside of terminal sequences
	cleanEscape                         // after ESC, which begins a terminal sequence
	cleanCSI                            // in a control sequence, which begins with ESC [
	cleanString                         // in a string: OSC, DCS, APC, PM or SOS
	cleanStringEscape                   // after ESC in a string, which may end it
)

// A cleaner converts terminal output, which may be split at any byte, to plain text: UTF-8 without terminal sequences and
// without control characters except newline and tab. A carriage return ends a line. Invalid UTF-8 becomes U+FFFD.
type cleaner struct {
	state cleanState // position in a terminal sequence
	part  []byte     // the first bytes of a character that is incomplete
	n     int        // number of bytes of the current terminal sequence so far
	cr    bool       // the last byte was a carriage return; a newline after it is dropped
	out   []byte     // plain text that the current call of write returns
}

// write returns the plain text of s, the next part of the input. An incomplete character or sequence at its end is kept.
func (c *cleaner) write(s string) string {
	c.out = c.out[:0]
	for i := 0; i < len(s); i++ {
		c.step(s[i])
	}
	return string(c.out)
}

// flush returns the plain text for an incomplete character at the end of the input, and resets the cleaner.
func (c *cleaner) flush() string {
	c.out = c.out[:0]
	c.replaceIncomplete()
	c.state, c.n, c.cr = cleanGround, 0, false
	return string(c.out)
}

// step processes the byte b, the next one of the input.
func (c *cleaner) step(b byte) {
	switch c.state {
	case cleanGround:
		c.text(b)
	case cleanEscape:
		c.afterEscape(b)
	case cleanCSI:
		c.n++
		switch {
		case b >= 0x40 && b < 0x7f || c.n > maxControl:
			c.state = cleanGround
		case b < 0x20 || b >= 0x7f:
			c.asText(b)
		}
	case cleanString:
		c.n++
		switch {
		case b == 0x1b:
			c.state = cleanStringEscape
		case b == '\a' || c.n > maxString:
			c.state = cleanGround
		case b == '\n': // programs do not send newlines in strings, so the end of the string is missing and text follows
			c.asText(b)
		}
	case cleanStringEscape:
		c.state = cleanEscape
		if b == '\\' {
			c.state = cleanGround
			return
		}
		c.afterEscape(b)
	}
}

// asText ends the current terminal sequence and processes b as text.
func (c *cleaner) asText(b byte) {
	c.state = cleanGround
	c.text(b)
}

// afterEscape processes the byte b after ESC, which determines the kind of the terminal sequence.
func (c *cleaner) afterEscape(b byte) {
	switch {
	case b == '[':
		c.state, c.n = cleanCSI, 0
	case b == ']' || b == 'P' || b == 'X' || b == '^' || b == '_':
		c.state, c.n = cleanString, 0
	case b >= 0x20 && b < 0x30 || b == 0x1b: // b is an intermediate byte of the sequence, or another ESC
	case b >= 0x30 && b < 0x7f:
		c.state = cleanGround
	default:
		c.asText(b)
	}
}

// text processes the byte b, which is outside of terminal sequences.
func (c *cleaner) text(b byte) {
	if c.cr {
		c.cr = false
		if b != '\n' {
			c.out = append(c.out, '\n')
		}
	}
	if len(c.part) > 0 {
		if b&0xc0 == 0x80 {
			c.part = append(c.part, b)
			c.character()
			return
		}
		c.replaceIncomplete()
	}
	switch {
	case b == 0x1b:
		c.state = cleanEscape
	case b == '\n' || b == '\t' || b >= 0x20 && b < 0x7f:
		c.out = append(c.out, b)
	case b == '\r':
		c.cr = true
	case b >= 0x80:
		c.part = append(c.part, b)
		c.character()
	}
}

// character adds the character whose bytes are in part to out, once it is complete.
func (c *cleaner) character() {
	for utf8.FullRune(c.part) && len(c.part) > 0 {
		r, n := utf8.DecodeRune(c.part)
		switch {
		case r == 0x9b: // U+009B is the short form of ESC [
			c.state, c.n = cleanCSI, 0
		case !task.IsControl(r):
			c.out = utf8.AppendRune(c.out, r)
		}
		c.part = append(c.part[:0], c.part[n:]...)
	}
}

// replaceIncomplete adds U+FFFD to out if there is an incomplete character.
func (c *cleaner) replaceIncomplete() {
	if len(c.part) > 0 {
		c.out = utf8.AppendRune(c.out, utf8.RuneError)
		c.part = c.part[:0]
	}
}

// plainText returns s, which may be terminal output, without terminal sequences and control characters except newline and tab.
func plainText(s string) string {
	var c cleaner
	text := c.write(s)
	return text + c.flush()
}

// truncate shortens s to at most limit bytes at a character boundary. If it is shortened, it ends with the text more.
func truncate(s string, limit int, more string) string {
	if len(s) <= limit {
		return s
	}
	n := max(0, limit-len(more))
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}

// shortLine returns s as one line of plain text of at most [task.MaxLabel] bytes.
func shortLine(s string) string {
	s = truncate(s, 4*task.MaxLabel, "")
	return truncate(strings.Join(strings.Fields(plainText(s)), " "), task.MaxLabel, "…")
}
