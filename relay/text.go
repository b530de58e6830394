package relay

import (
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// printable reports whether r can be shown anywhere without deceiving whoever reads it.
func printable(r rune) bool { return r >= 0x20 && r != utf8.RuneError && safetext.Safe(r) }

// plain makes one line of at most limit bytes of what a remote or git said.
func plain(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if !printable(r) {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}
