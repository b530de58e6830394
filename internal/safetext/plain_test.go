package safetext

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPlain(t *testing.T) {
	for _, c := range []struct{ in, line, lines string }{
		{"", "", ""},
		{"größer, 日本語, 🦀", "größer, 日本語, 🦀", "größer, 日本語, 🦀"},
		{" a\r\n\tb  c\n", "a b c", " a\n\tb  c\n"},
		{"a\x1b[31mb", "a [31mb", "a[31mb"},
		{"a\u200bb\u202ec\u2028d\U000e0041e", "a b c d e", "abcde"},
		{"bad\xff\xc3(\ufffd.", "bad ( .", "bad(."},
	} {
		if got := Line(c.in); got != c.line || Line(got) != got {
			t.Errorf("Line(%q) = %q, want %q", c.in, got, c.line)
		}
		if got := Lines(c.in); got != c.lines || Lines(got) != got {
			t.Errorf("Lines(%q) = %q, want %q", c.in, got, c.lines)
		}
	}
}

func TestShort(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aéé", 2, "a…"}, {"aéé", 3, "aé…"}, {"é", 0, "…"}} {
		if got := Short(c.in, c.n); got != c.want {
			t.Errorf("Short(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("a\r\n\x1b[0m\u202e\xff", 3)
	f.Fuzz(func(t *testing.T, s string, n int) {
		for _, got := range []string{Line(s), Lines(s)} {
			if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && r != '\t' && !Safe(r) }) {
				t.Errorf("%q of %q", got, s)
			}
			if n >= 0 {
				if cut := Short(got, n); !utf8.ValidString(cut) || len(cut) > n+len("…") {
					t.Errorf("%q cut at %d is %q", got, n, cut)
				}
			}
		}
	})
}
