package relay

import "github.com/caisson-dev/caisson/internal/safetext"

// plain makes one line of at most limit bytes, and "…", of what a remote or git said.
func plain(s string, limit int) string { return safetext.Short(safetext.Line(s), limit) }
