package git

import (
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
)

// A Ref is a branch or tag.
type Ref struct {
	Name   string // full name, such as "refs/heads/main"
	Commit string // 40 or 64 hexadecimal digits; for an annotated tag the name of the tag object
}

// ValidCommit reports whether id is an object name of SHA-1 or SHA-256 and not the all-zero name, which stands for no object.
func ValidCommit(id string) bool {
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

// CheckRefs validates a list of refs that are to be granted.
func CheckRefs(refs []Ref) error {
	seen := make(map[string]bool, len(refs))
	for _, r := range refs {
		switch {
		case !refname.ValidFull(r.Name):
			return caisson.Invalidf("refs", "%.100q is not the name of a branch or tag", r.Name)
		case !ValidCommit(r.Commit):
			return caisson.Invalidf("refs", "%.100q of %s is not a commit", r.Commit, r.Name)
		case seen[r.Name]:
			return caisson.Invalidf("refs", "%s occurs twice", r.Name)
		}
		seen[r.Name] = true
	}
	return nil
}
