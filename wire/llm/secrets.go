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
	keyWindow = 12           // number of consecutive bytes of a key by which it is recognised
	minKey    = 8            // shorter keys may be common words, because local providers accept any key; they are not redacted
	redaction = "[redacted]" // replaces keys
)

// secrets finds, in a text, the API keys of providers, parts of these keys, and their common encodings.
type secrets struct {
	windows    map[string]struct{} // all parts of the keys and of their encodings that have keyWindow bytes
	short      []string            // keys shorter than keyWindow
	firstBytes [256]bool           // by byte: whether an element of windows begins with it
}

func newSecrets(keys ...string) *secrets {
	s := &secrets{windows: map[string]struct{}{}}
	for _, k := range keys {
		switch {
		case len(k) < minKey:
		case len(k) < keyWindow:
			s.short = append(s.short, k)
		default:
			s.add(k)
			s.add(url.QueryEscape(k))
			s.add(hex.EncodeToString([]byte(k)))
			for shift := range 3 {
				// In a longer text the key may begin at any offset within a group of three bytes.
				b := base64.StdEncoding.EncodeToString(append(make([]byte, shift), k...))
				b = b[4 : len(b)-4]
				s.add(b)
				s.add(strings.NewReplacer("+", "-", "/", "_").Replace(b))
			}
		}
	}
	return s
}

// add adds all parts of text that have keyWindow bytes.
func (s *secrets) add(text string) {
	for i := 0; i+keyWindow <= len(text); i++ {
		s.windows[text[i:i+keyWindow]] = struct{}{}
		s.firstBytes[text[i]] = true
	}
}

// redact returns b with keys replaced by redaction, or b itself if there are none.
func (s *secrets) redact(b []byte) []byte {
	for _, k := range s.short {
		b = bytes.ReplaceAll(b, []byte(k), []byte(redaction))
	}
	var out []byte
	copied, end := 0, -1 // end of the part of b that is in out; end of the current redaction
	for i := 0; i+keyWindow <= len(b); i++ {
		if !s.firstBytes[b[i]] {
			continue
		}
		if _, ok := s.windows[string(b[i:i+keyWindow])]; !ok {
			continue
		}
		if i > end {
			if end > 0 {
				copied = end
			}
			out = append(append(out, b[copied:i]...), redaction...)
		}
		end = i + keyWindow
	}
	if end < 0 {
		return b
	}
	return append(out, b[end:]...)
}

// keyPatterns matches keys of well-known services.
var keyPatterns = regexp.MustCompile(`\b(?:sk-[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}` +
	`|glpat-[A-Za-z0-9_-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+)` +
	`|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?`)

// redactAll replaces the keys in s, and also text with the shape of a key of a well-known service. It is used for data that is
// stored.
func (s *secrets) redactAll(b []byte) []byte {
	return keyPatterns.ReplaceAll(s.redact(b), []byte(redaction))
}

// A keyScanner searches for one key in an answer that is forwarded in pieces.
type keyScanner struct {
	key  []byte // the key to find; empty: none is searched
	held []byte // the longest end of the data so far that is a prefix of the key, which is not forwarded yet
}

func newKeyScanner(key string) keyScanner {
	if len(key) < minKey {
		return keyScanner{}
	}
	return keyScanner{key: []byte(key)}
}

// next returns the data that may be forwarded, including data held earlier. Returns false if it contains the key.
func (g *keyScanner) next(p []byte) ([]byte, bool) {
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

// rest returns the data that is held, at the end of the answer.
func (g *keyScanner) rest() []byte { return g.held }
