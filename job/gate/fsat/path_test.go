package fsat

import (
	"slices"
	"strings"
	"testing"
)

func TestComparePaths(t *testing.T) {
	sorted := []string{"a", "a/b", "a/b/c", "a/bc", "a-", "a.b", "a.b/c", "aa", "b", "\xff"}
	got := slices.Clone(sorted)
	slices.Reverse(got)
	slices.SortFunc(got, Compare)
	if !slices.Equal(got, sorted) {
		t.Errorf("%q", got)
	}
	for _, p := range sorted {
		if Compare(p, p) != 0 {
			t.Errorf("%q is not itself", p)
		}
	}
}

func TestValidPath(t *testing.T) {
	for _, p := range []string{"a", "a/b", "...", "\xff", "-rf", strings.Repeat("a/", 255) + "a"} {
		if !ValidPath(p) {
			t.Errorf("%.20q is not valid", p)
		}
	}
	for _, p := range []string{"", "/", "a/", "/a", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\x00", strings.Repeat("a", 256),
		strings.Repeat("a/", 256) + "a", strings.Repeat(strings.Repeat("a", 200)+"/", 21) + "a"} {
		if ValidPath(p) {
			t.Errorf("%.20q is valid", p)
		}
	}
}
