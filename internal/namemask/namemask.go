// Package namemask matches names of files to be hidden, such as files that contain credentials by convention. The gate
// uses it to find them in a directory, and the file server of a sandbox to leave them out.
package namemask

import (
	"path"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Limits of masks and of the lists of hidden paths.
const (
	MaxPatterns = 1000 // Maximum number of patterns of a mask.
	MaxPattern  = 255  // Maximum length of a pattern in bytes.
	MaxListed   = 100  // Maximum number of paths in [Lister].Hidden.
)

// A Mask defines which files of a directory are hidden from a sandbox. It is safe for concurrent use.
type Mask struct {
	hide, show []pattern       // the patterns of names to hide, and of names that are shown although they match one in hide
	exact      map[string]bool // Last path elements of the patterns in hide, if they have no wildcards.
	globs      []string        // Last path elements of the patterns in hide, if they have wildcards.
	source     [2][]string     // The lists hide and show as they were passed to New.
}

// pattern is one pattern in lower case, split at slashes.
type pattern struct {
	names  []string // the pattern's path elements
	rooted bool     // The pattern matches only at the top of the directory.
}

// wildcards are the characters with a special meaning in patterns.
const wildcards = `*?[\`

// New returns a mask of patterns. A pattern is one or more names as in [path.Match], separated by slashes. It matches
// at any depth, or only at the top if it starts with a slash. Matching ignores case, because some file systems do.
// Everything below a hidden directory is hidden. A pattern in show takes precedence over those in hide, but not over a
// hidden parent directory. New returns Invalid if a pattern is malformed.
func New(hide, show []string) (*Mask, error) {
	m := &Mask{source: [2][]string{slices.Clone(hide), slices.Clone(show)}}
	if len(hide)+len(show) > MaxPatterns {
		return nil, caisson.Errorf(caisson.Invalid, "%d patterns are too many; use at most %d", len(hide)+len(show), MaxPatterns)
	}
	var err error
	if m.hide, err = patterns("hide", hide); err != nil {
		return nil, err
	}
	if m.show, err = patterns("show", show); err != nil {
		return nil, err
	}
	m.exact = map[string]bool{}
	for _, p := range m.hide {
		last := p.names[len(p.names)-1]
		if strings.ContainsAny(last, wildcards) {
			m.globs = append(m.globs, last)
		} else {
			m.exact[last] = true
		}
	}
	return m, nil
}

// patterns parses the patterns in list. field is the name of the list in errors.
func patterns(field string, list []string) ([]pattern, error) {
	var all []pattern
	for _, s := range list {
		p := pattern{rooted: strings.HasPrefix(s, "/")}
		clean := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(s, "/"), "/"))
		if len(s) > MaxPattern || strings.ContainsRune(s, 0) {
			return nil, caisson.Invalidf(field, "%.40q is too long for a pattern", s)
		}
		for name := range strings.SplitSeq(clean, "/") {
			if _, err := path.Match(name, ""); err != nil || name == "" || name == "." || name == ".." {
				return nil, caisson.Invalidf(field, "%.40q is not a pattern of names; write for example *.pem or .aws/credentials", s)
			}
			p.names = append(p.names, name)
		}
		all = append(all, p)
	}
	return all, nil
}

// Hides reports whether path, which is relative and clean, is hidden.
func (m *Mask) Hides(path string) bool { return m.hidden(path) > 0 }

// hidden returns the number of leading names of path that form a hidden path: path itself, or a directory above it. It
// returns 0 if path is not hidden.
func (m *Mask) hidden(path string) int {
	names := strings.Split(strings.ToLower(path), "/")
	for i := range names {
		if m.hides(names[:i+1]) {
			return i + 1
		}
	}
	return 0
}

// A Lister decides which paths are hidden, as its mask does, and records those paths. It is not safe for concurrent use.
type Lister struct {
	mask *Mask  // decides which paths are hidden
	last string // the hidden path that was counted last
	// Hidden contains the first [MaxListed] hidden paths, in the order of the calls of Hides. A hidden directory is
	// listed instead of its contents. Bytes that are not UTF-8 are replaced.
	Hidden []string
	Count  int // Number of all hidden paths, also of those that are not in Hidden.
}

// Lister returns a new Lister, which hides the same paths as m and has recorded none yet.
func (m *Mask) Lister() *Lister { return &Lister{mask: m} }

// Hides reports whether path is hidden, and if so counts it; consecutive paths in a hidden directory count as that one directory.
func (l *Lister) Hides(path string) bool {
	n := l.mask.hidden(path)
	if n == 0 {
		return false
	}
	top := strings.Join(strings.SplitN(path, "/", n+1)[:n], "/")
	if top == l.last {
		return true
	}
	l.last = top
	l.Count++
	if len(l.Hidden) < MaxListed {
		l.Hidden = append(l.Hidden, strings.ToValidUTF8(top, "\ufffd"))
	}
	return true
}

// Within returns the mask for one directory, for paths that are relative to it. dirs are the absolute paths under which the
// directory is known. The mask also applies patterns of several names that start with names of the directory, and hides
// everything if m hides the directory or a parent of it. Patterns that start with a slash are relative to the directory itself,
// not to its ancestors.
func (m *Mask) Within(dirs ...string) (*Mask, error) {
	hide, show := m.Lists()
	for _, dir := range dirs {
		names := strings.Split(strings.ToLower(strings.Trim(path.Clean(dir), "/")), "/")
		for i := range names {
			above := func(p pattern) bool { return !p.rooted && p.matches(names[:i+1]) }
			if slices.ContainsFunc(m.hide, above) && !slices.ContainsFunc(m.show, above) {
				hide = append(hide, "/*")
				break
			}
		}
		for _, p := range m.hide {
			for n := 1; n < len(p.names) && !p.rooted; n++ {
				if (pattern{names: p.names[:n]}).matches(names) {
					hide = append(hide, "/"+strings.Join(p.names[n:], "/"))
				}
			}
		}
	}
	if len(hide) == len(m.hide) {
		return m, nil
	}
	return New(hide, show)
}

// Lists returns the patterns that the mask was created from.
func (m *Mask) Lists() (hide, show []string) {
	return slices.Clone(m.source[0]), slices.Clone(m.source[1])
}

// HidesName reports whether path, whose parent directories must not be hidden, is hidden. It is faster than Hides, for scans of
// directories, which call it for every name.
func (m *Mask) HidesName(path string) bool {
	last := strings.ToLower(path[strings.LastIndexByte(path, '/')+1:])
	return m.matchesLast(last) && m.hides(strings.Split(strings.ToLower(path), "/"))
}

// matchesLast reports whether last, a path element in lower case, matches the last element of a pattern in hide.
func (m *Mask) matchesLast(last string) bool {
	return m.exact[last] || slices.ContainsFunc(m.globs, func(g string) bool { return match(g, last) })
}

// hides reports whether the patterns hide the path that consists of names itself, whether or not a parent directory is hidden.
func (m *Mask) hides(names []string) bool {
	if !m.matchesLast(names[len(names)-1]) {
		return false
	}
	matches := func(p pattern) bool { return p.matches(names) }
	return slices.ContainsFunc(m.hide, matches) && !slices.ContainsFunc(m.show, matches)
}

// matches reports whether the pattern matches the path that consists of names.
func (p pattern) matches(names []string) bool {
	if len(names) < len(p.names) || p.rooted && len(names) != len(p.names) {
		return false
	}
	for i, name := range names[len(names)-len(p.names):] {
		if !match(p.names[i], name) {
			return false
		}
	}
	return true
}

// match is path.Match with a fast path for the most common patterns.
func match(pattern, name string) bool {
	if end, ok := strings.CutPrefix(pattern, "*"); ok && !strings.ContainsAny(end, wildcards) {
		return strings.HasSuffix(name, end)
	}
	ok, _ := path.Match(pattern, name)
	return ok
}
