package terminal

import (
	"strings"
	"testing"
)

// TestQueries checks the answers to what programs ask, however their output is split.
func TestQueries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, out, want string }{
		{"nothing", "text\r\n\x1b[1mbold\x1b[m", ""},
		{"attributes", "text\x1b[c\x1b[0c", attributes + attributes},
		{"status", "text\x1b[5n", "\x1b[0n"},
		{"position at the start", "\x1b[?2004h\x1b[>7u\x1b[?u\x1b[6n", "\x1b[1;1R"},
		{"position after it was set", "text\x1b[7;12H\x1b[?25h\x1b[2 q\x1b[?2026l\x1b]0;title\a\x1b]0;title\x1b\\\x1b[K\x1b[31m\x1b[6n", "\x1b[7;12R"},
		{"defaults", "text\x1b[H\x1b[6n\x1b[5H\x1b[6n\x1b[;6f\x1b[6n", "\x1b[1;1R\x1b[5;1R\x1b[1;6R"},
		{"beyond the screen", "\x1b[999;999H\x1b[6n", "\x1b[24;80R"},
		{"position after text", "\x1b[7;12Hx\x1b[6n", ""},
		{"position after a newline", "\x1b[7;12H\n\x1b[6n", ""},
		{"position after a movement", "\x1b[7;12H\x1b[A\x1b[6n", ""},
		{"position after a restored one", "\x1b[7;12H\x1b8\x1b[6n", ""},
		{"position on the other screen", "\x1b[7;12H\x1b[?1049h\x1b[6n", ""},
		{"position after margins", "\x1b[7;12H\x1b[2;5r\x1b[6n", ""},
		{"no number", "\x1b[7;1:2H\x1b[6n", ""},
		{"query in a string", "\x1b]0;\x1b[c", attributes}, // ESC ends the string
		{"escapes at the end of a string", "\x1b]0;\x1b\x1b[c\x1b]0;\x1b\x1b\\\x1b[6n", attributes + "\x1b[1;1R"},
		{"query in the text of a string", "\x1b]0;[6n[c\a", ""},
		{"other queries", "\x1b[>c\x1b[=c\x1b[?6n\x1b[18t\x1b[>q\x1b[?2026$p", ""},
		{"no end", "\x1b[" + strings.Repeat("1", 1000) + "c", ""},
		{"cancelled", "\x1b[6\x18n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := string(newQueryAnswerer().read([]byte(c.out), 24, 80)); got != c.want {
				t.Errorf("whole: %q, want %q", got, c.want)
			}
			q, got := newQueryAnswerer(), ""
			for i := range len(c.out) {
				got += string(q.read([]byte(c.out[i:i+1]), 24, 80))
			}
			if got != c.want {
				t.Errorf("in pieces: %q, want %q", got, c.want)
			}
		})
	}
}
