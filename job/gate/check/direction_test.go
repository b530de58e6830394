package check

import (
	"strings"
	"testing"
)

// TestCheckDirection checks text that is displayed in another order than it is stored in (CVE-2021-42574).
func TestCheckDirection(t *testing.T) {
	const attack = "if access != \"user\u202e \u2066// check\u2069 \u2066\" {\n"
	for _, c := range []struct {
		name, old, new string
		verdict        string
		line           int
	}{
		{"embedding", "", "a\nx \u202a y\n", ask, 2},
		{"override", "a\n", "a\n// \u202e x\n", ask, 2},
		{"isolate", "a\n", "\u2066\n", ask, 1},
		{"the end of one", "a\n", "\u2069\n", ask, 1},
		{"all of it", "a\n", attack, ask, 1},
		{"beside Hebrew", "a\n", "שלום \u202e x\n", ask, 1},
		{"left-to-right mark", "a\n", "x \u200e y\n", ask, 1},
		{"right-to-left mark", "a\n", "x \u200f y\n", ask, 1},
		{"Arabic letter mark", "a\n", "x \u061c y\n", ask, 1},
		{"marks that Hebrew needs", "a\n", "שלום! \u200f\u200e\n", pass, 0},
		{"marks that Arabic needs", "a\n", "\u061cسلام (1)\u200f\n", pass, 0},
		{"it was there", attack + "a\n", "b\n" + attack, pass, 0},
		{"it was there, and another", attack + "a\n", "\u202d\n" + attack, ask, 1},
		{"it goes", attack, "a\n", pass, 0},
		{"other characters that begin so", "a\n", "“quoted” – …\u2028 \u2060 \u205f\n", pass, 0},
		{"right to left, as it is", "a\n", "שלום سلام\n", pass, 0},
		{"escaped", "a\n", `"\u202e"` + "\n", pass, 0},
		{"data", "", "\x89PNG\x00\u202e" + strings.Repeat("\xff\x00", 100), pass, 0},
		{"many bytes that are no text", "", "x \u202e y //" + strings.Repeat("\x80", 100), ask, 1},
		{"a few bytes that are no text", "", strings.Repeat("x\n", 100) + "\xff \u202e\n", ask, 101},
		{"a zero byte far away", "", strings.Repeat("x\n", 5000) + "\u202e\x00\n", ask, 5001},
	} {
		got := checkEdit(t, "x.go", c.old, c.new, Rules{})
		if got.Verdict != c.verdict || c.verdict == ask && !hasFinding(got, checkText, ask) {
			t.Errorf("%s: %s %v, want %s", c.name, got.Verdict, got.Finding, c.verdict)
		}
		if len(got.Finding) > 0 && (got.Finding[0].Line != c.line || strings.ContainsAny(got.Finding[0].Message, "\u202a\u202e\u2066")) {
			t.Errorf("%s: %+v", c.name, got.Finding)
		}
	}
	if got := checkEdit(t, "x.go", "a\n", strings.Repeat("\u202e\n", 100), Rules{}); len(got.Finding) != maxDirections {
		t.Errorf("%d findings", len(got.Finding))
	}
}
