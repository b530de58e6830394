// Package strictjson reads untrusted JSON that is forwarded to other readers. It rejects JSON that readers may interpret
// differently, and gives access to the values of accepted JSON without decoding it.
package strictjson

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// MaxDepth is the maximum nesting depth of arrays and objects.
	MaxDepth = 100
	// MaxMembers is the maximum number of members in all objects together. Each name is stored to find duplicates, which takes
	// far more time and memory than the name itself.
	MaxMembers = 200_000
	// MaxElements is the maximum number of elements and members together.
	MaxElements = 2_000_000
)

// A Value is the text of one JSON value, without surrounding white space. Its methods never fail or panic, for any bytes: at
// invalid text they stop early. Values from [Parse] are valid; values from an answer that is being forwarded may be invalid.
type Value []byte

// Parse checks that body is exactly one JSON value: valid UTF-8, no duplicate name in an object at any level, in any escaping, no
// nesting beyond [MaxDepth], no more members or elements than [MaxMembers] and [MaxElements] allow, and nothing after it.
// The error is a [*dialect.Refusal]. The value shares the memory of body.
func Parse(body []byte) (Value, error) {
	v := Value(bytes.Trim(body, " \t\r\n"))
	if len(v) == 0 {
		return nil, Refuse("", "the body is empty; send a JSON object")
	}
	depth, members, elements := countLimits(v)
	switch {
	case depth > MaxDepth:
		return nil, Refuse("", "the body nests deeper than %d levels; make it flatter", MaxDepth)
	case members > MaxMembers || elements > MaxElements:
		return nil, Refuse("", "the body has more than %d members of objects, or %d elements; send less at once", MaxMembers, MaxElements)
	case !jsontext.Value(v).IsValid():
		return nil, syntaxError(v)
	}
	return v, nil
}

// countLimits returns the nesting depth, the number of members of all objects, and the number of commas, which separate
// elements and members. It reads punctuation only, so it works on invalid text. It stops at a depth of more than MaxDepth.
func countLimits(b []byte) (depth, members, elements int) {
	now := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			end := stringEnd(b, i)
			if end < 0 {
				return depth, members, elements
			}
			i = end - 1
		case ':':
			members++
		case ',':
			elements++
		case '{', '[':
			if now++; now > depth {
				depth = now
			}
			if depth > MaxDepth {
				return depth, members, elements
			}
		case '}', ']':
			now--
		}
	}
	return depth, members, elements
}

// syntaxError returns the error of an invalid body.
func syntaxError(body []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	_, err := d.ReadValue()
	if err == nil {
		if _, err = d.ReadToken(); err == nil || errors.Is(err, io.EOF) {
			return Refuse("", "the body is more than one JSON value; send one object")
		}
	}
	s, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok || errors.Is(err, io.ErrUnexpectedEOF):
		return Refuse("", "the body ends in the middle of its JSON; send all of it")
	case errors.Is(err, jsontext.ErrDuplicateName):
		return Refuse(param(s.JSONPointer), "a name occurs twice in one object; send each once")
	default:
		return Refuse(param(s.JSONPointer), "the body is not valid JSON at byte %d; send RFC 8259 JSON in UTF-8", s.ByteOffset)
	}
}

// param converts a JSON pointer to the notation that the APIs use for parameters: messages[0].content.
func param(p jsontext.Pointer) string {
	var b strings.Builder
	for t := range p.Tokens() {
		switch _, err := strconv.ParseUint(t, 10, 32); {
		case b.Len() > 200:
			return b.String()
		case err == nil:
			b.WriteString("[" + t + "]")
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(strings.ToValidUTF8(t[:min(len(t), 64)], ""))
		}
	}
	return b.String()
}

// Kind returns '{', '[', '"', '0' for a number, 't', 'f', 'n', or 0 for an empty value.
func (v Value) Kind() byte {
	if len(v) == 0 {
		return 0
	}
	if c := v[0]; c != '-' && (c < '0' || c > '9') {
		return c
	}
	return '0'
}

// IsNull reports whether v is null.
func (v Value) IsNull() bool { return v.Kind() == 'n' }

