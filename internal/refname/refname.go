// Package refname defines the valid names of branches and tags. The same rule applies to names from users, remotes,
// forges and sandboxes. It is stricter than git's, so that a valid name can safely be printed, passed as a program
// argument and used in a URL.
package refname

import (
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// MaxLength is the maximum length of a name in bytes. It is less than the 255 bytes of a file name, so that git can append
// ".lock".
const MaxLength = 240

// Prefixes of the full names of branches and tags.
const (
	Heads = "refs/heads/"
	Tags  = "refs/tags/"
)

// Valid reports whether name can be the name of a branch or tag without its prefix. It must be visible UTF-8 without
// spaces, quotes and most characters that are special in shells, globs or git, and must not be a name that git or its
// users could confuse with another one. It may still need quoting in a shell.
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

// ValidFull reports whether name is a valid full name of a branch or tag.
func ValidFull(name string) bool {
	short, ok := strings.CutPrefix(name, Heads)
	if !ok {
		short, ok = strings.CutPrefix(name, Tags)
	}
	return ok && Valid(short)
}
