package git

import "github.com/caisson-dev/caisson/internal/safetext"

// Plain returns output of a remote or of git as one line of at most limit bytes, followed by "…" if it was truncated.
func Plain(s string, limit int) string { return safetext.Short(safetext.Line(s), limit) }
