package safetext

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

func TestEscape(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"plain, größer, 日本語, 🦀", "plain, größer, 日本語, 🦀"},
		{"a\x1b[31mred", `a\x1b[31mred`},
		{"line\nbreak\ttab\r", `line\x0abreak\x09tab\x0d`},
		{"\x7f\x00", `\x7f\x00`},
		{"invoice\u202egpj.exe", `invoice\u202egpj.exe`},
		{"zero\u200bwidth\u2060\ufeff", `zero\u200bwidth\u2060\ufeff`},
		{"\u2066x\u2069", `\u2066x\u2069`},
		{"c1\u009b31m", `c1\u009b31m`},
		{"bad\xff\xc3(", `bad\xff\xc3(`},
		{"\ufffd", "\ufffd"},
		{"tag\U000e0041", `tag\U000e0041`},
		{"filler\u3164", `filler\u3164`},
		{"sep\u2028", `sep\u2028`},
	} {
		if got := Escape(c.in); got != c.want {
			t.Errorf("Escape(%q) = %q, want %q", c.in, got, c.want)
		}
	}
	if got, want := EscapeLines("a\n\tb\x1b\r\n"), "a\n\tb\\x1b\\x0d\n"; got != want {
		t.Errorf("EscapeLines = %q, want %q", got, want)
	}
}

func filtered(t testing.TB, mode Mode, chunks ...string) string {
	t.Helper()
	var b bytes.Buffer
	f := NewFilter(&b, mode)
	for _, c := range chunks {
		if n, err := f.Write([]byte(c)); err != nil || n != len(c) {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	f.modesChanged = false // The reset at the end has its own test.
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestScreen(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"text", "hello\r\nwörld\t日本\b", "hello\r\nwörld\t日本\b"},
		{"colours", "\x1b[1;31mx\x1b[38:2::1:2:3my\x1b[m", "\x1b[1;31mx\x1b[38:2::1:2:3my\x1b[m"},
		{"cursor", "\x1b[2J\x1b[H\x1b[10;20H\x1b[K\x1b7\x1b8\x1b[s\x1b[u", "\x1b[2J\x1b[H\x1b[10;20H\x1b[K\x1b7\x1b8\x1b[s\x1b[u"},
		{"full screen", "\x1b[?1049h\x1b[?25l\x1b[1;24r\x1b(0\x1b(B\x1b=", "\x1b[?1049h\x1b[?25l\x1b[1;24r\x1b(0\x1b(B\x1b="},
		{"allowed among refused modes", "\x1b[?3;25;69h", "\x1b[?25h"},
		{"refused modes", "a\x1b[?2lb\x1b[20hc", "abc"},
		{"clipboard", "a\x1b]52;c;ZXZpbA==\x07b", "ab"},
		{"clipboard, ST", "a\x1b]52;c;ZXZpbA==\x1b\\b", "ab"},
		{"title", "\x1b]0;title\x07x\x1b]2;t\x1b\\y", "xy"},
		{"screen title", "\x1bktitle\x1b\\x", "x"},
		{"link", "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\", "text"},
		{"DCS, APC, PM, SOS", "\x1bPq#0\x1b\\a\x1b_G\x1b\\b\x1b^p\x1b\\c\x1bXs\x1b\\d", "abcd"},
		{"questions", "\x1b[6n\x1b[c\x1b[>c\x1b[>q\x1b[?1$p\x1b[x\x1bZ\x05\x1b[5n\x1b[?6n", ""},
		{"window", "\x1b[21t\x1b[8;1;1t\x1b[3;0;0t", ""},
		{"printer", "\x1b[5i\x1b[4i", ""},
		{"keyboard", "\x1b[>1u\x1b[=5u\x1b[>4;2m\x1b[?u", ""},
		{"scroll-back and reset", "\x1b[3J\x1bcx\x1b[2J", "x\x1b[2J"},
		{"leave UTF-8", "\x1b%@x\x1b%G", "x"},
		{"C1", "\u009b31mx\u009d52;c;x\u009c", "31mx52;c;x"},
		{"raw C1", "\x9b31m", "\ufffd31m"},
		{"invalid", "a\xffb\xc3", "a\ufffdb\ufffd"},
		{"abort", "\x1b[3\x18x\x1b]0;\x1ay", "xy"},
		{"sequence in sequence", "\x1b[3\x1b[31mx", "\x1b[31mx"},
		{"unterminated", "x\x1b]0;abc", "x"},
		{"sequence in string", "\x1b]0;a\x1b[6nb", "b"},
		{"huge repeat", "x\x1b[99999999b", "x"},
		{"cursor shape", "\x1b[2 q", "\x1b[2 q"},
		{"flow control and delete", "\x11\x13\x00\x7fx", "x"},
		{"bidi passes", "\u202ex", "\u202ex"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := filtered(t, Screen, c.in); got != c.want {
				t.Errorf("whole: %q, want %q", got, c.want)
			}
			if got := filtered(t, Screen, strings.Split(c.in, "")...); got != c.want {
				t.Errorf("in pieces: %q, want %q", got, c.want)
			}
		})
	}
}

func TestLog(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"text", "hello\r\nwörld\t日本 👩\u200d💻\n", "hello\r\nwörld\t日本 👩\u200d💻\n"},
		{"colours", "\x1b[1;31mx\x1b[m", "\x1b[1;31mx\x1b[m"},
		{"no way back", "safe\rEVIL\b", `safe\x0dEVIL\x08`},
		{"cursor", "\x1b[2Jx\x1b[H", `\x1b[2Jx\x1b[H`},
		{"clipboard", "\x1b]52;c;eA==\x07", `\x1b]52;c;eA==\x07`},
		{"bidi", "a\u202eb\u2066", `a\u202eb\u2066`},
		{"C1", "\u009b31m", `\u009b31m`},
		{"invalid", "\xffx\xe2\x82", `\xffx\xe2\x82`},
		{"end", "x\r", `x\x0d`},
		{"unterminated", "x\x1b[3", `x\x1b[3`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := filtered(t, Log, c.in); got != c.want {
				t.Errorf("whole: %q, want %q", got, c.want)
			}
			var bytewise []string
			for i := range len(c.in) {
				bytewise = append(bytewise, c.in[i:i+1])
			}
			if got := filtered(t, Log, bytewise...); got != c.want {
				t.Errorf("in pieces: %q, want %q", got, c.want)
			}
		})
	}
}

