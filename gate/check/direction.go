package check

import (
	"bytes"
	"strings"
	"unicode"

	"github.com/caisson-dev/caisson"
)

// maxDirections bounds the lines of one file that are reported.
const maxDirections = 5

// checkDirection asks about lines of the change i that were not there before and have marks that change the direction of text: what a
// person reads is not what a compiler does (CVE-2021-42574). The two marks of direction and the Arabic letter mark, which texts in
// right-to-left scripts need, are asked about only in lines without such letters; where there are some, order is not what it seems anyway.
// text is what the file would be.
func (c *checker) checkDirection(i int, text string) {
	// All of these marks begin so in UTF-8.
	if !strings.Contains(text, "\u200e"[:2]) && !strings.Contains(text, "\u2066"[:2]) && !strings.Contains(text, "\u061c") || isData(text) {
		return
	}
	var old map[string]bool // lines with marks; nil until they are wanted
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

// directionMark returns the first mark in a line that is asked about, or 0.
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
		case unicode.In(r, rightToLeft...):
			needed = true
		}
	}
	if needed {
		return 0
	}
	return mild
}

// rightToLeft are the scripts in use that are written from right to left.
var rightToLeft = []*unicode.RangeTable{
	unicode.Hebrew, unicode.Arabic, unicode.Syriac, unicode.Thaana, unicode.Nko, unicode.Samaritan, unicode.Mandaic, unicode.Adlam,
}

// isData reports whether a file is no text: it has a zero byte near its beginning, as git looks for. Bytes that are no UTF-8 do not make it
// so: compilers accept them in comments.
func isData(text string) bool { return strings.IndexByte(text[:min(len(text), 8000)], 0) >= 0 }
