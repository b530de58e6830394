// Package jsonscan extracts a few values from a JSON text of any length while it is streamed, in bounded memory.
package jsonscan

import (
	"bytes"
	"strings"

	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

const (
	maxKeep  = 64 << 10 // bytes kept per value
	maxKey   = 64       // bytes of a name; longer names match no path
	maxLevel = 8        // levels of a path
)

// A Scanner keeps the values at given paths. It follows quotes and brackets and validates nothing else; for a text that is not
// JSON it only finds useless values. The result does not depend on how the text is split into pieces. It is not safe for
// concurrent use.
type Scanner struct {
	paths       [][]string         // the paths to find; each is a list of names
	found       []strictjson.Value // the last value found at each path, by index of the path
	stringBytes int64
	size        int64

	depth int             // number of open brackets
	level [maxLevel]level // open brackets, the outermost first
	next  uint32          // bit set of the paths that the next value may match
	done  bool            // the whole text was read

	str, esc, name bool   // in a string; after a backslash in it; the string is a name
	nextIsName     bool   // the next string is a name
	literal        bool   // in a number, true, false or null
	key            []byte // the current or last name, as escaped; at most maxKey+1 bytes

	keptPath    int    // index of the path whose value is being kept; -1 for none
	keptDepth   int    // depth at which the value that is being kept began
	kept        []byte // the bytes of that value that were read so far
	keptTooLong bool   // the value has more than maxKeep bytes and is discarded
}

// level is an open bracket.
type level struct {
	array bool   // an array; otherwise an object
	mask  uint32 // bit set of the paths that this array or object matches
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

// StringBytes returns the number of bytes in strings that are not names.
func (s *Scanner) StringBytes() int64 { return s.stringBytes }

// Size returns the number of bytes read so far, up to the end of the text.
func (s *Scanner) Size() int64 { return s.size }

// Write reads the next piece of the text.
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

// text handles a part of a string.
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

// endString handles the end of a string.
func (s *Scanner) endString() {
	s.str = false
	if s.name {
		s.next = s.matchPaths(string(s.key))
		return
	}
	s.endValue()
}

// matchPaths returns the paths at the innermost bracket that continue with name.
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

// byte handles a byte outside of strings.
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

// begin handles the first byte of a value.
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

// endValue handles the end of a value.
func (s *Scanner) endValue() {
	if s.keptPath < 0 || s.depth != s.keptDepth {
		return
	}
	if !s.keptTooLong {
		s.found[s.keptPath] = append(s.found[s.keptPath][:0], s.kept...)
	}
	s.keptPath = -1
}

// open handles an opening bracket.
func (s *Scanner) open(array bool) {
	if s.depth < maxLevel {
		s.level[s.depth] = level{array, s.next}
	}
	s.depth++
	s.nextMember()
}

// nextMember prepares for the next member of an object or element of an array.
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

// close handles a closing bracket.
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
