package drive

import (
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/agent/task"
)

// Bounds of terminal sequences: what is longer is no sequence but text that begins like one.
const (
	maxControl = 64
	maxString  = 4 << 10
)

type cleanState int

const (
	cleanGround cleanState = iota
	cleanEscape            // after ESC
	cleanCSI               // in a control sequence
	cleanString            // in OSC, DCS, APC, PM or SOS
	cleanStringEscape
)

// A cleaner makes plain text of what a program wrote for a terminal, however it is cut into pieces: UTF-8 without terminal sequences and
// without control characters but newline and tab. A carriage return ends a line. What is no UTF-8 becomes U+FFFD.
type cleaner struct {
	state cleanState
	part  []byte // the beginning of a character
	n     int    // bytes of the sequence so far
	cr    bool   // a carriage return waits to see whether a newline follows
	out   []byte
}

// write returns the plain text of s, as far as it can be told already.
func (c *cleaner) write(s string) string {
	c.out = c.out[:0]
	for i := 0; i < len(s); i++ {
		c.step(s[i])
	}
	return string(c.out)
}

// flush returns what is left at the end of the text and begins another.
func (c *cleaner) flush() string {
	c.out = c.out[:0]
	c.broken()
	c.state, c.n, c.cr = cleanGround, 0, false
	return string(c.out)
}

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
			c.again(b)
		}
	case cleanString:
		c.n++
		switch {
		case b == 0x1b:
			c.state = cleanStringEscape
		case b == '\a' || c.n > maxString:
			c.state = cleanGround
		case b == '\n': // no program sends it there; better too much text than too little
			c.again(b)
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

// again looks at b as text.
func (c *cleaner) again(b byte) {
	c.state = cleanGround
	c.text(b)
}

func (c *cleaner) afterEscape(b byte) {
	switch {
	case b == '[':
		c.state, c.n = cleanCSI, 0
	case b == ']' || b == 'P' || b == 'X' || b == '^' || b == '_':
		c.state, c.n = cleanString, 0
	case b >= 0x20 && b < 0x30 || b == 0x1b: // intermediate
	case b >= 0x30 && b < 0x7f:
		c.state = cleanGround
	default:
		c.again(b)
	}
}

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
		c.broken()
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

// character takes what is in part once it is whole.
func (c *cleaner) character() {
	for utf8.FullRune(c.part) && len(c.part) > 0 {
		r, n := utf8.DecodeRune(c.part)
		switch {
		case r == 0x9b: // the one byte form of ESC [
			c.state, c.n = cleanCSI, 0
		case !task.Control(r):
			c.out = utf8.AppendRune(c.out, r)
		}
		c.part = append(c.part[:0], c.part[n:]...)
	}
}

// broken gives up on a character that was cut off.
func (c *cleaner) broken() {
	if len(c.part) > 0 {
		c.out = utf8.AppendRune(c.out, utf8.RuneError)
		c.part = c.part[:0]
	}
}

// plain cleans all of s.
func plain(s string) string {
	var c cleaner
	text := c.write(s)
	return text + c.flush()
}

// clip returns at most limit bytes of s, whole characters, ending with what says that there was more.
func clip(s string, limit int, more string) string {
	if len(s) <= limit {
		return s
	}
	n := max(0, limit-len(more))
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}

// word makes one short line of s.
func word(s string) string {
	s = clip(s, 4*task.MaxLabel, "")
	return clip(strings.Join(strings.Fields(plain(s)), " "), task.MaxLabel, "…")
}
