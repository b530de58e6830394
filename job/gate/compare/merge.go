package compare

import (
	"bytes"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// Merge3 merges two changes of one text line by line. clean is false and merged is nil if both sides changed the same or
// adjacent lines in different ways, or if one of the inputs is not text. A change that only one side has made, or that both
// sides have made in the same way, always merges cleanly.
func Merge3(base, ours, theirs []byte) (merged []byte, clean bool) {
	switch {
	case bytes.Equal(ours, theirs), bytes.Equal(base, theirs):
		return bytes.Clone(ours), true
	case bytes.Equal(base, ours):
		return bytes.Clone(theirs), true
	case !fsat.IsText(base), !fsat.IsText(ours), !fsat.IsText(theirs):
		return nil, false
	}
	lines, aLines, bLines := splitLines(base), splitLines(ours), splitLines(theirs)
	a, b := compare(base, ours, lines, aLines), compare(base, theirs, lines, bLines)
	var out bytes.Buffer
	at := 0
	for len(a) > 0 || len(b) > 0 {
		// Each iteration handles one group: the edits of both sides that overlap or are adjacent, directly or through other
		// edits of the group.
		start, end := 0, 0
		if len(b) == 0 || len(a) > 0 && a[0].start <= b[0].start {
			start, end = a[0].start, a[0].end
		} else {
			start, end = b[0].start, b[0].end
		}
		var na, nb int
		for {
			switch {
			case na < len(a) && a[na].start <= end:
				end = max(end, a[na].end)
				na++
				continue
			case nb < len(b) && b[nb].start <= end:
				end = max(end, b[nb].end)
				nb++
				continue
			}
			break
		}
		for ; at < start; at++ {
			out.WriteString(lines[at])
		}
		mine, other := rewrite(lines, aLines, start, end, a[:na]), rewrite(lines, bLines, start, end, b[:nb])
		switch {
		case nb == 0 || slices.Equal(mine, other):
			out.WriteString(strings.Join(mine, ""))
		case na == 0:
			out.WriteString(strings.Join(other, ""))
		default:
			return nil, false
		}
		at = end
		a, b = a[na:], b[nb:]
	}
	for ; at < len(lines); at++ {
		out.WriteString(lines[at])
	}
	return out.Bytes(), true
}

// rewrite returns the lines [start, end) of lines after edits, which must be within this range and take their new lines from new.
func rewrite(lines, new []string, start, end int, edits []edit) []string {
	var out []string
	for _, e := range edits {
		out = append(out, lines[start:e.start]...)
		out = append(out, new[e.newStart:e.newEnd]...)
		start = e.end
	}
	return append(out, lines[start:end]...)
}
