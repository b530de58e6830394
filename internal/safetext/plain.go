package safetext

import (
	"strings"
	"unicode/utf8"
)

// Line returns s as one line in which everything that [Safe] refuses, and bytes that are not UTF-8, are spaces, and spaces are single.
// It is for text that goes on as text, such as a title or what a server said; [Escape] shows what was there.
func Line(s string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !Safe(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)), " ")
}

// Lines returns s without what Line would replace; newlines and tabs stay.
func Lines(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (!Safe(r) || r == utf8.RuneError) {
			return -1
		}
		return r
	}, s)
}

// Short returns s if it has at most limit bytes, else what of it has, by whole characters, and "…", which is 3 bytes more.
func Short(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
