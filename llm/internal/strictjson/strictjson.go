// Package strictjson reads bodies that strangers wrote and that others will read after us: what means different things to
// different readers is refused, and everything else can be looked at without being decoded.
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
	// MaxDepth is how deep arrays and objects may nest.
	MaxDepth = 100
	// MaxMembers is how many members all objects may have together. Each name is remembered to find it twice, which takes far
	// more time and memory than the name itself.
	MaxMembers = 200_000
	// MaxElements is how many elements and members there may be together.
	MaxElements = 2_000_000
)

// A Value is the text of one JSON value, without white space around it. Its methods never fail or panic, whatever the
// bytes: where the text is not valid they stop early. Values from [Parse] are valid; those of an answer that passes by need
// not be.
type Value []byte

// Parse checks that body is exactly one JSON value: valid UTF-8, no name twice in an object at any level, however it is
// escaped, no nesting beyond [MaxDepth], no more members than [MaxMembers], nothing after it. The error is a refusal (see [Refuse]). The value is part of body.
func Parse(body []byte) (Value, error) {
	v := Value(bytes.Trim(body, " \t\r\n"))
	if len(v) == 0 {
		return nil, Refuse("", "the body is empty; send a JSON object")
	}
	depth, members, elements := measure(v)
	switch {
	case depth > MaxDepth:
		return nil, Refuse("", "the body nests deeper than %d levels; make it flatter", MaxDepth)
	case members > MaxMembers || elements > MaxElements:
		return nil, Refuse("", "the body has more than %d members of objects, or %d elements; send less at once", MaxMembers, MaxElements)
	case !jsontext.Value(v).IsValid():
		return nil, explain(v)
	}
	return v, nil
}

// ParseObject is [Parse] for a body that has to be an object.
func ParseObject(body []byte) (*Object, error) {
	v, err := Parse(body)
	if err != nil {
		return nil, err
	}
	if v.Kind() != '{' {
		return nil, Refuse("", "the body is a JSON value of another kind; send a JSON object")
	}
	return v.Object(), nil
}

// measure looks at punctuation only, and so works on anything. It stops at what is too deep.
func measure(b []byte) (depth, members, elements int) {
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

// explain says what is wrong with a body.
func explain(body []byte) error {
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
		return Refuse(param(s.JSONPointer), "a name is there twice in one object; send each once")
	default:
		return Refuse(param(s.JSONPointer), "the body is not valid JSON at byte %d; send RFC 8259 JSON in UTF-8", s.ByteOffset)
	}
}

// param writes a pointer the way the APIs name parameters: messages[0].content.
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

// Kind is '{', '[', '"', '0' for a number, 't', 'f', 'n', or 0 for nothing.
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

// Members yields the names and values of an object, in order; nothing for other values. A name is only valid until the
// next one. `switch string(name)` does not allocate.
func (v Value) Members() iter.Seq2[[]byte, Value] {
	return func(yield func([]byte, Value) bool) {
		if v.Kind() != '{' {
			return
		}
		for i := space(v, 1); i < len(v) && v[i] == '"'; i = space(v, i+1) {
			end := stringEnd(v, i)
			if end < 0 {
				return
			}
			name := unquote(v[i:end])
			if i = space(v, end); i == len(v) || v[i] != ':' {
				return
			}
			i = space(v, i+1)
			if end = valueEnd(v, i); end < 0 || !yield(name, v[i:end]) {
				return
			}
			if i = space(v, end); i == len(v) || v[i] != ',' {
				return
			}
		}
	}
}

// Elements yields the elements of an array, with their positions; nothing for other values.
func (v Value) Elements() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if v.Kind() != '[' {
			return
		}
		n := 0
		for i := space(v, 1); i < len(v); i = space(v, i+1) {
			end := valueEnd(v, i)
			if end < 0 || !yield(n, v[i:end]) {
				return
			}
			n++
			if i = space(v, end); i == len(v) || v[i] != ',' {
				return
			}
		}
	}
}

// Get returns a member of an object, nil if there is none.
func (v Value) Get(name string) Value {
	for n, x := range v.Members() {
		if string(n) == name {
			return x
		}
	}
	return nil
}

// Bytes returns what a string says, which may be part of v; nil for other values. `switch string(v.Bytes())` does not allocate.
func (v Value) Bytes() []byte {
	if v.Kind() != '"' || stringEnd(v, 0) != len(v) {
		return nil
	}
	return unquote(v)
}

// Text returns what a string says; false for other values.
func (v Value) Text() (string, bool) {
	b := v.Bytes()
	return string(b), b != nil
}

// Is reports whether v is that string.
func (v Value) Is(s string) bool {
	b := v.Bytes()
	return b != nil && string(b) == s
}

// Int returns an integer that is written as one; false for 1.0, 1e3, "1" and what does not fit.
func (v Value) Int() (int64, bool) {
	if v.Kind() != '0' || len(v) > 20 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	return n, err == nil
}

// Count is Int for numbers of tokens in an answer: 0 for everything that is none, never negative, and at most 2^40, so that
// sums of a few do not overflow.
func (v Value) Count() int64 {
	n, _ := v.Int()
	return min(max(0, n), 1<<40)
}

// Bool returns what a boolean says; ok is false for other values.
func (v Value) Bool() (b, ok bool) {
	return v.Kind() == 't', v.Kind() == 't' || v.Kind() == 'f'
}

// Quote appends s to dst as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func Quote(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only says that something was replaced
	return dst
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// stringEnd returns where the string that begins at i has ended, -1 if it does not.
func stringEnd(b []byte, i int) int {
	// Most strings are names and other short things, for which a search is slower than a look.
	i++
	for near := min(i+16, len(b)); i < near; i++ {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i++ // what comes after it is part of the string, whatever it is
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
		i = n + 1 // the quote is escaped; nothing before it is looked at again
	}
	return -1
}

// valueEnd returns where the value that begins at i has ended, -1 if it does not or is none.
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

var delimiter = [256]bool{',': true, ']': true, '}': true, ':': true, ' ': true, '\n': true, '\r': true, '\t': true, '"': true, '[': true, '{': true}

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

// unquote returns what a string with its quotes says; part of q if nothing in it is escaped.
func unquote(q []byte) []byte {
	if bytes.IndexByte(q, '\\') < 0 {
		return q[1 : len(q)-1]
	}
	s, _ := jsontext.AppendUnquote(make([]byte, 0, len(q)), q) // an answer need not be valid; then this is what can be read of it
	return s
}
