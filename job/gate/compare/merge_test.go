package compare

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestMerge3(t *testing.T) {
	for _, c := range []struct {
		name, base, ours, theirs string
		want                     string
		clash                    bool
	}{
		{name: "nothing"},
		{name: "ours only", base: "a\nb\n", ours: "a\nB\n", theirs: "a\nb\n", want: "a\nB\n"},
		{name: "theirs only", base: "a\nb\n", ours: "a\nb\n", theirs: "A\nb\n", want: "A\nb\n"},
		{name: "the same", base: "a\n", ours: "b\n", theirs: "b\n", want: "b\n"},
		{name: "apart", base: "a\nb\nc\n", ours: "A\nb\nc\n", theirs: "a\nb\nC\n", want: "A\nb\nC\n"},
		{name: "the same and another", base: "a\nb\nc\nd\n", ours: "A\nb\nc\nd\n", theirs: "A\nb\nc\nD\n", want: "A\nb\nc\nD\n"},
		{name: "one line", base: "a\n", ours: "b\n", theirs: "c\n", clash: true},
		{name: "lines that touch", base: "a\nb\n", ours: "A\nb\n", theirs: "a\nB\n", clash: true},
		{name: "both append", base: "a\n", ours: "a\nb\n", theirs: "a\nc\n", clash: true},
		{name: "removed and changed", base: "a\nb\nc\n", ours: "a\nc\n", theirs: "a\nB\nc\n", clash: true},
		{name: "all removed and added to", base: "a\nb\nc\n", ours: "", theirs: "a\nb\nb2\nc\n", clash: true},
		{name: "no base", base: "", ours: "a\n", theirs: "b\n", clash: true},
		{name: "newline at the end", base: "a\nb\nc", ours: "a\nb\nc\n", theirs: "A\nb\nc", want: "A\nb\nc\n"},
		{name: "no newline and appended", base: "a\nb", ours: "a\nb\nc", theirs: "a\nB", clash: true},
		{name: "binary on one side", base: "\x00a", ours: "\x00b", theirs: "\x00a", want: "\x00b"},
		{name: "binary on both", base: "\x00a\nb\nc\n", ours: "\x00A\nb\nc\n", theirs: "\x00a\nb\nC\n", clash: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, sides := range [][2]string{{c.ours, c.theirs}, {c.theirs, c.ours}} {
				got, clean := Merge3([]byte(c.base), []byte(sides[0]), []byte(sides[1]))
				if clean == c.clash || string(got) != c.want {
					t.Errorf("%q, clean %v; want %q, %v", got, clean, c.want, !c.clash)
				}
				if c.clash && got != nil {
					t.Errorf("a clash gave %q", got)
				}
			}
		})
	}
}

// TestMerge3Apart makes changes to lines that are not adjacent, so that the result is known.
func TestMerge3Apart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var base, ours, theirs, want []string
		for i := range 40 {
			line := fmt.Sprintf("line %d\n", i)
			base = append(base, line)
			o, th := []string{line}, []string{line}
			if i%2 == 1 { // each changed line is between two unchanged ones
				change := [][]string{{}, {"new\n"}, {line, "more\n"}, {"before\n", line}}[rng.IntN(4)]
				switch rng.IntN(4) {
				case 0:
					o = change
				case 1:
					th = change
				case 2:
					o, th = change, change
				}
			}
			ours, theirs = append(ours, o...), append(theirs, th...)
			if slices.Equal(o, []string{line}) {
				o = th
			}
			want = append(want, o...)
		}
		text := func(l []string) []byte { return []byte(strings.Join(l, "")) }
		got, clean := Merge3(text(base), text(ours), text(theirs))
		if !clean || string(got) != string(text(want)) {
			t.Fatalf("clean %v\nours:\n%s\ntheirs:\n%s\ngot:\n%s", clean, text(ours), text(theirs), got)
		}
	}
}

func FuzzMerge3(f *testing.F) {
	f.Add("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC")
	f.Add("", "a", "b")
	f.Add("a\na\na\n", "a\na\n", "a\na\na\na\n")
	f.Fuzz(func(t *testing.T, base, ours, theirs string) {
		b, o, th := []byte(base), []byte(ours), []byte(theirs)
		for _, c := range []struct {
			o, t []byte
			want string
		}{{o, o, ours}, {o, b, ours}, {b, th, theirs}} {
			if got, clean := Merge3(b, c.o, c.t); !clean || string(got) != c.want {
				t.Fatalf("a change of one side: %q, %v; want %q", got, clean, c.want)
			}
		}
		got, clean := Merge3(b, o, th)
		back, same := Merge3(b, th, o)
		if clean != same || string(got) != string(back) {
			t.Fatalf("the order of the sides matters: %q and %q", got, back)
		}
		if !clean {
			return
		}
		// Each line of the result comes from one of the two texts, and no line that both contain is lost.
		have := map[string]int{}
		for _, l := range append(splitLines(o), splitLines(th)...) {
			have[l]++
		}
		for _, l := range splitLines(got) {
			if have[l] == 0 {
				t.Fatalf("line %q comes from nowhere", l)
			}
		}
	})
}
