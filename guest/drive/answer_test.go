package drive

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/guest/task"
)

func TestAnswer(t *testing.T) {
	type step = func(*Answer)
	delta := func(s string) step { return func(a *Answer) { a.Delta(s) } }
	part := func(s string) step { return func(a *Answer) { a.Partial(s) } }
	message := func(s string) step { return func(a *Answer) { a.Message(s) } }
	final := func(s string) step { return func(a *Answer) { a.Final(s) } }
	stop := func(a *Answer) { a.EndMessage() }
	for _, c := range []struct {
		name  string
		steps []step
		want  string
	}{
		{"nothing", []step{final(""), message(""), delta("")}, ""},
		{"only a final", []step{final("x")}, "x"},
		{"only messages", []step{message("x"), message("y")}, "x\n\ny"},
		{"the same message again is another", []step{message("ok"), message("ok")}, "ok\n\nok"},
		{"parts, whole and final", []step{delta("a"), delta("b"), message("ab"), final("ab")}, "ab"},
		{"final of the last message", []step{message("a"), delta("b"), message("b"), final("b")}, "a\n\nb"},
		{"final of all messages", []step{message("a"), message("b"), final("a\n\nb")}, "a\n\nb"},
		{"final with more", []step{delta("a"), final("ab")}, "ab"},
		{"final with other space", []step{delta("a b\n"), final(" a b c ")}, "a b\nc"},
		{"final of the last message with more", []step{message("a"), message("b"), final("b c")}, "a\n\nb c"},
		{"final that is other", []step{delta("a"), final("z")}, "a\n\nz"},
		{"final that is less", []step{delta("a long answer"), final("long")}, "a long answer"},
		{"whole that is other", []step{delta("ab"), message("xy"), delta("c")}, "ab\n\nxy\n\nc"},
		{"updates", []step{part("a"), part("ab"), part("abc"), message("abc")}, "abc"},
		{"an update that takes back", []step{part("ab"), part("ax"), message("ax")}, "ab\n\nax"},
		{"a break", []step{delta("a"), stop, delta("b")}, "a\n\nb"},
		{"only white space was missing", []step{delta("a"), message("a\n")}, "a"},
	} {
		out := &record{}
		a := NewAnswer(out, 1<<20)
		for _, s := range c.steps {
			s(a)
		}
		if got := out.text.String(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestAnswerRemembersSoMuch: the memory for a long answer is bounded.
func TestAnswerRemembersSoMuch(t *testing.T) {
	out := &record{}
	a := NewAnswer(out, 10)
	for range 100 {
		a.Delta("12345")
	}
	a.Final("x")
	if len(a.all) > 10 {
		t.Errorf("%d bytes", len(a.all))
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":                         "plain\ttext\n",
		"a\r\nb\rc\r":                           "a\nb\nc",
		"\x1b[1;31mred\x1b[0m":                  "red",
		"\x1b]0;title\x07x\x1b]8;;u\x1b\\y":     "xy",
		"\x1bPq#0\x1b\\x":                       "x",
		"\x1b(Bx\x1b7y":                         "xy",
		"\u009b31mx":                            "x",
		"\x00\x01\x08\x7f\u0085x":               "x",
		"\xff\xc3":                              "\ufffd\ufffd",
		"\xe2\x82a":                             "\ufffda",
		"€\u202e":                               "€\u202e",
		"\x1b[31\nm":                            "\nm",
		"\x1b]never ends\nx":                    "\nx",
		"\x1b[" + strings.Repeat("1", 70) + "m": "11111m",
	} {
		if got := plainText(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := shortLine("  a\n b\tc\x1b[2J "); got != "a b c" {
		t.Errorf("%q", got)
	}
	if got := shortLine(strings.Repeat("ä", 1000)); len(got) > task.MaxLabel || !strings.HasSuffix(got, "ä…") {
		t.Errorf("%q", got)
	}
}

// FuzzClean: the plain text does not depend on how the input is split.
func FuzzClean(f *testing.F) {
	f.Add("a\x1b[31mb\r\nc\xe2\x82\xac", 3)
	f.Add("\x1b]8;;x\x1b\\\xff", 5)
	f.Fuzz(func(t *testing.T, s string, at int) {
		whole := plainText(s)
		at = max(0, min(at, len(s)))
		var c cleaner
		cut := c.write(s[:at])
		cut += c.write(s[at:])
		cut += c.flush()
		if cut != whole {
			t.Fatalf("%q cut at %d: %q and %q", s, at, cut, whole)
		}
		if !utf8.ValidString(whole) || strings.ContainsFunc(whole, func(r rune) bool { return task.IsControl(r) && r != '\n' && r != '\t' }) {
			t.Fatalf("%q became %q", s, whole)
		}
	})
}
