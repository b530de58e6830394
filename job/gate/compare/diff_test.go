package compare

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

func TestUnified(t *testing.T) {
	long := strings.Repeat("same\n", 20)
	for _, c := range []struct {
		name, old, new string
		patch          string
		hunks          int
		added, removed int
		binary         bool
	}{
		{name: "equal", old: "a\n", new: "a\n"},
		{name: "both empty"},
		{name: "new file", new: "a\nb\n", patch: "--- a/f\n+++ b/f\n@@ -0,0 +1,2 @@\n+a\n+b\n", hunks: 1, added: 2},
		{name: "emptied", old: "a\n", patch: "--- a/f\n+++ b/f\n@@ -1 +0,0 @@\n-a\n", hunks: 1, removed: 1},
		{
			name: "newline at the end lost", old: "a\nb\n", new: "a\nb",
			patch: "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n", hunks: 1, added: 1, removed: 1,
		},
		{
			name: "lines that look like a diff", old: "@@ -1 +1 @@\n--- x\n", new: "@@ -1 +1 @@\n+++ x\n\\ No newline at end of file\n",
			patch: "--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n @@ -1 +1 @@\n---- x\n++++ x\n+\\ No newline at end of file\n", hunks: 1, added: 2, removed: 1,
		},
		{name: "two hunks", old: "x\n" + long + "y\n", new: "X\n" + long + "Y\n", hunks: 2, added: 2, removed: 2},
		{name: "NUL", old: "a\x00", new: "b", binary: true},
		{name: "not UTF-8", old: "a", new: "\xff", binary: true},
		{name: "too large", old: "a", new: strings.Repeat("x", fsat.MaxTextBytes+1), binary: true},
		{name: "too many lines", old: "a", new: strings.Repeat("\n", fsat.MaxTextLines+1), binary: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			patch, hunks, added, removed, binary := Unified([]byte(c.old), []byte(c.new), "a/f", "b/f")
			if c.patch != "" && patch != c.patch {
				t.Errorf("patch:\n%s\nwant:\n%s", patch, c.patch)
			}
			if len(hunks) != c.hunks || added != c.added || removed != c.removed || binary != c.binary {
				t.Errorf("%d hunks, +%d -%d, binary %v; want %d, +%d -%d, %v", len(hunks), added, removed, binary, c.hunks, c.added, c.removed, c.binary)
			}
			if (patch == "") != (len(hunks) == 0) {
				t.Errorf("%d hunks and the patch %q", len(hunks), patch)
			}
		})
	}
}

func TestUnifiedQuotesNames(t *testing.T) {
	patch, _, _, _, _ := Unified([]byte("a\n"), []byte("b\n"), "a/x\n+++ b/etc", "b/\x1b[2J\u202e")
	want := `--- "a/x\n+++ b/etc"` + "\n" + `+++ "b/\x1b[2J\u202e"` + "\n"
	if !strings.HasPrefix(patch, want) {
		t.Errorf("patch begins %q, want %q", patch, want)
	}
}

// TestUnifiedIsForPatch checks that other tools can read the patches.
func TestUnifiedIsForPatch(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		testneed.Skip(t, "git", err.Error())
	}
	old := "one\n" + strings.Repeat("line\n", 30) + "two\nthree"
	new := "One\n" + strings.Repeat("line\n", 30) + "two\nthree\nfour\n"
	dir := t.TempDir()
	patch, _, _, _, _ := Unified([]byte(old), []byte(new), "a/f", "b/f")
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(git, "apply", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(patch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v: %s\n%s", err, out, patch)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "f")); string(got) != new {
		t.Errorf("git apply made %q, want %q", got, new)
	}
}

