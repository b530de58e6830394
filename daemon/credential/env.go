package credential

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// maxEnvFile is the maximum size of an environment file in bytes.
const maxEnvFile = 1 << 20

// A Variable is an assignment in an environment file.
type Variable struct {
	Name         string
	Value        caisson.Secret // value of the variable; the zero Secret if the value is empty
	Line         int            // line where the assignment begins, from 1
	PreviousLine int            // line of the previous assignment of the same name, 0 if there is none
}

// ParseEnv parses an environment file (.env): lines of NAME=VALUE with an optional "export " prefix, empty lines, and comments
// that begin with a # at the beginning of a line or after a space.
//
// Parsers of such files differ, and a secret must not depend on the parser. ParseEnv therefore accepts only syntax that all
// parsers read alike, and returns an Invalid error with the line number and no content for the rest. A value is bare (no spaces,
// quotes, backslashes or #), in single quotes (no escapes), or in double quotes (\n, \r, \t, \", \$ and \\ are escapes). Quoted
// values may span several lines. Nothing is interpolated: $NAME, ${ and $( outside single quotes are refused. Line ends may be LF
// or CRLF, and a byte order mark at the beginning is skipped.
func ParseEnv(r io.Reader) ([]Variable, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxEnvFile+1))
	defer clear(b)
	switch {
	case err != nil:
		return nil, caisson.Wrap(err, caisson.Invalid, "the file of variables cannot be read")
	case len(b) > maxEnvFile:
		return nil, caisson.Errorf(caisson.Invalid, "the file of variables is larger than 1 MiB")
	case !utf8.Valid(b):
		return nil, caisson.Errorf(caisson.Invalid, "the file of variables is not text in UTF-8")
	}
	text := strings.ReplaceAll(string(bytes.TrimPrefix(b, []byte("\uFEFF"))), "\r\n", "\n")
	if before, _, ok := strings.Cut(text, "\r"); ok {
		return nil, caisson.Errorf(caisson.Invalid, "line %d of the file of variables has a carriage return that is not at its end", 1+strings.Count(before, "\n"))
	}
	p := envParser{rest: text, line: 1}
	lines := map[string]int{}
	var all []Variable
	for p.rest != "" {
		v, err := p.next()
		if err != nil {
			return nil, err
		}
		if v.Name == "" {
			continue
		}
		v.PreviousLine = lines[v.Name]
		lines[v.Name] = v.Line
		all = append(all, v)
	}
	return all, nil
}

// envParser parses an environment file.
type envParser struct {
	rest string // text that has not been parsed; before each call of next, it starts at the beginning of a line
	line int    // number of the first line of rest, from 1
}

// assignment matches the part of a line before its value.
var assignment = regexp.MustCompile(`^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=`)

// interpolation matches references to variables and commands that some parsers replace. In double quotes, \$ is not such a
// reference.
var interpolation = regexp.MustCompile(`(^|[^\\])(\\\\)*\$[A-Za-z_{(]`)

// interpolationMessage is the error message for a value that matches interpolation.
const interpolationMessage = "has a $ that some parsers would expand; put the value in single quotes"

// next parses one assignment, or one line. If the line is empty or a comment, the name of the result is "".
func (p *envParser) next() (Variable, error) {
	v := Variable{Line: p.line}
	if first := strings.TrimLeft(p.rest, " \t"); first == "" || first[0] == '\n' || first[0] == '#' {
		_, p.rest, _ = strings.Cut(p.rest, "\n")
		p.line++
		return v, nil
	}
	m := assignment.FindStringSubmatch(p.rest)
	if m == nil {
		return v, p.errorf("is not of the form NAME=VALUE, without spaces around =")
	}
	v.Name, p.rest = m[1], p.rest[len(m[0]):]
	var value string
	var err error
	switch {
	case strings.HasPrefix(p.rest, "'"):
		value, err = p.singleQuoted()
	case strings.HasPrefix(p.rest, `"`):
		value, err = p.doubleQuoted()
	default:
		value, err = p.unquoted()
	}
	if err == nil {
		err = p.endLine()
	}
	if err == nil && strings.IndexFunc(value, isControl) >= 0 {
		err = caisson.Errorf(caisson.Invalid, "line %d of the file of variables has a control character", v.Line)
	}
	v.Value = caisson.NewSecret(value)
	return v, err
}

// singleQuoted parses a value in single quotes.
func (p *envParser) singleQuoted() (string, error) {
	value, rest, ok := strings.Cut(p.rest[1:], "'")
	if !ok {
		return "", p.errorf("opens a ' that is never closed")
	}
	p.rest = rest
	p.line += strings.Count(value, "\n")
	return value, nil
}

// doubleQuoted parses a value in double quotes.
func (p *envParser) doubleQuoted() (string, error) {
	var value strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; c {
		case '"':
			if interpolation.MatchString(p.rest[:i]) {
				return "", p.errorf(interpolationMessage)
			}
			lines := strings.Count(p.rest[:i], "\n")
			p.rest = p.rest[i+1:]
			p.line += lines
			return value.String(), nil
		case '\\':
			i++
			if i == len(p.rest) {
				continue
			}
			k := strings.IndexByte(`nrt"$\`, p.rest[i])
			if k < 0 {
				return "", p.errorf(`has a \ escape in double quotes that parsers read differently; use single quotes`)
			}
			value.WriteByte("\n\r\t\"$\\"[k])
		default:
			value.WriteByte(c)
		}
	}
	return "", p.errorf(`opens a " that is never closed`)
}

// unquoted parses a value without quotes.
func (p *envParser) unquoted() (string, error) {
	n := strings.IndexAny(p.rest, " \t\n")
	if n < 0 {
		n = len(p.rest)
	}
	value := p.rest[:n]
	if strings.ContainsAny(value, "'\"\\`#") {
		return "", p.errorf("has a quote, a backslash or a # within a value; put the whole value in single quotes")
	}
	if interpolation.MatchString(value) {
		return "", p.errorf(interpolationMessage)
	}
	p.rest = p.rest[n:]
	return value, nil
}

// endLine parses the rest of a line after a value.
func (p *envParser) endLine() error {
	line, rest, _ := strings.Cut(p.rest, "\n")
	tail := strings.TrimLeft(line, " \t")
	if tail != "" && (tail[0] != '#' || tail == line) {
		return p.errorf("has something behind its value; put a value with spaces in single quotes")
	}
	p.rest = rest
	p.line++
	return nil
}

// errorf returns an Invalid error with the number of the current line.
func (p *envParser) errorf(what string) error {
	return caisson.Errorf(caisson.Invalid, "line %d of the file of variables %s", p.line, what)
}

// isControl reports whether c is a control character other than a line end or tab.
func isControl(c rune) bool { return c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f }
