package apitest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// An edit puts lines in the place of old lines from (included) to to (excluded).
type edit struct {
	from, to int
	lines    []string
}

// A hunk is what a unified diff shows together.
type hunk []edit

// patchContext is how many lines around a change are shown.
const patchContext = 3

func linesOf(data []byte) []string {
	lines := strings.SplitAfter(string(data), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func isText(data []byte) bool { return utf8.Valid(data) && !bytes.ContainsRune(data, 0) }

// editsOf returns the fewest edits that make b of a. It takes time and memory for every pair of lines: tests have few.
func editsOf(a, b []string) []edit {
	common := make([][]int, len(a)+1) // lengths of the longest common subsequences of the ends
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []edit
	last := func(i int) *edit {
		if len(out) == 0 || out[len(out)-1].to != i {
			out = append(out, edit{from: i, to: i})
		}
		return &out[len(out)-1]
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			last(i).to = i + 1
			i++
		default:
			e := last(i)
			e.lines = append(e.lines, b[j])
			j++
		}
	}
	return out
}

// hunksOf groups edits whose contexts touch.
func hunksOf(edits []edit) []hunk {
	var out []hunk
	for i, e := range edits {
		if i > 0 && e.from-edits[i-1].to <= 2*patchContext {
			out[len(out)-1] = append(out[len(out)-1], e)
			continue
		}
		out = append(out, hunk{e})
	}
	return out
}

// applyEdits returns a with edits, which are in order.
func applyEdits(a []string, edits []edit) []byte {
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.WriteString(strings.Join(a[at:e.from], "") + strings.Join(e.lines, ""))
		at = e.to
	}
	b.WriteString(strings.Join(a[at:], ""))
	return []byte(b.String())
}

// mergeEdits puts two lists of edits of the same lines together, unless they touch.
func mergeEdits(x, y []edit) ([]edit, bool) {
	all := slices.Concat(x, y)
	slices.SortStableFunc(all, func(a, b edit) int { return a.from - b.from })
	for i := 1; i < len(all); i++ {
		if all[i].from <= all[i-1].to {
			return nil, false
		}
	}
	return all, true
}

// patchOf returns a unified diff, and how many lines it adds and removes.
func patchOf(oldName, newName string, a []string, hunks []hunk) (patch string, added, removed int) {
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", oldName, newName)
	shift := 0
	for _, h := range hunks {
		from, to := max(h[0].from-patchContext, 0), min(h[len(h)-1].to+patchContext, len(a))
		var lines strings.Builder
		line := func(sign byte, s string) {
			lines.WriteByte(sign)
			lines.WriteString(s)
			if !strings.HasSuffix(s, "\n") {
				lines.WriteString("\n\\ No newline at end of file\n")
			}
		}
		at, grown := from, 0
		for _, e := range h {
			for ; at < e.from; at++ {
				line(' ', a[at])
			}
			for ; at < e.to; at++ {
				line('-', a[at])
			}
			for _, s := range e.lines {
				line('+', s)
			}
			grown += len(e.lines) - (e.to - e.from)
			added, removed = added+len(e.lines), removed+e.to-e.from
		}
		for ; at < to; at++ {
			line(' ', a[at])
		}
		fmt.Fprintf(&b, "@@ -%s +%s @@\n%s", span(from, to-from), span(from+shift, to-from+grown), lines.String())
		shift += grown
	}
	return b.String(), added, removed
}

// span is a range of lines as diff(1) writes it: an empty one is named by the line before it.
func span(from, n int) string {
	if n == 0 {
		return fmt.Sprintf("%d,0", from)
	}
	return fmt.Sprintf("%d,%d", from+1, n)
}
