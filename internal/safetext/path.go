package safetext

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Path returns path with escapes, such as \xff, for the bytes that are not UTF-8. Paths in [caisson.Change] have this form.
func Path(path string) string {
	if utf8.ValidString(path) {
		return path
	}
	var b strings.Builder
	for len(path) > 0 {
		r, n := utf8.DecodeRuneInString(path)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, path[0])
		} else {
			b.WriteString(path[:n])
		}
		path = path[n:]
	}
	return b.String()
}
