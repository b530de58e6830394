package forge

import (
	"regexp"
	"strings"

	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// Limits on text sent to a forge. GitHub allows 256 characters in a title and 65,536 bytes in a body.
const (
	maxTitle  = 255 - len("Draft: ") // characters of a title, without the prefix of a draft
	maxBody   = 60_000               // bytes of a body
	maxBranch = refname.MaxLength    // bytes of the name of a branch
)

// plainTitle returns s as one line of at most 248 characters, without invisible characters.
func plainTitle(s string) string {
	s = safetext.Line(s)
	if r := []rune(s); len(r) > maxTitle {
		s = strings.TrimSpace(string(r[:maxTitle-1])) + "…"
	}
	return s
}

// plainBody returns s without invisible characters, shortened to 60,000 bytes.
func plainBody(s string) string {
	return safetext.Short(safetext.Lines(s), maxBody)
}

// quickAction matches the beginning of lines that GitLab executes as quick actions, such as /merge or /assign, with the rights of
// the token's owner. They must be escaped because bodies of pull requests contain text from agents.
var quickAction = regexp.MustCompile(`(?m)^(\s*)/`)

// escapeQuickActions escapes the slash at the beginning of lines, so that GitLab does not execute them as quick actions.
func escapeQuickActions(s string) string { return quickAction.ReplaceAllString(s, `$1\/`) }

// excerpt returns at most limit bytes of s, as one line that is safe to show.
func excerpt(s string, limit int) string {
	return safetext.Short(safetext.Escape(strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")), limit)
}
