package check

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/caisson-dev/caisson"
)

// nameKey returns the key of a name: the form in which the name has no difference that some file system or program ignores,
// such as case, the form of Unicode, invisible characters, and trailing dots and spaces on Windows. Names with equal keys may
// be the same name on some system.
func nameKey(name string) string {
	plain := true
	for i := range len(name) {
		plain = plain && name[i] < utf8.RuneSelf
	}
	if plain {
		return strings.TrimRight(strings.ToLower(name), ". ")
	}
	var b strings.Builder
	for _, r := range norm.NFKC.String(name) {
		switch {
		case ignorable(r):
		case r == 'ß' || r == 'ẞ':
			b.WriteString("ss")
		case r == 'ı' || r == 'İ':
			b.WriteByte('i')
		default:
			least := r
			for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
				least = min(least, f)
			}
			b.WriteRune(unicode.ToLower(least))
		}
	}
	return strings.TrimRight(norm.NFKC.String(b.String()), ". ")
}

// ignorable reports whether r is invisible, or is ignored in names by a file system (HFS+).
func ignorable(r rune) bool {
	return unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Variation_Selector, r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}

// pathKey returns path with each name replaced by its nameKey: paths with equal keys may be the same path on some system.
func pathKey(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = nameKey(p)
	}
	return strings.Join(parts, "/")
}

// GitName reports whether git interprets name as .git, the directory of a repository, on any operating system.
func GitName(name string) bool {
	// On Windows a backslash separates names, and a colon separates a name from the name of a stream.
	for part := range strings.SplitSeq(name, `\`) {
		part, _, _ = strings.Cut(part, ":")
		key := nameKey(part)
		if key == ".git" {
			return true
		}
		if n, ok := strings.CutPrefix(key, "git~"); ok && n != "" && strings.Trim(n, "0123456789") == "" {
			return true
		}
	}
	return false
}

// checkName calls add with each finding about one name in a path.
func checkName(name string, add func(verdict, format string, args ...any)) {
	if !utf8.ValidString(name) {
		add(caisson.VerdictDeny, "the name %.80q is not UTF-8", name)
		return
	}
	var hidden, direction bool
	for _, r := range name {
		switch {
		case unicode.Is(unicode.Cc, r) || r == '\u2028' || r == '\u2029':
			add(caisson.VerdictDeny, "the name %.80q has control characters", name)
			return
		case unicode.Is(unicode.Bidi_Control, r):
			direction = true
		case ignorable(r) || unicode.Is(unicode.Co, r) || unicode.Is(unicode.Zs, r) && r != ' ' || r == utf8.RuneError || !unicode.IsGraphic(r):
			hidden = true
		}
	}
	if direction {
		add(caisson.VerdictDeny, "the name %+.120q has marks that change the direction of text, and is not what it looks like", name)
		return
	}
	if hidden {
		add(caisson.VerdictAsk, "the name %+.120q has characters that are not seen", name)
	}
	switch {
	case strings.HasPrefix(name, "-"):
		add(caisson.VerdictAsk, "programs may take the name %.80q for an option", name)
	case strings.HasPrefix(name, "~"):
		add(caisson.VerdictAsk, "shells may take the name %.80q for a home directory", name)
	}
	if strings.TrimRight(name, ". ") != name || strings.HasPrefix(name, " ") {
		add(caisson.VerdictAsk, "the name %.80q begins or ends with what is easily overlooked", name)
	}
	if strings.Contains(name, `\`) {
		add(caisson.VerdictAsk, "the name %.80q has a backslash, which separates names on other systems", name)
	}
}
