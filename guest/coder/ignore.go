package coder

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Limits on a .gitignore file.
const (
	maxIgnore      = 64 << 10 // number of bytes of a .gitignore that are read
	maxIgnoreRules = 500      // maximum number of rules that apply in a directory
)

// ignoreRule is a line of a .gitignore file.
type ignoreRule struct {
	base    string         // path of the .gitignore's directory in the walked tree; "" or with a slash at the end
	match   *regexp.Regexp // matches the part of an ignored path after base
	negated bool           // the line begins with !: matching paths are not ignored
	dirs    bool           // the line ends with a slash: the rule applies to directories only
}

// ignores are the rules of the .gitignore files that apply in a directory: first those of the outermost directory.
type ignores []ignoreRule

// withFile returns g and the rules of the .gitignore in dir. base is dir relative to the directory that is listed or searched.
func (g ignores) withFile(dir, base string) ignores {
	f, _, err := openRegular(filepath.Join(dir, ".gitignore"), os.O_RDONLY, 0)
	if err != nil {
		return g
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxIgnore)) // after a read error, the part that was read is used
	g = g[:len(g):len(g)]
	for line := range bytes.Lines(b) {
		if len(g) == maxIgnoreRules {
			break
		}
		if r, ok := parseIgnore(string(bytes.TrimRight(line, "\r\n")), base); ok {
			g = append(g, r)
		}
	}
	return g
}

// parseIgnore parses a line of the .gitignore in the directory base. It returns false for comments, empty lines and bad patterns.
func parseIgnore(line, base string) (ignoreRule, bool) {
	line = strings.TrimRight(line, " \t")
	if line == "" || line[0] == '#' {
		return ignoreRule{}, false
	}
	r := ignoreRule{base: base}
	line, r.negated = strings.CutPrefix(line, "!")
	line, r.dirs = strings.CutSuffix(line, "/")
	anchored := strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if !anchored {
		line = "**/" + line
	}
	match, err := glob(line)
	r.match = match
	return r, err == nil
}

// glob compiles a file name pattern with git's syntax: *, ?, [...] and **.
func glob(pattern string) (*regexp.Regexp, error) {
	var re strings.Builder
	re.WriteString(`(?s)\A`)
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		switch c := pattern[i]; {
		case strings.HasPrefix(rest, "**/"):
			re.WriteString(`(?:.*/)?`)
			i += 2
		case strings.HasPrefix(rest, "**"):
			re.WriteString(`.*`)
			i++
		case c == '*':
			re.WriteString(`[^/]*`)
		case c == '?':
			re.WriteString(`[^/]`)
		case c == '[' && strings.IndexByte(rest[1:], ']') > 0:
			end := 1 + strings.IndexByte(rest[1:], ']')
			class := strings.NewReplacer(`\`, `\\`, `[`, `\[`).Replace(rest[1:end])
			if strings.HasPrefix(class, "!") {
				class = "^" + class[1:]
			}
			re.WriteString("[" + class + "]")
			i += end
		case c == '\\' && len(rest) > 1:
			i++
			re.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		default:
			re.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	re.WriteString(`\z`)
	return regexp.Compile(re.String())
}

// match reports whether the file or directory path, relative to the directory that is listed or searched, is ignored.
func (g ignores) match(path string, dir bool) bool {
	for i := len(g) - 1; i >= 0; i-- {
		r := &g[i]
		rest, under := strings.CutPrefix(path, r.base)
		if under && (dir || !r.dirs) && r.match.MatchString(rest) {
			return !r.negated
		}
	}
	return false
}
