package openclaw

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of a text that parseJSON5 accepts.
const (
	maxJSON5       = 4 << 20 // size of the text in bytes
	maxJSON5Depth  = 64      // depth of nested objects and arrays
	maxJSON5Values = 200_000 // maximum number of values in one text
)

// parseJSON5 parses JSON as written by people: with comments, trailing commas, names without quotes and strings in single
// quotes. Values have the types of encoding/json: map[string]any, []any, string, float64, bool and nil. If a name occurs twice,
// the last value is used.
func parseJSON5(b []byte) (any, error) {
	if len(b) > maxJSON5 || !utf8.Valid(b) {
		return nil, fmt.Errorf("it is not text of at most %d bytes", maxJSON5)
	}
	p := &json5{s: strings.TrimPrefix(string(b), "\ufeff")}
	v, err := p.value(0)
	if err == nil {
		err = p.skipSpace()
	}
	if err == nil && p.i < len(p.s) {
		err = errors.New("there is something after the value")
	}
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", 1+strings.Count(p.s[:min(p.i, len(p.s))], "\n"), err)
	}
	return v, nil
}

// json5 is the state of parseJSON5.
type json5 struct {
	s      string // text to parse
	i      int    // offset in s of the next byte to parse
	values int    // number of values parsed so far
}

// skipSpace skips white space and comments.
func (p *json5) skipSpace() error {
	for p.i < len(p.s) {
		rest := p.s[p.i:]
		switch {
		case strings.HasPrefix(rest, "//"):
			n := strings.IndexAny(rest, "\n\r\u2028\u2029")
			if n < 0 {
				n = len(rest)
			}
			p.i += n
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				return errors.New("a comment has no end")
			}
			p.i += n + 4
		default:
			r, n := utf8.DecodeRuneInString(rest)
			if !unicode.IsSpace(r) && r != '\ufeff' {
				return nil
			}
			p.i += n
		}
	}
	return nil
}

// peek skips white space and comments and returns the next byte, or 0 at the end of the text.
func (p *json5) peek() (byte, error) {
	if err := p.skipSpace(); err != nil {
		return 0, err
	}
	if p.i == len(p.s) {
		return 0, nil
	}
	return p.s[p.i], nil
}

// value parses a value, at the given depth of nesting.
func (p *json5) value(depth int) (any, error) {
	c, err := p.peek()
	if err != nil {
		return nil, err
	}
	if p.values++; p.values > maxJSON5Values || depth > maxJSON5Depth {
		return nil, errors.New("it exceeds the limits on the number or depth of values")
	}
	switch {
	case c == 0:
		return nil, errors.New("it ends in the middle")
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"' || c == '\'':
		return p.quoted()
	}
	return p.literal()
}

// object parses the object that begins at p.i, at the given depth of nesting.
func (p *json5) object(depth int) (any, error) {
	p.i++
	m := map[string]any{}
	for {
		c, err := p.peek()
		if err != nil {
			return nil, err
		}
		if c == '}' {
			p.i++
			return m, nil
		}
		name, err := p.name(c)
		if err != nil {
			return nil, err
		}
		if c, err = p.peek(); err != nil {
			return nil, err
		} else if c != ':' {
			return nil, errors.New("a name is not followed by a colon")
		}
		p.i++
		if m[name], err = p.value(depth + 1); err != nil {
			return nil, err
		}
		if err := p.comma('}'); err != nil {
			return nil, err
		}
	}
}

