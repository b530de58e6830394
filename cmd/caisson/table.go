package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// A column is one column of a table whose rows show values of type T.
type column[T any] struct {
	name  string         // heading of the column
	value func(T) string // returns the cell for an item, not escaped yet
	color func(T) string // returns the colour of the cell, as the parameter of an SGR sequence; nil means the default colour
	id    func(T) string // returns what -q prints instead of the first column's value; nil in all columns but one
	// wrap is set in the last column of a table that may be wider than a terminal: its text is broken into lines, at line breaks
	// and where it is too long. cut may be set in another column of such a table: its text is shortened at the beginning.
	wrap, cut bool
}

// plainColor is the terminal's default colour, as the parameter of an SGR sequence. Like all colours it has two digits: tabwriter
// counts escape sequences as text, so that they must have the same length in all cells of a column.
const plainColor = "39"

// tableWidth returns the width in characters of the terminal that is standard output, or 0 if standard output is not a terminal.
func (a *app) tableWidth() int {
	if !isTerminal(a.out) {
		return 0
	}
	_, cols := terminalSize(a.out)
	return int(cols)
}

// printList prints items in the selected format: a table, ids only, JSON or YAML. On a terminal, a table with a wrap or cut
// column is fitted to the width of the terminal.
func printList[T any](a *app, items []T, cols []column[T]) error {
	return printListIn(a, a.tableWidth(), items, cols)
}

// printListIn prints items in the selected format: ids, JSON, YAML, or a table of at most width characters; 0 means no limit.
func printListIn[T any](a *app, width int, items []T, cols []column[T]) error {
	switch {
	case a.globals.Output == "jsonl":
		for _, it := range items {
			if err := a.encodeLine(it); err != nil {
				return err
			}
		}
		return nil
	case a.globals.Output != "table":
		if items == nil {
			items = []T{}
		}
		return a.encode(items)
	case a.globals.Quiet:
		id := cols[0].value
		for _, c := range cols {
			if c.id != nil {
				id = c.id
			}
		}
		for _, it := range items {
			if _, err := fmt.Fprintln(a.out, safetext.Escape(id(it))); err != nil {
				return err
			}
		}
		return nil
	}
	cells := make([][]string, len(cols)) // cells of each column, with the heading first
	for i, c := range cols {
		cells[i] = append(cells[i], c.name)
		for _, it := range items {
			cells[i] = append(cells[i], cmp.Or(c.escape(c.value(it)), "-"))
		}
	}
	widths := columnWidths(cols, cells, width)
	tw := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for n := range len(items) + 1 {
		row := make([]string, len(cols))
		var more []string // lines of the last cell after its first line
		for i, c := range cols {
			row[i] = cells[i][n]
			switch {
			case c.cut:
				row[i] = shorten(row[i], widths[i])
			case c.wrap:
				lines := wrapText(row[i], widths[i])
				row[i], more = lines[0], lines[1:]
			}
			if c.color != nil {
				color := plainColor
				if n > 0 {
					color = c.color(items[n-1])
				}
				row[i] = colorize(a.colorEnabled(), color, row[i])
			}
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
		for _, line := range more {
			for i, c := range cols {
				row[i] = colorize(a.colorEnabled() && c.color != nil, plainColor, "")
			}
			row[len(row)-1] = line
			fmt.Fprintln(tw, strings.Join(row, "\t"))
		}
	}
	return tw.Flush()
}

// escape returns the text of a cell with unsafe characters escaped. Only a wrap column keeps its line breaks.
func (c *column[T]) escape(text string) string {
	if !c.wrap {
		return safetext.Escape(text)
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = safetext.Escape(line)
	}
	return strings.Join(lines, "\n")
}

// minWidth is the minimum width in characters of a wrap or cut column, even if the table is then wider than the terminal.
const minWidth = 16

// columnWidths returns the widths of the columns in a table of the given width in characters; 0 means no limit. Columns without
// wrap and cut are as wide as their text. Of the remaining width, the cut column gets the width of its text, but at most the part
// that the wrap column does not need or half, whichever is more. The wrap column gets the remainder.
func columnWidths[T any](cols []column[T], cells [][]string, width int) []int {
	widths := make([]int, len(cols))
	left := width - 2*(len(cols)-1)
	wrap, cut := -1, -1
	for i, c := range cols {
		for _, cell := range cells[i] {
			for line := range strings.SplitSeq(cell, "\n") {
				widths[i] = max(widths[i], utf8.RuneCountInString(line))
			}
		}
		switch {
		case c.wrap:
			wrap = i
		case c.cut:
			cut = i
		default:
			left -= widths[i]
		}
	}
	if width == 0 {
		return widths
	}
	if cut >= 0 {
		most := left
		if wrap >= 0 {
			most = max(left-widths[wrap], left/2)
		}
		widths[cut] = min(widths[cut], max(most, minWidth))
		left -= widths[cut]
	}
	if wrap >= 0 {
		widths[wrap] = min(widths[wrap], max(left, minWidth))
	}
	return widths
}

// shorten returns text, or an ellipsis and the end of text if text has more than width characters.
func shorten(text string, width int) string {
	r := []rune(text)
	if len(r) <= width {
		return text
	}
	return "…" + string(r[len(r)-width+1:])
}

// wrapText breaks text into lines of at most width characters, at blanks if possible.
func wrapText(text string, width int) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		rest := []rune(line)
		for len(rest) > width {
			end := width
			for end > 0 && rest[end] != ' ' {
				end--
			}
			next := end + 1
			if end == 0 {
				end, next = width, width
			}
			lines = append(lines, string(rest[:end]))
			rest = rest[next:]
		}
		lines = append(lines, string(rest))
	}
	return slices.Clip(lines)
}
