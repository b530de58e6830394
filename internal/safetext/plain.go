package safetext

import (
	"strings"
	"unicode/utf8"
)

// Line returns s as one line. Characters that [Safe] rejects and bytes that are not UTF-8 are replaced by spaces, and
// runs of spaces are collapsed. It is for text that is used as text, such as a title or a message of a server; [Escape]
// shows the original characters.
func Line(s string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !Safe(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)), " ")
}

// Lines returns s without the characters that [Line] would replace. Newlines and tabs are kept.
func Lines(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (!Safe(r) || r == utf8.RuneError) {
			return -1
		}
		return r
	}, s)
}

// Short returns s if it has at most limit bytes, otherwise the whole characters within the first limit bytes and "…",
// which is 3 more bytes.
func Short(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
