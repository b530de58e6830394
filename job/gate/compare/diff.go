package compare

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff/lcs"
	"github.com/rogpeppe/go-internal/diff"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

const (
	contextLines = 3                                // number of unchanged lines before and after the changed lines of a hunk
	noNewline    = "\\ No newline at end of file\n" // follows the last line of a text if it has no newline
)

// A Hunk is one group of changed lines of a unified diff, with the unchanged lines around it.
type Hunk struct {
	// OldStart is the number of the first line in the old text, from 1. If OldLines is 0, it is that of the line before the
	// hunk, as in unified diffs.
	OldStart int `json:"oldStart"`
	OldLines int `json:"oldLines"` // number of lines in the old text
	NewStart int `json:"newStart"` // number of the first line in the new text, from 1; if NewLines is 0, of the line before
	NewLines int `json:"newLines"` // number of lines in the new text
	// Text contains the hunk's lines, each with its prefix (space, - or +) and a newline, without the @@ line. A last line
	// without a newline is followed by a "\ No newline at end of file" line, as in unified diffs.
	Text string `json:"text"`
}

// Unified compares two texts line by line. The patch begins with oldName and newName, which are quoted as git does if they
// contain unusual characters. It is empty if the texts are equal. added and removed are numbers of lines. For any input, the
// time is O(n log n) in the number of lines.
//
// binary is true if one of the texts contains a NUL, is not UTF-8, or is too large; then there are no hunks and no patch.
func Unified(old, new []byte, oldName, newName string) (patch string, hunks []Hunk, added, removed int, binary bool) {
	if !fsat.IsText(old) || !fsat.IsText(new) {
		return "", nil, 0, 0, true
	}
	hunks = hunksOf(old, new)
	if len(hunks) == 0 {
		return "", nil, 0, 0, false
	}
	var b strings.Builder
	b.WriteString("--- " + quoteName(oldName) + "\n+++ " + quoteName(newName) + "\n")
	for _, h := range hunks {
		b.WriteString(h.header() + "\n" + h.Text)
		for _, l := range h.lines() {
			switch l.mark {
			case '+':
				added++
			case '-':
				removed++
			}
		}
	}
	return b.String(), hunks, added, removed, false
}

// ApplyHunks applies the chosen hunks of a diff to old, the text that the diff was made from. Hunks are chosen by index from 0,
// in any order. Without hunks the result is old; with all hunks it is the new text of the diff. Returns Invalid if a hunk does
// not exist, and Conflict if old does not match the hunks.
func ApplyHunks(old []byte, hunks []Hunk, chosen []int) ([]byte, error) {
	take := make([]bool, len(hunks))
	for _, i := range chosen {
		if i < 0 || i >= len(hunks) {
			return nil, caisson.Invalidf("hunks", "there is no hunk %d; the patch has %d, counted from 0", i, len(hunks))
		}
		take[i] = true
	}
	lines := splitLines(old)
	var out bytes.Buffer
	at := 0
	for i, h := range hunks {
		if !take[i] {
			continue
		}
		start := h.OldStart - 1
		if h.OldLines == 0 {
			start = h.OldStart
		}
		if start < at || start > len(lines) {
			return nil, errOtherText
		}
		for ; at < start; at++ {
			out.WriteString(lines[at])
		}
		for _, l := range h.lines() {
			if l.mark != '+' {
				if at >= len(lines) || lines[at] != l.text {
					return nil, errOtherText
				}
				at++
			}
			if l.mark != '-' {
				out.WriteString(l.text)
			}
		}
	}
	for ; at < len(lines); at++ {
		out.WriteString(lines[at])
	}
	return out.Bytes(), nil
}

// errOtherText is the error for hunks that do not match the old text.
var errOtherText = caisson.Errorf(caisson.Conflict, "the file is not the one that was compared; review it again")