// array parses the array that begins at p.i, at the given depth of nesting.
func (p *json5) array(depth int) (any, error) {
	p.i++
	list := []any{}
	for {
		c, err := p.peek()
		if err != nil {
			return nil, err
		}
		if c == ']' {
			p.i++
			return list, nil
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		if err := p.comma(']'); err != nil {
			return nil, err
		}
	}
}

// comma skips a comma, which may be missing before the byte end.
func (p *json5) comma(end byte) error {
	c, err := p.peek()
	switch {
	case err != nil:
		return err
	case c == ',':
		p.i++
	case c != end:
		return errors.New("a comma is missing")
	}
	return nil
}

// name parses the name of a field, whose first byte is c.
func (p *json5) name(c byte) (string, error) {
	if c == '"' || c == '\'' {
		return p.quoted()
	}
	start := p.i
	for p.i < len(p.s) {
		r, n := utf8.DecodeRuneInString(p.s[p.i:])
		if r != '_' && r != '$' && !unicode.IsLetter(r) && (p.i == start || !unicode.IsDigit(r)) {
			break
		}
		p.i += n
	}
	if p.i == start {
		return "", errors.New("a name is missing")
	}
	return p.s[start:p.i], nil
}

// escapes maps characters after a backslash to the text that they stand for. Other characters stand for themselves.
var escapes = map[byte]string{'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v", '0': "\x00", '\n': ""}

// quoted parses a string in single or double quotes.
func (p *json5) quoted() (string, error) {
	quote := p.s[p.i]
	p.i++
	var b strings.Builder
	for {
		n := strings.IndexAny(p.s[p.i:], string(quote)+"\\\n")
		if n < 0 {
			return "", errors.New("a string has no end")
		}
		b.WriteString(p.s[p.i : p.i+n])
		p.i += n + 1
		switch p.s[p.i-1] {
		case quote:
			return b.String(), nil
		case '\n':
			return "", errors.New("a string goes over the end of its line")
		}
		if p.i == len(p.s) {
			return "", errors.New("a string has no end")
		}
		c := p.s[p.i]
		p.i++
		s, known := escapes[c]
		switch {
		case c == 'u' || c == 'x':
			r, err := p.hex(c)
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
		case c == '\r':
			p.i += len(p.s[p.i:]) - len(strings.TrimPrefix(p.s[p.i:], "\n"))
		case known:
			b.WriteString(s)
		default:
			b.WriteByte(c) // the other bytes of a multi-byte character are copied next
		}
	}
}

// hex parses the hexadecimal digits after \u or \x, and after \u also the second half of a surrogate pair. kind is 'u' or 'x'.
func (p *json5) hex(kind byte) (rune, error) {
	read := func(n int) (rune, bool) {
		if len(p.s)-p.i < n {
			return 0, false
		}
		v, err := strconv.ParseUint(p.s[p.i:p.i+n], 16, 32)
		p.i += n
		return rune(v), err == nil
	}
	digits := 4
	if kind == 'x' {
		digits = 2
	}
	r, ok := read(digits)
	if ok && r >= 0xd800 && r < 0xdc00 && strings.HasPrefix(p.s[p.i:], `\u`) {
		at := p.i
		p.i += 2
		if low, good := read(4); good && low >= 0xdc00 && low < 0xe000 {
			return 0x10000 + (r-0xd800)<<10 + (low - 0xdc00), nil
		}
		p.i = at
	}
	if !ok {
		return 0, errors.New("an escape has no digits")
	}
	return r, nil
}

// literal reads a number, true, false or null.
func (p *json5) literal() (any, error) {
	start := p.i
	for p.i < len(p.s) && (p.s[p.i] == '+' || p.s[p.i] == '-' || p.s[p.i] == '.' || p.s[p.i] >= '0' && p.s[p.i] <= '9' || p.s[p.i]|0x20 >= 'a' && p.s[p.i]|0x20 <= 'z') {
		p.i++
	}
	w := p.s[start:p.i]
	switch w {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "null":
		return nil, nil
	}
	if digits, negative := strings.CutPrefix(strings.TrimPrefix(w, "+"), "-"); strings.HasPrefix(digits, "0x") || strings.HasPrefix(digits, "0X") {
		n, err := strconv.ParseUint(digits[2:], 16, 53)
		if err != nil {
			return nil, fmt.Errorf("%q is no number", truncate(w))
		}
		if negative {
			return -float64(n), nil
		}
		return float64(n), nil
	}
	n, err := strconv.ParseFloat(w, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, fmt.Errorf("%q is not a valid value", truncate(w))
	}
	return n, nil
}
