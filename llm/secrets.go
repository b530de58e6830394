package llm

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"regexp"
	"strings"
)

const (
	window    = 12 // bytes of a key in a row that are recognised
	leastKey  = 8  // shorter keys are words (local providers want any) and are not looked for
	redaction = "[redacted]"
)

// secrets finds keys, parts of them, and their usual encodings.
type secrets struct {
	windows map[string]struct{} // of window bytes
	short   []string            // keys of fewer bytes
	first   [256]bool           // bytes that windows begin with
}

func newSecrets(keys ...string) *secrets {
	s := &secrets{windows: map[string]struct{}{}}
	for _, k := range keys {
		switch {
		case len(k) < leastKey:
		case len(k) < window:
			s.short = append(s.short, k)
		default:
			s.add(k)
			s.add(url.QueryEscape(k))
			s.add(hex.EncodeToString([]byte(k)))
			for shift := range 3 {
				// Within a longer text it may begin at any place of a group of three.
				b := base64.StdEncoding.EncodeToString(append(make([]byte, shift), k...))
				b = b[4 : len(b)-4]
				s.add(b)
				s.add(strings.NewReplacer("+", "-", "/", "_").Replace(b))
			}
		}
	}
	return s
}

func (s *secrets) add(text string) {
	for i := 0; i+window <= len(text); i++ {
		s.windows[text[i:i+window]] = struct{}{}
		s.first[text[i]] = true
	}
}

// redact returns b without what it finds; b itself if there is nothing.
func (s *secrets) redact(b []byte) []byte {
	for _, k := range s.short {
		b = bytes.ReplaceAll(b, []byte(k), []byte(redaction))
	}
	var out []byte
	copied, end := 0, -1 // up to where b is in out; where what is being left out ends
	for i := 0; i+window <= len(b); i++ {
		if !s.first[b[i]] {
			continue
		}
		if _, ok := s.windows[string(b[i:i+window])]; !ok {
			continue
		}
		if i > end {
			if end > 0 {
				copied = end
			}
			out = append(append(out, b[copied:i]...), redaction...)
		}
		end = i + window
	}
	if end < 0 {
		return b
	}
	return append(out, b[end:]...)
}

// shapes are keys of well-known services.
var shapes = regexp.MustCompile(`\b(?:sk-[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}` +
	`|glpat-[A-Za-z0-9_-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+)` +
	`|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?`)

// clean is redact for what is kept: it looks for the shapes of keys that the gateway does not know, too.
func (s *secrets) clean(b []byte) []byte {
	return shapes.ReplaceAll(s.redact(b), []byte(redaction))
}

// A guard looks for one key in an answer that passes in pieces.
type guard struct {
	key  []byte
	held []byte // the end of what was written, which may be the beginning of the key
}

func newGuard(key string) guard {
	if len(key) < leastKey {
		return guard{}
	}
	return guard{key: []byte(key)}
}

// next returns what may pass of what it has been given so far; false if the key is in it.
func (g *guard) next(p []byte) ([]byte, bool) {
	if len(g.key) == 0 {
		return p, true
	}
	if len(g.held) > 0 {
		p = append(g.held, p...)
		g.held = nil
	}
	if bytes.Contains(p, g.key) {
		return nil, false
	}
	for n := min(len(g.key)-1, len(p)); n > 0; n-- {
		if tail := p[len(p)-n:]; tail[0] == g.key[0] && bytes.HasPrefix(g.key, tail) {
			g.held = bytes.Clone(tail)
			return p[:len(p)-n], true
		}
	}
	return p, true
}

// rest returns what was held when nothing follows.
func (g *guard) rest() []byte { return g.held }