// Members yields the names and values of an object, in order, and nothing for other values. A name is valid until the next
// iteration. `switch string(name)` does not allocate.
func (v Value) Members() iter.Seq2[[]byte, Value] {
	return func(yield func([]byte, Value) bool) {
		w := v.Walk()
		_ = w.Object(func(name []byte) error {
			if x := w.Skip(); x == nil || !yield(name, x) {
				return errEnough
			}
			return nil
		})
	}
}

// errEnough ends a walk when no more values are needed.
var errEnough = errors.New("enough")

// Elements yields the indexes and elements of an array, and nothing for other values.
func (v Value) Elements() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		w := v.Walk()
		_ = w.Array(func(i int) error {
			if x := w.Skip(); x == nil || !yield(i, x) {
				return errEnough
			}
			return nil
		})
	}
}

// Get returns the value of the member of the object v with this name, or nil if there is none.
func (v Value) Get(name string) Value {
	for n, x := range v.Members() {
		if string(n) == name {
			return x
		}
	}
	return nil
}

// Bytes returns the contents of a string, which may share the memory of v, or nil for other values. `switch string(v.Bytes())`
// does not allocate.
func (v Value) Bytes() []byte {
	if v.Kind() != '"' || stringEnd(v, 0) != len(v) {
		return nil
	}
	return unquote(v)
}

// Text returns the contents of a string; false for other values.
func (v Value) Text() (string, bool) {
	b := v.Bytes()
	return string(b), b != nil
}

// Is reports whether v is the string s.
func (v Value) Is(s string) bool {
	b := v.Bytes()
	return b != nil && string(b) == s
}

// Int returns an integer; false for 1.0, 1e3, "1" and values out of range.
func (v Value) Int() (int64, bool) {
	if v.Kind() != '0' || len(v) > 20 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	return n, err == nil
}

// Count returns a number of tokens in an answer: 0 if v is negative or not an integer, and at most 2^40, so that sums of a few
// counts do not overflow.
func (v Value) Count() int64 {
	n, _ := v.Int()
	return min(max(0, n), 1<<40)
}

// Bool returns a boolean; ok is false for other values.
func (v Value) Bool() (b, ok bool) {
	return v.Kind() == 't', v.Kind() == 't' || v.Kind() == 'f'
}

// Quote appends s to dst as a JSON string. Invalid UTF-8 is replaced by U+FFFD.
func Quote(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only means that invalid UTF-8 was replaced
	return dst
}

// skipSpace returns the position of the first byte of b, at i or later, that is not white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// stringEnd returns the position after the string that begins at i, or -1 if it is incomplete.
func stringEnd(b []byte, i int) int {
	// Most strings are short, for which a loop is faster than IndexByte.
	i++
	for near := min(i+16, len(b)); i < near; i++ {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i++ // skips the escaped byte, which is part of the string
		}
	}
	for i < len(b) {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		n += i
		esc := n
		for esc > i && b[esc-1] == '\\' {
			esc--
		}
		if (n-esc)%2 == 0 {
			return n + 1
		}
		i = n + 1 // continues after an escaped quote, so that the bytes before it are not read again
	}
	return -1
}

// valueEnd returns the position after the value that begins at i, or -1 if it is incomplete or there is none.
func valueEnd(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '{', '[':
		return nestEnd(b, i)
	}
	end := i
	for end < len(b) && !delimiter[b[end]] {
		end++
	}
	if end == i {
		return -1
	}
	return end
}

// delimiter tells, for each value of a byte, whether it ends a number, true, false or null before it.
var delimiter = [256]bool{',': true, ']': true, '}': true, ':': true, ' ': true, '\n': true, '\r': true, '\t': true, '"': true, '[': true, '{': true}

// nestEnd returns the position after the array or object that begins at i, or -1 if it is incomplete.
func nestEnd(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			end := stringEnd(b, i)
			if end < 0 {
				return -1
			}
			i = end - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// unquote returns the contents of q, a string with its quotes, without escapes. They share the memory of q if it has no escapes.
func unquote(q []byte) []byte {
	if bytes.IndexByte(q, '\\') < 0 {
		return q[1 : len(q)-1]
	}
	s, _ := jsontext.AppendUnquote(make([]byte, 0, len(q)), q) // for invalid text, s is the part that could be decoded
	return s
}
