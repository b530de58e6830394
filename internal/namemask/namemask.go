// Package namemask matches names that are to be hidden: credentials by convention. The gate finds them in a directory, and the
// file server of a sandbox leaves them out.
package namemask

import (
	"path"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Bounds of masks.
const (
	MaxPatterns = 1000 // in all
	MaxPattern  = 255  // bytes of one
	MaxListed   = 100  // hidden paths that a [Lister] lists
)

// A Mask says which files of a directory a sandbox does not see. It is safe for concurrent use.
type Mask struct {
	hide, show []pattern
	exact      map[string]bool // last names of hide's patterns without wildcards
	globs      []string        // those with wildcards
	lists      [2][]string     // as given
}

// pattern is one pattern, in lower case and split at slashes.
type pattern struct {
	names  []string
	rooted bool
}

const wildcards = `*?[\`

// New returns a mask of patterns. A pattern is one or more names as in [path.Match], with slashes between them, and matches at
// any depth, or only at the top if it begins with a slash. Case does not matter: some file systems do not care either. What is
// below a hidden directory is hidden, too. A pattern in show wins over those in hide, but not over a hidden directory above.
// Invalid if a pattern is malformed.
func New(hide, show []string) (*Mask, error) {
	m := &Mask{lists: [2][]string{slices.Clone(hide), slices.Clone(show)}}
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

// Hides reports whether a sandbox does not see path, which is relative and clean.
func (m *Mask) Hides(path string) bool { return m.hidden(path) > 0 }

// hidden returns how many names of path lead to what is hidden: path itself, or a directory above it. It is 0 if nothing is.
func (m *Mask) hidden(path string) int {
	names := strings.Split(strings.ToLower(path), "/")
	for i := range names {
		if m.hides(names[:i+1]) {
			return i + 1
		}
	}
	return 0
}

// A Lister is a mask that keeps a list of what it hides. It is not safe for concurrent use.
type Lister struct {
	mask *Mask
	last string
	// Hidden has the first [MaxListed] hidden paths, in the order in which they were asked about. Of what is below a hidden
	// directory it has only the directory. Bytes that are no UTF-8 are replaced.
	Hidden []string
	Count  int // of all hidden paths
}

// Lister returns a list of what m hides, which is empty.
func (m *Mask) Lister() *Lister { return &Lister{mask: m} }

// Hides is [Mask.Hides]. Of paths that come one after another and are below one hidden directory, only the directory is counted.
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

// Within returns the mask for a directory, in whose paths the names of its own path are missing; it may have several absolute paths. It also
// hides what patterns of several names hide there that begin with names of the directory, and all of the directory if m hides it or
// a directory above. Patterns that begin with a slash are about the directory itself, not about where it is.
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

// Lists returns the patterns that the mask was made of.
func (m *Mask) Lists() (hide, show []string) {
	return slices.Clone(m.lists[0]), slices.Clone(m.lists[1])
}

// HidesHere is Hides for a path whose directory is known not to be hidden. Scans ask it of every name there is.
func (m *Mask) HidesHere(path string) bool {
	last := strings.ToLower(path[strings.LastIndexByte(path, '/')+1:])
	return m.known(last) && m.hides(strings.Split(strings.ToLower(path), "/"))
}

// known reports whether last is the last name of a pattern of hide.
func (m *Mask) known(last string) bool {
	return m.exact[last] || slices.ContainsFunc(m.globs, func(g string) bool { return match(g, last) })
}

func (m *Mask) hides(names []string) bool {
	if !m.known(names[len(names)-1]) {
		return false
	}
	matches := func(p pattern) bool { return p.matches(names) }
	return slices.ContainsFunc(m.hide, matches) && !slices.ContainsFunc(m.show, matches)
}

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

// match is path.Match with a short way for what most patterns are.
func match(pattern, name string) bool {
	if end, ok := strings.CutPrefix(pattern, "*"); ok && !strings.ContainsAny(end, wildcards) {
		return strings.HasSuffix(name, end)
	}
	ok, _ := path.Match(pattern, name)
	return ok
}
