package check

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// Rules are the operator's rules for changes, which apply in addition to the built-in rules of this package. Zero fields mean
// the defaults. [MatchPath] compares paths with the patterns.
type Rules struct {
	// Only are patterns of the paths that may be changed. If empty, all paths may be changed.
	Only []string `yaml:"only" json:"only,omitempty"`
	// Deny are patterns of paths that are never changed, regardless of case.
	Deny []string `yaml:"deny" json:"deny,omitempty"`
	// Allow are patterns of paths that are protected by default and may be changed nevertheless: definitions of continuous
	// integration, hooks that are files of the tree, and files that editors, shells, agents, builds and other tools execute or
	// follow. It does not apply to .git and to keys of the host's user.
	Allow []string `yaml:"allow" json:"allow,omitempty"`

	// MaxFile is the size of the largest file that may be changed; default 64 MiB.
	MaxFile  caisson.Size `yaml:"maxFile" json:"maxFile,omitempty"`
	MaxTotal caisson.Size `yaml:"maxTotal" json:"maxTotal,omitempty"` // maximum size of all changed files together; default 1 GiB
	MaxFiles int          `yaml:"maxFiles" json:"maxFiles,omitempty"` // maximum number of changes; default 20,000

	// MaxScan is the size, in bytes, of the largest file that is searched for secrets; default 4 MiB, at most 64 MiB. Larger
	// files require a review.
	MaxScan caisson.Size `yaml:"maxScan" json:"maxScan,omitempty"`
	// ScanTime is the time limit for searching all files for secrets; default 60 s. Files that were not searched by then are denied.
	ScanTime caisson.Duration `yaml:"scanTime" json:"scanTime,omitempty"`

	// History means that the changes are those of a commit, and not of a workspace. Possible secrets are then denied instead of
	// reviewed, because they remain in the history even if a later commit removes them. Files may become executable, because
	// pushing a commit does not run them.
	History bool `yaml:"-" json:"history,omitempty"`
	// AskSecrets are patterns of the paths of files in which possible secrets require a review and are not denied, even if
	// History is set. They are for files in which the search reports texts that are not secrets. For a repository, they are its
	// setting AllowSecrets.
	AskSecrets []string `yaml:"-" json:"askSecrets,omitempty"`
}

// Limits of [Rules].
const (
	maxRulePatterns = 1000                          // maximum number of patterns in one list
	maxPatternSize  = 1024                          // maximum length of one pattern in bytes
	defaultScanTime = caisson.Duration(time.Minute) // default of Rules.ScanTime
)

// Validate returns an Invalid error that names the first invalid field.
func (r *Rules) Validate() error {
	for _, list := range []struct {
		field    string
		patterns []string
	}{{"only", r.Only}, {"deny", r.Deny}, {"allow", r.Allow}, {"askSecrets", r.AskSecrets}} {
		if len(list.patterns) > maxRulePatterns {
			return caisson.Invalidf(list.field, "%d patterns are too many; the most is %d", len(list.patterns), maxRulePatterns)
		}
		for i, p := range list.patterns {
			if err := ValidPattern(p); err != nil {
				return caisson.Invalidf(list.field+"["+strconv.Itoa(i)+"]", "%s", caisson.MessageOf(err))
			}
		}
	}
	for _, n := range []struct {
		field string
		value int64
	}{
		{"maxFile", int64(r.MaxFile)},
		{"maxTotal", int64(r.MaxTotal)},
		{"maxFiles", int64(r.MaxFiles)},
		{"maxScan", int64(r.MaxScan)},
		{"scanTime", int64(r.ScanTime)},
	} {
		if n.value < 0 {
			return caisson.Invalidf(n.field, "must not be negative; leave it out for the default")
		}
	}
	if r.MaxScan > maxScan {
		return caisson.Invalidf("maxScan", "may be at most %v", caisson.Size(maxScan))
	}
	return nil
}

const maxScan = 64 << 20 // maximum of Rules.MaxScan, in bytes

// WithDefaults returns r with zero limits replaced by the defaults.
func (r Rules) WithDefaults() Rules {
	orElse := func(n *caisson.Size, def caisson.Size) {
		if *n == 0 {
			*n = def
		}
	}
	orElse(&r.MaxFile, 64<<20)
	orElse(&r.MaxTotal, 1<<30)
	orElse(&r.MaxScan, 4<<20)
	r.MaxFiles = cmp.Or(r.MaxFiles, 20_000)
	r.ScanTime = cmp.Or(r.ScanTime, defaultScanTime)
	return r
}

// ValidPattern returns an Invalid error if pattern is malformed, so that it would match nothing in [MatchPath].
func ValidPattern(pattern string) error {
	switch {
	case pattern == "" || pattern == "/":
		return caisson.Errorf(caisson.Invalid, "an empty pattern matches nothing; write ** for everything")
	case len(pattern) > maxPatternSize:
		return caisson.Errorf(caisson.Invalid, "a pattern has at most %d bytes", maxPatternSize)
	case !utf8.ValidString(pattern):
		return caisson.Errorf(caisson.Invalid, "the pattern %.80q is not UTF-8", pattern)
	}
	for part := range strings.SplitSeq(strings.Trim(pattern, "/"), "/") {
		if _, err := path.Match(part, ""); err != nil {
			return caisson.Errorf(caisson.Invalid, "the pattern %.80q is malformed: close its brackets, and put no slash in them", pattern)
		}
		if part == "" || part == "." || part == ".." {
			return caisson.Errorf(caisson.Invalid, "the pattern %.80q matches nothing: paths have no empty parts, . or ..", pattern)
		}
	}
	return nil
}

// MatchPath reports whether pattern matches a relative path with slashes. ** matches any number of directories, including none;
// *, ? and [a-z] are as in path.Match and do not match a slash. A pattern without a slash matches a name in any directory; other
// patterns are relative to the root, with or without a leading slash. A pattern that matches a directory matches everything in
// it. A malformed pattern matches nothing. The time is at most proportional to the product of the lengths of pattern and name.
func MatchPath(pattern, name string) bool {
	if ValidPattern(pattern) != nil {
		return false
	}
	rooted := strings.Contains(strings.TrimSuffix(pattern, "/"), "/")
	parts := strings.Split(strings.Trim(pattern, "/"), "/")
	if !rooted {
		parts = append([]string{"**"}, parts...)
	}
	// reached[i] means that the first i parts of the pattern match the names of the path so far.
	reached := make([]bool, len(parts)+1)
	reached[0] = true
	skipDoubleStars(parts, reached)
	for part := range strings.SplitSeq(name, "/") {
		next := make([]bool, len(parts)+1)
		for i, p := range parts {
			if !reached[i] {
				continue
			}
			if p == "**" {
				next[i] = true
			} else if ok, _ := path.Match(p, part); ok {
				next[i+1] = true
			}
		}
		skipDoubleStars(parts, next)
		if next[len(parts)] {
			return true // the pattern matches the path itself or a parent directory of it
		}
		reached = next
	}
	return false
}

// skipDoubleStars sets reached[i+1] for each part i that is ** and is reached, because ** can match no directory.
func skipDoubleStars(parts []string, reached []bool) {
	for i, p := range parts {
		if p == "**" && reached[i] {
			reached[i+1] = true
		}
	}
}

// matchAny reports whether one of patterns matches the path name.
func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return MatchPath(p, name) })
}
