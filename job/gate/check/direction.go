package check

import (
	"bytes"
	"strings"
	"unicode"

	"github.com/caisson-dev/caisson"
)

// maxDirections is the maximum number of findings that checkDirection adds for one file.
const maxDirections = 5

// checkDirection requires a review of the change i if its new lines contain Unicode characters that control text direction: a
// person may see such a line in another order than a compiler reads it (CVE-2021-42574). The left-to-right mark, the
// right-to-left mark and the Arabic letter mark, which texts in right-to-left scripts need, are reported only in lines without
// letters of such scripts; in lines with such letters the displayed order differs from the stored order anyway. text is the new
// content of the file.
func (c *checker) checkDirection(i int, text string) {
	// In UTF-8, each character that controls text direction begins with one of these three prefixes.
	if !strings.Contains(text, "\u200e"[:2]) && !strings.Contains(text, "\u2066"[:2]) && !strings.Contains(text, "\u061c") ||
		isBinary(text) {
		return
	}
	var old map[string]bool // old lines with characters that control text direction; nil until they are needed
	number, found := 0, 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		mark := directionMark(line)
		if mark == 0 {
			continue
		}
		if old == nil {
			old = map[string]bool{}
			for l := range bytes.FieldsFuncSeq(c.oldContent(&c.changes[i]), func(r rune) bool { return r == '\n' || r == 0 }) {
				if l := string(l); directionMark(l) != 0 {
					old[l] = true
				}
			}
		}
		if old[line] {
			continue
		}
		c.add(i, checkText, caisson.VerdictAsk, number, "a mark that changes the direction of text (%U): the line is not what it looks like", mark)
		if found++; found == maxDirections {
			return
		}
	}
}

// directionMark returns the first character in a line that controls text direction and requires a review, or 0.
func directionMark(line string) rune {
	var mild rune
	needed := false
	for _, r := range line {
		switch {
		case r < 0x590:
		case r == '\u200e' || r == '\u200f' || r == '\u061c':
			if mild == 0 {
				mild = r
			}
		case unicode.Is(unicode.Bidi_Control, r):
			return r
		case unicode.In(r, rightToLeftScripts...):
			needed = true
		}
	}
	if needed {
		return 0
	}
	return mild
}

// rightToLeftScripts are the scripts in current use that are written from right to left.
var rightToLeftScripts = []*unicode.RangeTable{
	unicode.Hebrew, unicode.Arabic, unicode.Syriac, unicode.Thaana, unicode.Nko, unicode.Samaritan, unicode.Mandaic, unicode.Adlam,
}

// isBinary reports whether the file with the content text is binary by the rule of git: there is a zero byte in its first 8000
// bytes. Invalid UTF-8 does not make a file binary, because compilers accept it in comments.
func isBinary(text string) bool { return strings.IndexByte(text[:min(len(text), 8000)], 0) >= 0 }
