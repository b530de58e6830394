package tail

import (
	"strings"
	"testing"
	"testing/iotest"
)

func TestRead(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "bcd"}, {strings.Repeat("x", 9000) + "end", 3, "end"}, {"aé", 1, "\uFFFD"}, {"a", 0, ""},
	} {
		if got := Read(strings.NewReader(c.in), c.n); got != c.want {
			t.Errorf("the last %d of %.10q are %q, want %q", c.n, c.in, got, c.want)
		}
		if got := Read(iotest.OneByteReader(strings.NewReader(c.in)), c.n); got != c.want {
			t.Errorf("byte by byte, the last %d of %.10q are %q, want %q", c.n, c.in, got, c.want)
		}
	}
}
