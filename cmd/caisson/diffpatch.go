package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// patchPrinter writes changes in git's format to b, with the results of the checks in lines that begin with #, which git apply
// skips.
type patchPrinter struct {
	b     *strings.Builder // contains what was written
	color bool             // use colours
	raw   bool             // do not escape contents of files; names are always escaped
}

// line writes a line that is not part of a file's content. Its colour is sgr, the parameter of an SGR sequence; "" for none. The
// text is always escaped.
func (p *patchPrinter) line(sgr, format string, args ...any) {
	p.b.WriteString(colorize(p.color && sgr != "", sgr, safetext.Escape(fmt.Sprintf(format, args...))) + "\n")
}

// gitTypes are the first three digits of git's modes for each type of file; the other three are the permissions.
var gitTypes = map[string]string{"file": "100", "symlink": "120", "dir": "040"}

// gitMode returns git's mode, such as 100644, for a file. typ is its type as in a [caisson.Change], mode its permissions.
func gitMode(typ string, mode uint32) string {
	if typ == "symlink" {
		mode = 0
	}
	return fmt.Sprintf("%s%03o", gitTypes[typ], mode)
}

// change writes a change with its whole patch.
func (p *patchPrinter) change(ch *caisson.Change) {
	p.header(ch)
	p.names(ch)
	for _, h := range splitHunks(ch.Patch) {
		p.hunk(h)
	}
}

// header writes the results of the checks of a change, and its properties other than the changed lines. The lines that git does
// not read come first.
func (p *patchPrinter) header(ch *caisson.Change) {
	p.notes(ch)
	if ch.Type == "dir" || ch.Type == "none" && ch.OldType == "dir" {
		p.line("01", "# directory %s: %s", ch.Kind, ch.Path)
		return // git does not track directories, so there is no patch
	}
	from := cmp.Or(ch.OldPath, ch.Path)
	p.line("01", "diff --git a/%s b/%s", from, ch.Path)
	switch {
	case ch.OldType == "none":
		p.line("", "new file mode %s", gitMode(ch.Type, ch.Mode))
	case ch.Type == "none":
		p.line("", "deleted file mode %s", gitMode(ch.OldType, ch.OldMode))
	case ch.Mode != ch.OldMode || ch.Type != ch.OldType:
		p.line("", "old mode %s", gitMode(ch.OldType, ch.OldMode))
		p.line("", "new mode %s", gitMode(ch.Type, ch.Mode))
	}
	if ch.OldPath != "" {
		p.line("", "rename from %s", ch.OldPath)
		p.line("", "rename to %s", ch.Path)
	}
	if ch.Binary {
		p.line("", "Binary files a/%s and b/%s differ", from, ch.Path)
	}
}

// notes writes the reasons for the verdict, and properties of the change that matter in a review: that the type of the file has
// changed, the target of a symlink, permission to execute, binary content.
func (p *patchPrinter) notes(ch *caisson.Change) {
	why := reasons(ch)
	if len(why) == 0 && ch.Verdict != caisson.VerdictPass {
		why = []string{"no reason was given"}
	}
	for _, s := range why {
		p.line(verdictColors[ch.Verdict], "# %s: %s", verdictText(ch.Verdict), s)
	}
	if ch.Type != ch.OldType && ch.Type != "none" && ch.OldType != "none" {
		p.line("33", "# a %s became a %s", ch.OldType, ch.Type)
	}
	switch {
	case ch.Type == "symlink":
		p.line("33", "# a symlink that leads to %s", ch.Link)
	case ch.Type == "file" && ch.Mode&0o111&^ch.OldMode != 0 && !slices.ContainsFunc(ch.Finding, func(f caisson.Finding) bool { return f.Check == "mode" }):
		p.line("33", "# may be executed")
	}
	if ch.Binary {
		p.line("", "# binary, %s -> %s", caisson.Size(ch.OldSize), caisson.Size(ch.Size))
	}
}

// names writes the lines --- and +++ with the old and the new name of the file, if the patch of the change has hunks.
func (p *patchPrinter) names(ch *caisson.Change) {
	if !strings.Contains(ch.Patch, "@@") {
		return
	}
	from, to := "a/"+cmp.Or(ch.OldPath, ch.Path), "b/"+ch.Path
	if ch.OldType == "none" {
		from = "/dev/null"
	}
	if ch.Type == "none" {
		to = "/dev/null"
	}
	p.line("01", "--- %s", from)
	p.line("01", "+++ %s", to)
}

// hunk writes one hunk of a unified diff. Unless raw is set, its lines are escaped.
func (p *patchPrinter) hunk(h string) {
	for line := range strings.Lines(h) {
		text := strings.TrimSuffix(line, "\n")
		if !p.raw {
			text = safetext.EscapeLines(text)
		}
		sgr := ""
		switch line[0] {
		case '+':
			sgr = "32"
		case '-':
			sgr = "31"
		case '@':
			sgr = "36"
		}
		p.b.WriteString(colorize(p.color && sgr != "", sgr, text) + "\n")
	}
}

// splitHunks splits a unified diff into its hunks, without the lines before the first one. Lines of files begin with a space, +
// or -, so a line that begins with @@ starts a hunk.
func splitHunks(patch string) []string {
	var out []string
	for line := range strings.Lines(patch) {
		switch {
		case strings.HasPrefix(line, "@@"):
			out = append(out, line)
		case len(out) > 0:
			out[len(out)-1] += line
		}
	}
	return out
}
