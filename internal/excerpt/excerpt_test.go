package excerpt

import (
	"strings"
	"testing"
	"testing/iotest"
)

func TestHead(t *testing.T) {
	h := Head{Limit: 4}
	for _, s := range []string{"ab", "", "cde", "f"} {
		if n, err := h.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("writing %q: %d, %v", s, n, err)
		}
	}
	if h.String() != "abcd" {
		t.Errorf("the head is %q", h.String())
	}
}

func TestReadTail(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "bcd"}, {strings.Repeat("x", 9000) + "end", 3, "end"}, {"aé", 1, "\uFFFD"}, {"a", 0, ""},
	} {
		if got := ReadTail(strings.NewReader(c.in), c.n); got != c.want {
			t.Errorf("the last %d of %.10q are %q, want %q", c.n, c.in, got, c.want)
		}
		if got := ReadTail(iotest.OneByteReader(strings.NewReader(c.in)), c.n); got != c.want {
			t.Errorf("byte by byte, the last %d of %.10q are %q, want %q", c.n, c.in, got, c.want)
		}
	}
}
