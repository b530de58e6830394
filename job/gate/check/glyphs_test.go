package check

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// TestCheckGlyphs checks names that imitate others. A name in one script requires no review unless it looks like one in the
// same directory.
func TestCheckGlyphs(t *testing.T) {
	for _, c := range []struct {
		path, verdict string
		host          []string
	}{
		// Two alphabets in one word.
		{"m\u0430in.go", ask, nil}, // Cyrillic а
		{"src/m\u0430in.go", ask, nil},
		{"\u0440\u0430yp\u0430l.js", ask, nil}, // Cyrillic р, а
		{"\u03bfs.py", ask, nil},               // Greek ο
		{"util\u0455.go", ask, nil},            // Cyrillic ѕ
		{"\u13a1oot", ask, nil},                // Cherokee Ꭱ
		{"\u0564oc", ask, nil},                 // Armenian դ
		{"m\u0300\u0430in", ask, nil},          // with a combining mark between
		{"Makefil\u0435", ask, nil},

		// Names in one script, or with a word in each.
		{"отчёт.txt", pass, nil},
		{"отчёт_2024_final.pdf", pass, nil},
		{"Привет мир.md", pass, nil},
		{"日本語.txt", pass, nil},
		{"Tシャツの作り方.md", pass, nil},
		{"第1章intro.md", pass, nil},
		{"한국어README.md", pass, nil},
		{"αβγ.tex", pass, nil},
		{"λ-calculus.md", pass, nil},
		{"Ελληνικά.md", pass, nil},
		{"ملف.txt", pass, nil},
		{"שלום.txt", pass, nil},
		{"ไฟล์.txt", pass, nil},
		{"naïve_café_Straße_Łódź.txt", pass, nil},
		{"v2отчёт.txt", pass, nil}, // a digit ends a word
		{"main.go", pass, nil},

		// Names that look like another name.
		{"сор.txt", ask, []string{"cop.txt"}},
		{"сор.txt", pass, []string{"x/cop.txt"}},
		{"сор.txt", pass, nil},
		{"src/utiIs.py", ask, []string{"src/utils.py"}},
		{"c0nfig.go", ask, []string{"config.go"}},
		{"Ꭺ", ask, []string{"A"}},
		{"\u0430", ask, []string{"a"}},
		{"a", ask, []string{"\u0430"}},
		{"\u0261o.mod", ask, []string{"go.mod"}}, // ɡ
		{"test2.py", pass, []string{"test1.py", "test11.py"}},
		{"отчёт2.txt", pass, []string{"отчёт1.txt"}},
		{"日本.txt", pass, []string{"日木.txt"}},
	} {
		got := checkOne(t, addedAt(c.path), Rules{}, c.host...)
		if got.Verdict != c.verdict || c.verdict == ask && !hasFinding(got, checkNames, ask) {
			t.Errorf("%s beside %v: %s %v, want %s", c.path, c.host, got.Verdict, got.Finding, c.verdict)
		}
	}
	// Existing names of the host require no review, and a new name is not compared with one that is removed.
	changes := []caisson.Change{modifiedAt("m\u0430in"), addedAt("x/m\u0430in/f"), removedAt("cop"), addedAt("сор"), addedAt("сор1"), addedAt("copI")}
	if err := Changes(context.Background(), changes, checkedHost(t, "m\u0430in", "main", "cop"), contentsOf(nil), Rules{}); err != nil || verdictsOf(changes) != "pass pass pass pass ask ask" {
		t.Errorf("%v, %v", err, changes)
	}
	// In a commit directories are not separate changes.
	changes = []caisson.Change{addedAt("x/m\u0430in/f"), modifiedAt("x/m\u0430in/g")}
	if err := ChangesIn(t.Context(), changes, memoryTree{}, contentsOf(nil), Rules{History: true}); err != nil || verdictsOf(changes) != "ask pass" {
		t.Errorf("%v, %v", err, changes)
	}
}

func TestLookalikes(t *testing.T) {
	list := []rune(lookalikes)
	if len(list)%2 != 0 || len(lookalikeTable()) != len(list)/2 {
		t.Fatalf("%d letters, %d of them different", len(list), len(lookalikeTable()))
	}
	for r, like := range lookalikeTable() {
		if r < utf8.RuneSelf || like >= utf8.RuneSelf || strings.ToLower(string(like)) != string(like) {
			t.Errorf("%c looks like %c", r, like)
		}
	}
	if got := nameSkeleton("ＰAСК\u200bage1.ЈSΟΝ"); got != "packagel.json" {
		t.Errorf("it looks like %q", got)
	}
}
