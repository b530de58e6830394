package forge

import (
	"regexp"
	"strings"

	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// Bounds of what goes to a forge. GitHub takes 256 characters and 65,536 bytes.
const (
	maxTitle  = 255 - len("Draft: ") // characters
	maxBody   = 60_000               // bytes
	maxBranch = refname.MaxLength
)

// plainTitle returns s as one visible line.
func plainTitle(s string) string {
	s = safetext.Line(s)
	if r := []rune(s); len(r) > maxTitle {
		s = strings.TrimSpace(string(r[:maxTitle-1])) + "…"
	}
	return s
}

// plainBody returns s without what cannot be seen.
func plainBody(s string) string {
	return safetext.Short(safetext.Lines(s), maxBody)
}

// command finds lines that GitLab takes as orders to itself, with the rights of whose token it is: /merge, /assign, /close. Parts of a
// body come from an agent.
var command = regexp.MustCompile(`(?m)^(\s*)/`)

// withoutCommands makes such lines text.
func withoutCommands(s string) string { return command.ReplaceAllString(s, `$1\/`) }

// excerpt returns at most limit bytes of s, as one line that is safe to show.
func excerpt(s string, limit int) string {
	return safetext.Short(safetext.Escape(strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")), limit)
}
