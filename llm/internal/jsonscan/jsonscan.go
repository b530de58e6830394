// Package jsonscan picks a few values out of a JSON text of any length while it passes, in bounded memory.
package jsonscan

import (
	"bytes"
	"strings"

	"github.com/caisson-dev/caisson/llm/internal/strictjson"
)

const (
	maxKeep  = 64 << 10 // bytes kept of each value
	maxKey   = 64       // bytes of a name; longer ones match nothing
	maxLevel = 8        // levels of a path
)

// A Scanner keeps the values at some paths. It follows quotes and brackets and checks nothing else, so that a text that is not
// JSON only yields nothing of use. What it finds is the same whatever the pieces in which the text is written. It is used by
// one goroutine at a time.
type Scanner struct {
	want  [][]string
	found []strictjson.Value
	seen  int64
	size  int64

	depth int // open brackets
	level [maxLevel]level
	next  uint32 // paths that the value that comes next may be on
	done  bool

	str, esc, name bool // within a string; after a backslash; the string is a name
	expect         bool // a string that comes next is a name
	literal        bool // within a number, true, false or null
	key            []byte

	catch int // the path that is being kept; -1 for none
	base  int // depth at which it began
	kept  []byte
	over  bool
}

// level is an open bracket.
type level struct {
	array bool
	mask  uint32 // paths that this array or object is on
}

// New returns a Scanner for at most 32 paths: names joined by dots, "*" for every element of an array, as "usage",
// "response.usage" or "*.usageMetadata". No path may be a beginning of another.
func New(paths ...string) *Scanner {
	s := &Scanner{found: make([]strictjson.Value, len(paths)), catch: -1, next: 1<<len(paths) - 1}
	for _, p := range paths {
		s.want = append(s.want, strings.Split(p, "."))
	}
	return s
}

// Get returns the last value on the path at that position, nil if there was none that ended and was shorter than 64 KiB. It is without
// the white space that was outside of strings, and valid until the next Write.
func (s *Scanner) Get(path int) strictjson.Value { return s.found[path] }

// Done says that the whole text was seen: its first bracket was closed.
func (s *Scanner) Done() bool { return s.done }

// Strings is how many bytes were in strings that are no names.
func (s *Scanner) Strings() int64 { return s.seen }

// Size is how many bytes the text had so far; what comes after its end does not count.
func (s *Scanner) Size() int64 { return s.size }

// Write takes the next piece of the text.
func (s *Scanner) Write(p []byte) {
	quote := -1 // where the next quote at or after i is; looked for once only, as there may be many backslashes before it
	i := 0
	defer func() { s.size += int64(i) }()
	for i < len(p) && !s.done {
		if !s.str {
			s.byte(p[i])
			i++
			continue
		}
		if s.esc {
			s.esc = false
			s.text(p[i : i+1])
			i++
			continue
		}
		if quote < i {
			if quote = bytes.IndexByte(p[i:], '"'); quote < 0 {
				quote = len(p)
			} else {
				quote += i
			}
		}
		end := quote
		if b := bytes.IndexByte(p[i:quote], '\\'); b >= 0 {
			end = i + b + 1
			s.esc = true
		}
		s.text(p[i:end])
		i = end
		if !s.esc && i < len(p) {
			s.keep('"')
			s.endString()
			i++
		}
	}
}

// text is a part of a string.
func (s *Scanner) text(p []byte) {
	if s.catch >= 0 {
		s.keep(p...)
	}
	if !s.name {
		s.seen += int64(len(p))
		return
	}
	if len(s.key) <= maxKey {
		s.key = append(s.key, p[:min(len(p), maxKey+1-len(s.key))]...)
	}
}

func (s *Scanner) endString() {
	s.str = false
	if s.name {
		s.next = s.below(string(s.key))
		return
	}
	s.endValue()
}

// below returns the paths of the innermost bracket that go on with name.
func (s *Scanner) below(name string) (mask uint32) {
	if s.depth == 0 || s.depth > maxLevel {
		return 0
	}
	from := s.level[s.depth-1].mask
	for i, w := range s.want {
		if from&(1<<i) != 0 && len(w) >= s.depth && w[s.depth-1] == name {
			mask |= 1 << i
		}
	}
	return mask
}

// byte handles what is outside of strings.
func (s *Scanner) byte(c byte) {
	if s.literal {
		switch c {
		case ',', ']', '}', ' ', '\n', '\r', '\t':
			s.literal = false
			s.endValue()
		default:
			s.keep(c)
			return
		}
	}
	switch c {
	case ' ', '\n', '\r', '\t':
		return
	case '"':
		s.str, s.name = true, s.expect
		if s.expect {
			s.key, s.expect = s.key[:0], false
			s.keep(c)
			return
		}
		s.begin(c)
	case '{', '[':
		s.begin(c)
		s.open(c == '[')
	case '}', ']':
		s.keep(c)
		s.close()
	case ',':
		s.keep(c)
		s.again()
	case ':':
		s.keep(c)
	default:
		s.literal = true
		s.begin(c)
	}
}

// begin is the first byte of a value.
func (s *Scanner) begin(c byte) {
	if s.catch < 0 && s.next != 0 {
		for i, w := range s.want {
			if s.next&(1<<i) != 0 && len(w) == s.depth {
				s.catch, s.base, s.kept, s.over = i, s.depth, s.kept[:0], false
				break
			}
		}
	}
	s.keep(c)
}

// endValue follows the last byte of a value.
func (s *Scanner) endValue() {
	if s.catch < 0 || s.depth != s.base {
		return
	}
	if !s.over {
		s.found[s.catch] = append(s.found[s.catch][:0], s.kept...)
	}
	s.catch = -1
}

func (s *Scanner) open(array bool) {
	if s.depth < maxLevel {
		s.level[s.depth] = level{array, s.next}
	}
	s.depth++
	s.again()
}

// again comes before each member of an object and each element of an array.
func (s *Scanner) again() {
	switch {
	case s.depth == 0 || s.depth > maxLevel:
		s.next, s.expect = 0, false // names so far down are of no interest
	case s.level[s.depth-1].array:
		s.next, s.expect = s.below("*"), false
	default:
		s.next, s.expect = 0, true
	}
}

func (s *Scanner) close() {
	s.expect = false
	if s.depth > 0 {
		s.depth--
	}
	s.endValue()
	s.done = s.depth == 0
}

func (s *Scanner) keep(p ...byte) {
	if s.catch < 0 || s.over {
		return
	}
	if s.over = len(s.kept)+len(p) > maxKeep; !s.over {
		s.kept = append(s.kept, p...)
	}
}
