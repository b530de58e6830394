// Package jsonscan extracts a few values from a JSON text of any length while it is streamed, in bounded memory.
package jsonscan

import (
	"bytes"
	"strings"

	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

const (
	maxKeep  = 64 << 10 // maximum size of a value that is kept, in bytes
	maxKey   = 64       // maximum length of a name in a path, in bytes; longer names match no path
	maxLevel = 8        // maximum number of names in a path
)

// A Scanner keeps the values at given paths. It follows quotes and brackets and validates nothing else; for a text that is not
// JSON it only finds useless values. The result does not depend on how the text is split into pieces. It is not safe for
// concurrent use.
type Scanner struct {
	paths       [][]string         // the paths to find; each is a list of names
	found       []strictjson.Value // the last value found at each path, by index of the path
	stringBytes int64              // bytes of all strings read so far that are not names, as escaped
	size        int64              // bytes of the text read so far

	depth int             // number of open arrays and objects: those that have begun and not ended
	level [maxLevel]level // the open arrays and objects, the outermost first; only the first maxLevel of them
	next  uint32          // bit set, by index in paths, of the paths to the next value or to a value in it
	done  bool            // the whole text was read

	str, esc, name bool   // in a string; after a backslash in it; the string is the name of a member
	nextIsName     bool   // the next string is the name of a member
	literal        bool   // in a number, true, false or null
	key            []byte // the current or last name, as escaped; at most maxKey+1 bytes

	keptPath    int    // index of the path whose value is being kept; -1 for none
	keptDepth   int    // depth at which the value that is being kept began
	kept        []byte // the bytes of the value that is being kept that were read so far
	keptTooLong bool   // the value that is being kept has more than maxKeep bytes and is discarded
}

// level is an array or object that has begun and not ended.
type level struct {
	array bool   // an array; otherwise an object
	mask  uint32 // bit set, by index in Scanner.paths, of the paths to this array or object or to a value in it
}

// New returns a Scanner for at most 32 paths. A path consists of names joined by dots, with "*" for every element of an array,
// such as "usage", "response.usage" or "*.usageMetadata". No path may be a prefix of another.
func New(paths ...string) *Scanner {
	s := &Scanner{found: make([]strictjson.Value, len(paths)), keptPath: -1, next: 1<<len(paths) - 1}
	for _, p := range paths {
		s.paths = append(s.paths, strings.Split(p, "."))
	}
	return s
}

// Get returns the last complete value at the path with the given index, without white space outside of strings. It returns nil if
// there is none or if it exceeds 64 KiB. The value is valid until the next Write.
func (s *Scanner) Get(path int) strictjson.Value { return s.found[path] }

// Done reports whether the whole text was read: its first bracket was closed.
func (s *Scanner) Done() bool { return s.done }

// StringBytes returns the number of bytes, as escaped, of all strings read so far that are not names.
func (s *Scanner) StringBytes() int64 { return s.stringBytes }

// Size returns the number of bytes read so far, up to the end of the text.
func (s *Scanner) Size() int64 { return s.size }

// Write reads p, the next piece of the text. What follows the end of the text is ignored.
func (s *Scanner) Write(p []byte) {
	quote := -1 // position of the next quote at or after i; searched only once, because many backslashes may precede it
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

// text adds p, a part of the current string, to the value that is being kept, if any. A name is added to key, other text counted.
func (s *Scanner) text(p []byte) {
	if s.keptPath >= 0 {
		s.keep(p...)
	}
	if !s.name {
		s.stringBytes += int64(len(p))
		return
	}
	if len(s.key) <= maxKey {
		s.key = append(s.key, p[:min(len(p), maxKey+1-len(s.key))]...)
	}
}

// endString ends the current string. If it is a name, it determines which of s.paths lead to the member's value, or into it.
func (s *Scanner) endString() {
	s.str = false
	if s.name {
		s.next = s.matchPaths(string(s.key))
		return
	}
	s.endValue()
}

// matchPaths returns the bit set of the paths that lead to, or into, the element name of the innermost open array or object.
func (s *Scanner) matchPaths(name string) (mask uint32) {
	if s.depth == 0 || s.depth > maxLevel {
		return 0
	}
	from := s.level[s.depth-1].mask
	for i, w := range s.paths {
		if from&(1<<i) != 0 && len(w) >= s.depth && w[s.depth-1] == name {
			mask |= 1 << i
		}
	}
	return mask
}

// byte reads the byte c, which is outside of strings or a quote.
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
		s.str, s.name = true, s.nextIsName
		if s.nextIsName {
			s.key, s.nextIsName = s.key[:0], false
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
		s.nextMember()
	case ':':
		s.keep(c)
	default:
		s.literal = true
		s.begin(c)
	}
}

// begin begins a value, whose first byte is c. If the path to the value is one of s.paths, its bytes are kept.
func (s *Scanner) begin(c byte) {
	if s.keptPath < 0 && s.next != 0 {
		for i, w := range s.paths {
			if s.next&(1<<i) != 0 && len(w) == s.depth {
				s.keptPath, s.keptDepth, s.kept, s.keptTooLong = i, s.depth, s.kept[:0], false
				break
			}
		}
	}
	s.keep(c)
}

// endValue ends a value. If that is the value that is being kept, it is stored in found, unless it is too long.
func (s *Scanner) endValue() {
	if s.keptPath < 0 || s.depth != s.keptDepth {
		return
	}
	if !s.keptTooLong {
		s.found[s.keptPath] = append(s.found[s.keptPath][:0], s.kept...)
	}
	s.keptPath = -1
}

// open begins an array, or an object if array is false.
func (s *Scanner) open(array bool) {
	if s.depth < maxLevel {
		s.level[s.depth] = level{array, s.next}
	}
	s.depth++
	s.nextMember()
}

// nextMember determines whether a name is next, and which paths lead to the next value, after an opening bracket or a comma.
func (s *Scanner) nextMember() {
	switch {
	case s.depth == 0 || s.depth > maxLevel:
		s.next, s.nextIsName = 0, false // names at this depth are not needed
	case s.level[s.depth-1].array:
		s.next, s.nextIsName = s.matchPaths("*"), false
	default:
		s.next, s.nextIsName = 0, true
	}
}

// close ends the innermost array or object.
func (s *Scanner) close() {
	s.nextIsName = false
	if s.depth > 0 {
		s.depth--
	}
	s.endValue()
	s.done = s.depth == 0
}

// keep appends p to the value that is being kept, if any.
func (s *Scanner) keep(p ...byte) {
	if s.keptPath < 0 || s.keptTooLong {
		return
	}
	if s.keptTooLong = len(s.kept)+len(p) > maxKeep; !s.keptTooLong {
		s.kept = append(s.kept, p...)
	}
}