// splitLines splits a text into lines. Each line ends with its newline.
func splitLines(b []byte) []string {
	lines := strings.SplitAfter(string(b), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// edit replaces the lines [start, end) of an old text by the lines [newStart, newEnd) of a new text. Lines are counted from 0.
type edit struct {
	start, end       int // range of the replaced lines in the old text
	newStart, newEnd int // range of the lines of the new text that replace the lines from start to end
}

// compare returns the edits that turn the text old into new, in order. a and b are the lines of the texts. Between two edits
// there is at least one unchanged line.
//
// It combines two libraries. Package diff finds the lines that are unique in both texts and have the same order in both, in
// O(n log n), but little in sections with repeated lines. Package lcs computes the smallest difference of such sections, but
// gives up early on texts that differ much. Each library alone makes a single hunk of half a file for some ordinary changes.
func compare(old, new []byte, a, b []string) []edit {
	var all []edit
	for _, e := range anchoredEdits(old, new) {
		if e.start == e.end || e.newStart == e.newEnd {
			all = append(all, e)
			continue
		}
		for _, d := range lcs.DiffLines(a[e.start:e.end], b[e.newStart:e.newEnd]) {
			all = append(all, edit{e.start + d.Start, e.start + d.End, e.newStart + d.ReplStart, e.newStart + d.ReplEnd})
		}
	}
	// Adjacent edits are joined.
	var out []edit
	for _, e := range all {
		if n := len(out); n > 0 && out[n-1].end == e.start && out[n-1].newEnd == e.newStart {
			out[n-1].end, out[n-1].newEnd = e.end, e.newEnd
			continue
		}
		out = append(out, e)
	}
	return out
}

// anchoredEdits returns the edits that package diff finds between two texts. It parses the output of the package. The output is
// unambiguous, because each line of a text has a prefix in it.
func anchoredEdits(old, new []byte) []edit {
	out := diff.Diff("", old, "", new)
	for range 3 { // skips the three lines of the header
		_, out, _ = bytes.Cut(out, []byte("\n"))
	}
	var all []edit
	at, newAt, open := 0, 0, false
	for len(out) > 0 {
		var line []byte
		line, out, _ = bytes.Cut(out, []byte("\n"))
		if line[0] == ' ' {
			at, newAt, open = at+1, newAt+1, false
			continue
		}
		if line[0] == '@' {
			at, newAt = hunkStart(string(line))
			open = false
			continue
		}
		if line[0] == '\\' {
			continue
		}
		if !open {
			all = append(all, edit{at, at, newAt, newAt})
			open = true
		}
		if line[0] == '-' {
			at++
		} else {
			newAt++
		}
		all[len(all)-1].end, all[len(all)-1].newEnd = at, newAt
	}
	return all
}

// hunkStart parses the header of a hunk, such as "@@ -1,2 +3,4 @@". It returns the lines of the old and of the new text at
// which the hunk begins, counted from 0.
func hunkStart(s string) (old, new int) {
	var n [4]int
	for i, f := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		n[i], _ = strconv.Atoi(f)
	}
	// If a number of lines is 0, the header contains the number of the line before the hunk.
	return n[0] - min(n[1], 1), n[2] - min(n[3], 1)
}

// hunksOf returns the hunks of the unified diff of two texts.
func hunksOf(old, new []byte) []Hunk {
	a, b := splitLines(old), splitLines(new)
	edits := compare(old, new, a, b)
	var hunks []Hunk
	for len(edits) > 0 {
		n := 1
		for n < len(edits) && edits[n].start-edits[n-1].end <= 2*contextLines {
			n++
		}
		hunks = append(hunks, makeHunk(a, b, edits[:n]))
		edits = edits[n:]
	}
	return hunks
}

// makeHunk returns the hunk that contains edits, which are close to each other. a and b are the lines of the old and of the new
// text.
func makeHunk(a, b []string, edits []edit) Hunk {
	first, last := edits[0], edits[len(edits)-1]
	before := min(first.start, contextLines)
	after := min(len(a)-last.end, contextLines)
	h := Hunk{
		OldStart: first.start - before, OldLines: last.end + after - (first.start - before),
		NewStart: first.newStart - before, NewLines: last.newEnd + after - (first.newStart - before),
	}
	var text strings.Builder
	put := func(mark byte, lines []string) {
		for _, l := range lines {
			text.WriteByte(mark)
			text.WriteString(l)
			if !strings.HasSuffix(l, "\n") {
				text.WriteString("\n" + noNewline)
			}
		}
	}
	at := h.OldStart
	for _, e := range edits {
		put(' ', a[at:e.start])
		put('-', a[e.start:e.end])
		put('+', b[e.newStart:e.newEnd])
		at = e.end
	}
	put(' ', a[at:at+after])
	h.Text = text.String()
	h.OldStart += min(h.OldLines, 1)
	h.NewStart += min(h.NewLines, 1)
	return h
}

// header returns the line "@@ … @@" of the hunk.
func (h Hunk) header() string {
	side := func(start, lines int) string {
		if lines == 1 {
			return strconv.Itoa(start)
		}
		return strconv.Itoa(start) + "," + strconv.Itoa(lines)
	}
	return "@@ -" + side(h.OldStart, h.OldLines) + " +" + side(h.NewStart, h.NewLines) + " @@"
}

// markedLine is a line of a hunk: its prefix, and the line of the file.
type markedLine struct {
	mark byte   // the prefix: space, - or +
	text string // the line of the file, with its newline if it has one
}

// lines returns the lines of Text.
func (h Hunk) lines() []markedLine {
	var all []markedLine
	for l := range strings.SplitAfterSeq(h.Text, "\n") {
		switch {
		case l == "":
		case l[0] == '\\':
			if n := len(all); n > 0 {
				all[n-1].text = strings.TrimSuffix(all[n-1].text, "\n")
			}
		default:
			all = append(all, markedLine{l[0], l[1:]})
		}
	}
	return all
}

// quoteName returns a file name for the header of a patch. A name with unusual characters is quoted, so that it takes one line
// and all characters are visible.
func quoteName(s string) string {
	plain := utf8.ValidString(s) && !strings.ContainsAny(s, "\"\\")
	for _, r := range s {
		plain = plain && strconv.IsPrint(r)
	}
	if plain {
		return s
	}
	return strconv.Quote(s)
}