func TestCloseRestoresTheScreen(t *testing.T) {
	var b bytes.Buffer
	f := NewFilter(&b, Screen)
	f.Write([]byte("\x1b[?1049h\x1b[?1000h"))
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(b.String(), resetScreen) {
		t.Errorf("a program that left modes on was not cleaned up after: %q", b.String())
	}
	for _, m := range []string{"1049l", "1000;", "2004;", "25;7h"} {
		if !strings.Contains(resetScreen, m) {
			t.Errorf("the reset lacks %s", m)
		}
	}
	// What moves the cursor is between saving and restoring it, and the origin mode is reset only if it was set.
	if !strings.Contains(resetScreen, "\x1b7\x1b[r\x1b8") || strings.Contains(resetScreen, "6l\x1b7") {
		t.Errorf("the reset moves the cursor: %q", resetScreen)
	}
	b.Reset()
	f = NewFilter(&b, Screen)
	f.Write([]byte("\x1b[?6h"))
	f.Close()
	if want := "\x1b[?6h\x1b[?6l" + resetScreen; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	f = NewFilter(&b, Screen)
	f.Write([]byte("plain"))
	f.Close()
	if b.String() != "plain" {
		t.Errorf("plain output was changed: %q", b.String())
	}
}

// harmless matches the allowed output for any input in Screen mode, written independently of the filter: text, and
// sequences from a closed list.
var harmless = regexp.MustCompile(`^(?:[\a\x08\t\n\x0b\x0c\r\x0e\x0f\x20-\x7e]|[^\x00-\x{9f}]` +
	`|\x1b[78DEMH=>]|\x1b[()*+][0AB]` +
	`|\x1b\[[0-9;:]*m|\x1b\[(?:[0-9]{0,4};)*[0-9]{0,4}[A-IKLPSTXZ@` + "`" + `abdefgr]|\x1b\[[0-9;:]*J|\x1b\[[su]` +
	`|\x1b\[\?[0-9]*[JK]|\x1b\[[0-9]* q|\x1b\[!p|\x1b\[\??[0-9]+(?:;[0-9]+)*[hl])*$`)