func TestApplyHunks(t *testing.T) {
	mid := strings.Repeat("same\n", 10)
	old, new := "a\n"+mid+"b\n"+mid+"c", "A\n"+mid+"b\nb2\n"+mid+"C\n"
	_, hunks, _, _, _ := Unified([]byte(old), []byte(new), "a", "b")
	if len(hunks) != 3 {
		t.Fatalf("%d hunks", len(hunks))
	}
	for _, c := range []struct {
		chosen []int
		want   string
	}{
		{nil, old},
		{[]int{0, 1, 2}, new},
		{[]int{2, 0, 1, 1}, new},
		{[]int{0}, "A\n" + mid + "b\n" + mid + "c"},
		{[]int{1}, "a\n" + mid + "b\nb2\n" + mid + "c"},
		{[]int{2}, "a\n" + mid + "b\n" + mid + "C\n"},
	} {
		got, err := ApplyHunks([]byte(old), hunks, c.chosen)
		if err != nil || string(got) != c.want {
			t.Errorf("hunks %v: %q, %v; want %q", c.chosen, got, err, c.want)
		}
	}
	for _, i := range []int{-1, 3} {
		if _, err := ApplyHunks([]byte(old), hunks, []int{i}); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("hunk %d: %v, want Invalid", i, err)
		}
	}
	for _, other := range []string{"", "a", new, strings.Replace(old, "b", "x", 1)} {
		if _, err := ApplyHunks([]byte(other), hunks, []int{0, 1, 2}); caisson.KindOf(err) != caisson.Conflict {
			t.Errorf("of another text: %v, want Conflict", err)
		}
	}
}

// TestUnifiedIsBounded compares texts for which a search for the smallest difference takes quadratic time.
func TestUnifiedIsBounded(t *testing.T) {
	var a, b bytes.Buffer
	for i := range fsat.MaxTextLines - 1 {
		a.WriteString([]string{"a\n", "b\n", "c\n"}[i%3])
		b.WriteString([]string{"c\n", "a\n"}[i*i%7%2])
	}
	line := []byte(strings.Repeat("x", 1<<20))
	for _, c := range [][2][]byte{{a.Bytes(), b.Bytes()}, {line, append(bytes.Clone(line), 'y')}} {
		start := time.Now()
		_, hunks, _, _, _ := Unified(c[0], c[1], "a", "b")
		if got, err := ApplyHunks(c[0], hunks, all(hunks)); err != nil || !bytes.Equal(got, c[1]) {
			t.Errorf("the hunks do not make the new text: %v", err)
		}
		t.Logf("%d and %d bytes took %v", len(c[0]), len(c[1]), time.Since(start))
	}
}

func all(hunks []Hunk) []int {
	var n []int
	for i := range hunks {
		n = append(n, i)
	}
	return n
}

func FuzzUnified(f *testing.F) {
	for _, c := range [][2]string{
		{"", ""},
		{"a", "b"},
		{"a\nb\n", "a\nb"},
		{"a\n\n\n\n\n\n\n\n\nb", "b\n\n\n\n\n\n\n\n\na\n"},
		{"\\ No newline at end of file", "\\ No newline at end of file\n"},
		{"@@ -1,2 +3,4 @@\n-x", "+x\r\n@@"},
	} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, old, new string) {
		patch, hunks, added, removed, binary := Unified([]byte(old), []byte(new), "a", "b")
		if binary {
			if patch != "" || hunks != nil {
				t.Fatal("binary with hunks")
			}
			return
		}
		got, err := ApplyHunks([]byte(old), hunks, all(hunks))
		if err != nil || string(got) != new {
			t.Fatalf("all hunks make %q, %v; want %q\n%s", got, err, new, patch)
		}
		if got, err = ApplyHunks([]byte(old), hunks, nil); err != nil || string(got) != old {
			t.Fatalf("no hunks make %q, %v; want %q", got, err, old)
		}
		if d := len(splitLines([]byte(new))) - len(splitLines([]byte(old))); d != added-removed {
			t.Fatalf("+%d -%d, but the texts differ by %d lines", added, removed, d)
		}
	})
}
