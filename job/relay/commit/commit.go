// Package commit parses commits and trees, and checks what commits change and contain.
package commit

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// lastDate is the last second of the year 9999. Programs and forges interpret later dates differently.
const lastDate = 253402300799

// Headers of commits besides tree, parent, author and committer.
const (
	headerEncoding        = "encoding"      // character encoding of the message
	HeaderSignature       = "gpgsig"        // signature of a commit whose name is a SHA-1
	HeaderSignatureSHA256 = "gpgsig-sha256" // signature of a commit whose name is a SHA-256
	HeaderMergeTag        = "mergetag"      // signed tag that was merged
)

// A Header is a name with its value; the lines of a multi-line value are separated by newlines.
type Header struct{ Name, Value string }

// A RawCommit is a parsed commit object. For an object as git writes it, Bytes returns exactly the parsed bytes.
type RawCommit struct {
	tree      string   // object name of the tree
	Parents   []string // object names of the parents
	Author    string   // "name <email> seconds zone"
	Committer string   // in the same form as Author
	Extra     []Header // other headers, in the order of the object
	message   string   // everything after the first empty line
}

// ParseCommit parses a commit object. It is stricter than git: headers must be in git's order, unknown headers are not allowed,
// authors and committers must have a name, an address and a date, and everything must be text. It returns a Denied error if the
// commit breaks these rules.
func ParseCommit(data []byte) (*RawCommit, error) {
	if len(data) > MaxCommitObject {
		return nil, caisson.Errorf(caisson.Denied, "the commit has more than %v of headers and message", caisson.Size(MaxCommitObject))
	}
	if bytes.IndexByte(data, 0) >= 0 {
		return nil, malformedCommit("it has a NUL byte")
	}
	head, message, ok := strings.Cut(string(data), "\n\n")
	if !ok {
		return nil, malformedCommit("no empty line ends its headers")
	}
	headers, err := splitHeaders(head)
	if err != nil {
		return nil, err
	}
	c := &RawCommit{message: message}
	take := func(name string) (string, bool) {
		if len(headers) == 0 || headers[0].Name != name {
			return "", false
		}
		v := headers[0].Value
		headers = headers[1:]
		return v, true
	}
	if c.tree, ok = take("tree"); !ok || !git.ValidCommit(c.tree) {
		return nil, malformedCommit("it has no tree")
	}
	for {
		p, ok := take("parent")
		if !ok {
			break
		}
		if !git.ValidCommit(p) || slices.Contains(c.Parents, p) || len(c.Parents) == maxParents {
			return nil, malformedCommit("its parents are not right")
		}
		c.Parents = append(c.Parents, p)
	}
	var hasAuthor, hasCommitter bool
	c.Author, hasAuthor = take("author")
	c.Committer, hasCommitter = take("committer")
	if !hasAuthor || !hasCommitter {
		return nil, malformedCommit("it has no author or committer")
	}
	for _, who := range []string{c.Author, c.Committer} {
		if _, _, err := SplitPerson(who); err != nil {
			return nil, err
		}
	}
	c.Extra = headers
	return c, c.checkExtra()
}

// maxParents is the maximum number of parents; octopus merges have fewer.
const maxParents = 16

// malformedCommit returns the Denied error for a commit that is malformed for the reason why.
func malformedCommit(why string) error {
	return caisson.Errorf(caisson.Denied, "the commit is malformed: %s; make it with git commit", why)
}

// splitHeaders splits the part before the message. A line that begins with a space continues the value of the line before it.
func splitHeaders(head string) ([]Header, error) {
	var all []Header
	for line := range strings.SplitSeq(head, "\n") {
		if more, ok := strings.CutPrefix(line, " "); ok && len(all) > 0 {
			all[len(all)-1].Value += "\n" + more
			continue
		}
		name, value, ok := strings.Cut(line, " ")
		if !ok || name == "" {
			return nil, malformedCommit("a header has no value")
		}
		all = append(all, Header{name, value})
	}
	return all, nil
}

// checkExtra refuses headers that git does not write, and message encodings that could hide the content.
func (c *RawCommit) checkExtra() error {
	seen := map[string]bool{}
	for _, h := range c.Extra {
		if seen[h.Name] && h.Name != HeaderMergeTag {
			return malformedCommit("it has a header twice")
		}
		seen[h.Name] = true
		switch h.Name {
		case HeaderSignature, HeaderSignatureSHA256, HeaderMergeTag:
		case headerEncoding:
			if e := strings.ToLower(h.Value); e != "utf-8" && e != "utf8" {
				return caisson.Errorf(caisson.Denied, "the commit's message is in the encoding %.40q; set i18n.commitEncoding to UTF-8", h.Value)
			}
		default:
			return caisson.Errorf(caisson.Denied, "the commit has the unknown header %.40q; make it with git commit", h.Name)
		}
	}
	return nil
}

// SplitPerson splits "name <email> seconds zone" into the person and the date.
func SplitPerson(s string) (who, when string, err error) {
	bad := malformedCommit("author and committer must be a name, an address in angle brackets and a date")
	if strings.Contains(s, "\n") || len(s) > 2000 {
		return "", "", bad
	}
	name, rest, ok := strings.Cut(s, "<")
	if !ok || !strings.HasSuffix(name, " ") || strings.Contains(name, ">") {
		return "", "", bad
	}
	email, when, ok := strings.Cut(rest, "> ")
	if !ok || strings.ContainsAny(email, "<>") {
		return "", "", bad
	}
	seconds, zone, ok := strings.Cut(when, " ")
	n, convErr := strconv.ParseUint(seconds, 10, 63)
	if !ok || convErr != nil || len(seconds) > 1 && seconds[0] == '0' {
		return "", "", bad
	}
	if n > lastDate {
		return "", "", caisson.Errorf(caisson.Denied, "the commit is dated after the year 9999; set the clock, and commit again")
	}
	if len(zone) != 5 || zone[0] != '+' && zone[0] != '-' || strings.Trim(zone[1:], "0123456789") != "" {
		return "", "", bad
	}
	return name + "<" + email + ">", when, nil
}

// Bytes returns the encoded commit object.
func (c *RawCommit) Bytes() []byte {
	var b strings.Builder
	header := func(name, value string) {
		b.WriteString(name + " " + strings.ReplaceAll(value, "\n", "\n ") + "\n")
	}
	header("tree", c.tree)
	for _, p := range c.Parents {
		header("parent", p)
	}
	header("author", c.Author)
	header("committer", c.Committer)
	for _, h := range c.Extra {
		header(h.Name, h.Value)
	}
	b.WriteString("\n" + c.message)
	return []byte(b.String())
}

// Subject returns the first line of the message in a form that is safe to display, at most 200 bytes.
func (c *RawCommit) Subject() string {
	line, _, _ := strings.Cut(strings.TrimLeft(c.message, "\n"), "\n")
	return git.OneLine(line, 200)
}

// TextFault returns why a text must not be displayed as it is, or "" if it is harmless.
func TextFault(s string) string {
	if !utf8.ValidString(s) {
		return "is not UTF-8"
	}
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t':
		case unicode.Is(unicode.Cc, r) || r == '\u2028' || r == '\u2029':
			return "has control characters"
		case unicode.Is(unicode.Bidi_Control, r):
			return "has marks that change the direction of text, and is not what it looks like"
		}
	}
	return ""
}
