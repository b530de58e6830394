package check

import (
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// Rules are what an operator says of changes, beside what is never applied. Zero fields mean the defaults. Patterns are as in
// [MatchPath].
type Rules struct {
	// Only are patterns of the paths that may be changed; empty: all.
	Only []string `yaml:"only" json:"only,omitempty"`
	// Deny are patterns of paths that are never changed, whatever their case.
	Deny []string `yaml:"deny" json:"deny,omitempty"`
	// Allow are patterns of paths that are protected by default and may be changed all the same: definitions of continuous
	// integration, hooks that are files of the tree, and what editors, shells, agents, builds and other tools run or follow. Not of
	// what is never changed: .git, and keys to the host.
	Allow []string `yaml:"allow" json:"allow,omitempty"`

	MaxFile  caisson.Size `yaml:"maxFile" json:"maxFile,omitempty"`   // of one file; 64 MiB
	MaxTotal caisson.Size `yaml:"maxTotal" json:"maxTotal,omitempty"` // of all files; 1 GiB
	MaxFiles int          `yaml:"maxFiles" json:"maxFiles,omitempty"` // changes; 20,000

	// MaxScan is the largest file that is searched for secrets; 4 MiB. A larger one is for a person to look at.
	MaxScan caisson.Size `yaml:"maxScan" json:"maxScan,omitempty"`
	// ScanTime is for how long all files are searched for secrets; 60 s. What was not searched by then is denied.
	ScanTime caisson.Duration `yaml:"scanTime" json:"scanTime,omitempty"`

	// History says that the changes are those of a commit. What looks like a secret is denied then, because whatever comes later,
	// it stays in the history; and a file may become one that can be executed, because nothing runs it there.
	History bool `yaml:"-" json:"history,omitempty"`
	// AskSecrets are patterns of paths in which what looks like a secret is asked about even then: somebody has said that there are
	// false alarms.
	AskSecrets []string `yaml:"-" json:"askSecrets,omitempty"`
}

// Bounds of rules.
const (
	maxRulePatterns = 1000
	maxPatternSize  = 1024
	defaultScanTime = caisson.Duration(time.Minute)
)

// Validate returns an Invalid error that names the field at fault.
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

const maxScan = 64 << 20

// WithDefaults returns r with the defaults where its limits are zero.
func (r Rules) WithDefaults() Rules {
	orElse := func(n *caisson.Size, def caisson.Size) {
		if *n == 0 {
			*n = def
		}
	}
	orElse(&r.MaxFile, 64<<20)
	orElse(&r.MaxTotal, 1<<30)
	orElse(&r.MaxScan, 4<<20)
	if r.MaxFiles == 0 {
		r.MaxFiles = 20_000
	}
	if r.ScanTime == 0 {
		r.ScanTime = defaultScanTime
	}
	return r
}

// ValidPattern returns an Invalid error if [MatchPath] would match nothing because pattern is malformed.
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

// MatchPath reports whether pattern matches a relative path with slashes. ** stands for any number of directories, also none; *, ?
// and [a-z] are as in path.Match and match no slash. A pattern without a slash matches a name in any directory; one that begins
// with a slash begins at the root. What matches a directory matches all that is in it. A malformed pattern matches nothing. Time
// is bounded by the product of the two lengths.
func MatchPath(pattern, name string) bool {
	if ValidPattern(pattern) != nil {
		return false
	}
	rooted := strings.Contains(strings.TrimSuffix(pattern, "/"), "/")
	parts := strings.Split(strings.Trim(pattern, "/"), "/")
	if !rooted {
		parts = append([]string{"**"}, parts...)
	}
	// reached[i]: the first i parts match the names so far.
	reached := make([]bool, len(parts)+1)
	reached[0] = true
	passOver(parts, reached)
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
		passOver(parts, next)
		if next[len(parts)] {
			return true // the path itself or a directory above
		}
		reached = next
	}
	return false
}

// passOver lets ** stand for nothing.
func passOver(parts []string, reached []bool) {
	for i, p := range parts {
		if p == "**" && reached[i] {
			reached[i+1] = true
		}
	}
}

func matchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if MatchPath(p, name) {
			return true
		}
	}
	return false
}
