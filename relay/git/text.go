package git

import "github.com/caisson-dev/caisson/internal/safetext"

// Plain makes one line of at most limit bytes, and "…", of what a remote or git said.
func Plain(s string, limit int) string { return safetext.Short(safetext.Line(s), limit) }
