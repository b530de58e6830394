// Package safetext makes untrusted text safe to show on a terminal.
//
// [Escape] is for single values that Caisson prints: a name in a table, an error, a label. [Filter] is for the output
// of programs that is passed through as a stream; it has a strict mode for logs and a less strict one for interactive
// programs. Dangerous characters are not hidden but replaced by an escape such as \x1b, except in interactive mode,
// where escapes would garble the screen and the characters are dropped.
package safetext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape returns s as one line of visible text: characters that [Safe] rejects and bytes that are not UTF-8 become \xNN, \uNNNN
// or \UNNNNNNNN. It is for display only: a literal backslash is not escaped, so the result is not reversible.
func Escape(s string) string {
	if clean(s, Safe) {
		return s
	}
	return escape(s, Safe)
}

// EscapeLines is like Escape, but keeps newlines and tabs. It is for text of several lines.
func EscapeLines(s string) string {
	ok := func(r rune) bool { return r == '\n' || r == '\t' || Safe(r) }
	if clean(s, ok) {
		return s
	}
	return escape(s, ok)
}

// Safe reports whether r is a visible character or a space. Control, formatting, bidirectional, invisible, unassigned
// and private characters and line separators are not safe.
func Safe(r rune) bool {
	if r >= 0x20 && r < 0x7f {
		return true
	}
	return unicode.IsGraphic(r) && !unicode.Is(invisible, r)
}

// invisible lists characters that Unicode classifies as graphic although they are not visible. Names that differ only
// by them look the same.
var invisible = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, // combining grapheme joiner
		{Lo: 0x115f, Hi: 0x1160, Stride: 1}, // Hangul fillers
		{Lo: 0x17b4, Hi: 0x17b5, Stride: 1}, // Khmer inherent vowels
		{Lo: 0x180b, Hi: 0x180f, Stride: 1}, // Mongolian variation selectors
		{Lo: 0x2800, Hi: 0x2800, Stride: 1}, // empty Braille pattern
		{Lo: 0x3164, Hi: 0x3164, Stride: 1}, // Hangul filler
		{Lo: 0xffa0, Hi: 0xffa0, Stride: 1}, // half-width Hangul filler
	},
	R32: []unicode.Range32{
		{Lo: 0xe0000, Hi: 0xe0fff, Stride: 1}, // tags and supplementary variation selectors
	},
}

// EscapeJSON returns a JSON text in which every unsafe character is written as \uNNNN. Outside of strings the only
// unsafe characters of JSON are white space, so the value is unchanged.
func EscapeJSON(s string) string {
	return escapeIn(s, func(b *strings.Builder, r rune) {
		if r >= 0x10000 {
			r -= 0x10000
			fmt.Fprintf(b, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
			return
		}
		fmt.Fprintf(b, `\u%04x`, r)
	})
}

// EscapeYAML is like EscapeJSON, for YAML. All strings with unsafe characters in the text must be double-quoted.
func EscapeYAML(s string) string {
	return escapeIn(s, func(b *strings.Builder, r rune) {
		if r >= 0x10000 {
			fmt.Fprintf(b, `\U%08x`, r)
			return
		}
		fmt.Fprintf(b, `\u%04x`, r)
	})
}

// escapeIn returns s with each unsafe character except newline, tab and carriage return replaced by what write writes for it.
func escapeIn(s string, write func(*strings.Builder, rune)) string {
	ok := func(r rune) bool { return r == '\n' || r == '\t' || r == '\r' || Safe(r) }
	if clean(s, ok) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if ok(r) {
			b.WriteRune(r)
			continue
		}
		write(&b, r)
	}
	return b.String()
}

// clean reports whether s is valid UTF-8 and ok returns true for each of its characters.
func clean(s string, ok func(rune) bool) bool {
	for i, r := range s {
		if !ok(r) {
			return false
		}
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return false
			}
		}
	}
	return true
}

// escape returns s with escapes for characters for which ok returns false, and for bytes that are not UTF-8.
func escape(s string, ok func(rune) bool) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if ok(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[i : i+n])
		} else {
			b.WriteString(escapeOne(s[i : i+n]))
		}
		i += n
	}
	return b.String()
}

// escapeOne returns the escape of one character, or of one byte that is not part of a character.
func escapeOne(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	switch {
	case r == utf8.RuneError && n == 1, r < 0x80:
		return fmt.Sprintf(`\x%02x`, s[0])
	case r < 0x10000:
		return fmt.Sprintf(`\u%04x`, r)
	default:
		return fmt.Sprintf(`\U%08x`, r)
	}
}
