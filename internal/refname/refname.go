// Package refname says what branches and tags may be called. There is one rule for all that Caisson is told, by people, remotes, forges
// and sandboxes. It is stricter than git's: such a name is no trap for whoever prints it, puts it on a command line or into an address.
package refname

import (
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// MaxLength is how many bytes a name may have: less than the longest name of a file, with room for ".lock".
const MaxLength = 240

// How the full names of branches and tags begin.
const (
	Heads = "refs/heads/"
	Tags  = "refs/tags/"
)

// Valid reports whether name can be a branch or tag, without its prefix. It is UTF-8 that can be seen, without spaces, quotes and most of what
// shells, globs or git take for more than a letter, and not what git or its users could take for another name. It is no shell word.
func Valid(name string) bool {
	if name == "" || len(name) > MaxLength || !utf8.ValidString(name) || name == "@" || name == "HEAD" || name[0] == '-' {
		return false
	}
	if strings.HasPrefix(name, "refs/") || strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.HasSuffix(name, ".") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r < ' ' || r == utf8.RuneError || strings.ContainsRune(" ~^:?*[\\\"'`$|;<>", r) || !safetext.Safe(r)
	})
}

// ValidFull reports whether name is the full name of a branch or tag.
func ValidFull(name string) bool {
	short, ok := strings.CutPrefix(name, Heads)
	if !ok {
		short, ok = strings.CutPrefix(name, Tags)
	}
	return ok && Valid(short)
}
