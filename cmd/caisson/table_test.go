package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// TestTableWidth: a table with columns for it is as wide as the terminal, and loses no text but the beginning of a long path.
func TestTableWidth(t *testing.T) {
	d := &caisson.Diff{Changes: []caisson.Change{
		{Kind: "modified", Path: "src/" + strings.Repeat("deep/", 20) + "file.go", Verdict: caisson.VerdictAsk, Added: 100, Finding: []caisson.Finding{
			{Check: "scripts", Message: strings.Repeat("runs elsewhere and must be read ", 5) + strings.Repeat("x", 200)},
		}},
		{Kind: "new", Path: "a", Verdict: caisson.VerdictPass},
	}}
	for _, width := range []int{0, 70, 80, 120, 400} {
		var out bytes.Buffer
		a := &app{stdio: stdio{out: &out, getenv: func(string) string { return "" }}, globals: globals{Output: "table"}}
		if err := printListIn(a, width, d.Changes, statColumns()); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		widest := 0
		for line := range strings.Lines(text) {
			widest = max(widest, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
		}
		if width > 0 && widest > width {
			t.Errorf("%d characters instead of %d:\n%s", widest, width, text)
		}
		if got := strings.Count(text, "x"); got < 200 || !strings.Contains(text, "deep/file.go") {
			t.Errorf("width %d: text is missing:\n%s", width, text)
		}
		if width == 0 && strings.Count(text, "\n") != 3 {
			t.Errorf("lines are broken where there is no terminal:\n%s", text)
		}
	}
}

func TestWrapText(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "short": "short", "one two three": "one two|three", "abcdefghijklm": "abcdefgh|ijklm", "a\nbb cc dd ee": "a|bb cc dd|ee",
		"12345678 9": "12345678|9", "ü ü ü ü ü": "ü ü ü ü|ü",
	} {
		if got := strings.Join(wrapText(in, 8), "|"); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}