var modesLeft = regexp.MustCompile(`\x1b\[\?([0-9;]+)[hl]`)

var harmlessLog = regexp.MustCompile(`^(?:[\t\n\x20-\x7e]|\r\n|[^\x00-\x{9f}\x{202a}-\x{202e}\x{2066}-\x{2069}]|\x1b\[[0-9;:]*m)*$`)

func FuzzFilter(f *testing.F) {
	for _, s := range []string{
		"plain", "größe 日本", "\x1b[31mx", "\x1b]52;c;eA==\x07", "\x1b[?1049h", "\x1b\x1b[6n", "\x1bP\x1b\x1b\\", "\xc2\x9b6n",
		"\x1b[3;\x1b]0;x", "\xe2\x80\xae", "\r\n\r", "\x1b[?3;25h", "\x1b%@", "\xf0\x9f", "\x1b[ q", "\x1b[:3J", "\x1b[0:3J",
	} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, cut uint8) {
		for _, mode := range []Mode{Screen, Log} {
			whole := filtered(t, mode, string(in))
			var pieces []string
			for rest, n := string(in), 1+int(cut%7); rest != ""; {
				n = min(n, len(rest))
				pieces = append(pieces, rest[:n])
				rest = rest[n:]
			}
			if got := filtered(t, mode, pieces...); got != whole {
				t.Fatalf("mode %d: cutting %q changed %q to %q", mode, in, whole, got)
			}
			ok := harmless
			if mode == Log {
				ok = harmlessLog
			}
			if !utf8.ValidString(whole) || !ok.MatchString(whole) {
				t.Fatalf("mode %d: %q became %q", mode, in, whole)
			}
			for _, m := range modesLeft.FindAllStringSubmatch(whole, -1) {
				for n := range strings.SplitSeq(m[1], ";") {
					if n == "2" || n == "3" || n == "69" {
						t.Fatalf("mode %s passed: %q", n, whole)
					}
				}
			}
			if plainText(string(in)) && whole != string(in) {
				t.Fatalf("mode %d: plain text %q became %q", mode, in, whole)
			}
		}
		if e := Escape(string(in)); strings.ContainsFunc(e, func(r rune) bool { return !Safe(r) }) || !utf8.ValidString(e) {
			t.Fatalf("Escape(%q) = %q", in, e)
		}
	})
}

func plainText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !Safe(r) && r != '\n' && r != '\t' })
}

func FuzzEscapeValues(f *testing.F) {
	f.Add("a\u202eb\U000e0041\x1b\x7f")
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			t.Skip()
		}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back string
		e := EscapeJSON(string(b))
		if err := json.Unmarshal([]byte(e), &back); err != nil || back != s {
			t.Fatalf("JSON: %q became %q: %v", s, back, err)
		}
		if strings.ContainsFunc(e, func(r rune) bool { return !Safe(r) }) {
			t.Fatalf("JSON: unsafe %q", e)
		}
		y, err := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: s})
		if err != nil {
			t.Fatal(err)
		}
		e = EscapeYAML(string(y))
		if err := yaml.Unmarshal([]byte(e), &back); err != nil || back != s {
			t.Fatalf("YAML: %q became %q: %v", s, back, err)
		}
	})
}
