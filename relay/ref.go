package relay

import (
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// maxRefName is less than the longest file name, with room for ".lock".
const maxRefName = 240

// validRef reports whether name is the full name of a branch or tag that git accepts, and that is no trap for whoever prints it or
// puts it on a command line: it is stricter than git, which allows any byte above 0x7f.
func validRef(name string) bool {
	short, ok := strings.CutPrefix(name, "refs/heads/")
	if !ok {
		if short, ok = strings.CutPrefix(name, "refs/tags/"); !ok {
			return false
		}
	}
	return validShortRef(short)
}

// validShortRef is validRef for a name without its prefix.
func validShortRef(short string) bool {
	if short == "" || len(short) > maxRefName || !utf8.ValidString(short) || short == "@" || short == "HEAD" || short[0] == '-' {
		return false
	}
	if strings.Contains(short, "..") || strings.Contains(short, "@{") || strings.HasSuffix(short, ".") {
		return false
	}
	for part := range strings.SplitSeq(short, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return !strings.ContainsFunc(short, func(r rune) bool {
		return strings.ContainsRune(" ~^:?*[\\\"'`$|;<>", r) || !printable(r)
	})
}

// validCommit reports whether id is the name of an object, of SHA-1 or SHA-256, and not the one that means none.
func validCommit(id string) bool {
	if len(id) != 40 && len(id) != 64 {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return strings.Trim(id, "0") != ""
}

// checkRefs says what is wrong with a list of refs that is to be granted.
func checkRefs(refs []Ref) error {
	seen := make(map[string]bool, len(refs))
	for _, r := range refs {
		switch {
		case !validRef(r.Name):
			return caisson.Invalidf("refs", "%.100q is not the name of a branch or tag", r.Name)
		case !validCommit(r.Commit):
			return caisson.Invalidf("refs", "%.100q of %s is not a commit", r.Commit, r.Name)
		case seen[r.Name]:
			return caisson.Invalidf("refs", "%s is there twice", r.Name)
		}
		seen[r.Name] = true
	}
	return nil
}
