package coder

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Limits of the search for the part of a file most similar to old_string, the text to replace, if the file does not contain it.
const (
	nearFile   = 20_000 // number of lines of the file that are compared with old_string
	nearWindow = 30     // number of lines of old_string that are compared
	nearLine   = 200    // number of bytes of each line that are compared
	nearEnough = 0.6    // lowest similarity of a part that is shown to the model, from 0 to 1
)

// editTool returns the tool edit.
func (w workspace) editTool() tool {
	return tool{
		name: "edit",
		about: "Replace old_string by new_string in a file. old_string must be in the file exactly as given, with all white space, and only once unless replace_all is set; " +
			"take a few lines around the change so that it is unique.",
		schema: `{"type":"object","properties":{"path":{"type":"string"},"old_string":{"type":"string"},"new_string":{"type":"string"},"replace_all":{"type":"boolean"}},"required":["path","old_string","new_string"]}`,
		run:    w.edit,
	}
}

// edit executes a call of the tool edit.
func (w workspace) edit(_ context.Context, args []byte) result {
	var in struct {
		Path string  `json:"path"`
		Old  string  `json:"old_string"`
		New  *string `json:"new_string"`
		All  bool    `json:"replace_all"`
	}
	if err := decodeArguments(args, &in); err != nil {
		return failedResult("%v", err)
	}
	path, err := w.path(in.Path)
	if err != nil {
		return failedResult("%v", err)
	}
	if in.New == nil {
		return failedResult("new_string is missing; give an empty one to remove old_string")
	}
	text, err := readEditable(path)
	if err != nil {
		return failedResult("%v", err)
	}
	changed, n, err := replace(text, in.Old, *in.New, in.All)
	if err != nil {
		return failedResult("%s is unchanged: %v", path, err)
	}
	if err := overwrite(path, []byte(changed), 0); err != nil {
		// If the disk is full, restore the old content: truncating the file has freed enough space for it.
		if again := overwrite(path, []byte(text), 0); again != nil {
			return failedResult("%v; and what was in %s could not be put back: %v", err, path, again)
		}
		return failedResult("%s is unchanged: %v", path, err)
	}
	if n > 1 {
		return result{text: fmt.Sprintf("Edited %s: %d places.", path, n), changed: true}
	}
	return result{text: fmt.Sprintf("Edited %s at line %d.", path, firstDifference(text, changed)), changed: true}
}

// replace returns text with old replaced by with, and the number of replacements. If all is false, old must occur only once. The
// error is a message for the model that describes what to do instead.
func replace(text, old, with string, all bool) (string, int, error) {
	switch {
	case old == "":
		return "", 0, errors.New("old_string is empty; use write for a new file")
	case old == with:
		return "", 0, errors.New("old_string and new_string are the same")
	}
	n := strings.Count(text, old)
	if n == 0 && strings.Contains(text, "\r\n") && !strings.Contains(old, "\r") {
		// The model cannot know that the lines end with \r\n, because it is shown lines without their ends.
		old, with = strings.ReplaceAll(old, "\n", "\r\n"), strings.ReplaceAll(strings.ReplaceAll(with, "\r\n", "\n"), "\n", "\r\n")
		n = strings.Count(text, old)
	}
	switch {
	case n == 0:
		return "", 0, errors.New("old_string is not in it. " + mostSimilar(text, old))
	case n > 1 && !all:
		return "", 0, fmt.Errorf("old_string is in it %d times, at lines %s; add lines around it until it is unique, or set replace_all", n, lineNumbers(text, old))
	}
	return strings.ReplaceAll(text, old, with), n, nil
}

// lineNumbers returns the line numbers of the first few occurrences of old.
func lineNumbers(text, old string) string {
	var lines []string
	line, rest := 1, text
	for len(lines) < 5 {
		before, after, ok := strings.Cut(rest, old)
		if !ok {
			return strings.Join(lines, ", ")
		}
		line += strings.Count(before, "\n")
		lines = append(lines, fmt.Sprint(line))
		line += strings.Count(old, "\n")
		rest = after
	}
	return strings.Join(lines, ", ") + " …"
}

// firstDifference returns the number of the first line in which two texts differ.
func firstDifference(a, b string) int {
	line := 1
	for i := 0; i < len(a) && i < len(b) && a[i] == b[i]; i++ {
		if a[i] == '\n' {
			line++
		}
	}
	return line
}

// mostSimilar returns a message for the model with the part of text that is most similar to old.
func mostSimilar(text, old string) string {
	const none = "Nothing in the file is like it; read the file again."
	have := strings.SplitN(text, "\n", nearFile+1)
	want := strings.Split(strings.Trim(old, "\r\n"), "\n")
	window := want[:min(len(want), nearWindow)]
	for i := range window {
		window[i] = normalizeSpace(window[i])
	}
	lines := make([]string, min(len(have), nearFile))
	for i := range lines {
		lines[i] = normalizeSpace(have[i])
	}
	best, score := -1, nearEnough
	for i := range lines {
		// The further lines of old are compared only if its first line is similar to this line.
		first := similarity(lines[i], window[0])
		if first < nearEnough/2 {
			continue
		}
		sum := first
		for j := 1; j < len(window) && i+j < len(lines); j++ {
			sum += similarity(lines[i+j], window[j])
		}
		if s := sum / float64(len(window)); s > score {
			best, score = i, s
		}
	}
	if best < 0 {
		return none
	}
	end := min(best+len(window), len(lines))
	found := clip(strings.Join(have[best:end], "\n"), 2<<10)
	why := "The nearest is"
	if score == 1 {
		why = "It differs in white space only from"
	}
	return fmt.Sprintf("%s lines %d to %d, which are exactly:\n%s", why, best+1, end, found)
}

// normalizeSpace returns the first words of a line, separated by one space each, with at most nearLine bytes together.
func normalizeSpace(line string) string {
	return clip(strings.Join(strings.Fields(clip(line, 2*nearLine)), " "), nearLine)
}

// similarity returns the similarity of two lines, from 0 to 1: the length of their common prefix and suffix, divided by the
// length of the longer line.
func similarity(a, b string) float64 {
	if a == b {
		return 1
	}
	short := min(len(a), len(b))
	head := 0
	for head < short && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < short-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return float64(head+tail) / float64(max(len(a), len(b)))
}
