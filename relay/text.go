package relay

import (
	"unicode/utf8"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// printable reports whether r can be shown anywhere without deceiving whoever reads it.
func printable(r rune) bool { return r >= 0x20 && r != utf8.RuneError && safetext.Safe(r) }

// plain makes one line of at most limit bytes, and "…", of what a remote or git said.
func plain(s string, limit int) string { return safetext.Short(safetext.Line(s), limit) }
