// Package frozen compares the module with lists, in files, of items that must not disappear, such as the names of the API. A list
// is a file of sorted lines. The lines up to the first empty one are its header, and lines that start with # are comments.
package frozen

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"
)

// Updating reports whether the environment variable CAISSON_TEST_UPDATE requests that lists are updated. It uses [os.Getenv],
// so that the variable is part of the key of cached test results.
func Updating() bool { return os.Getenv("CAISSON_TEST_UPDATE") != "" }

// Check fails the test for each item of the list in file that, converted by rename, is not in now, which are the existing items;
// the error contains advice. Items in now that are not listed are logged, and added with CAISSON_TEST_UPDATE=1. None is removed.
func Check(t testing.TB, file string, now []string, rename func(string) string, advice string) {
	t.Helper()
	head, lines := Read(t, file)
	listed := map[string]bool{}
	for _, line := range lines {
		if strings.HasPrefix(line, "#") {
			continue
		}
		as := rename(line)
		listed[as] = true
		if !slices.Contains(now, as) {
			t.Errorf("%s: %q has vanished; %s", file, as, advice)
		}
	}
	var added []string
	for _, line := range now {
		if !listed[line] {
			added = append(added, line)
			t.Logf("%s: %q is not frozen yet; CAISSON_TEST_UPDATE=1 adds it", file, line)
		}
	}
	if len(added) > 0 && Updating() {
		Write(t, file, head, append(lines, added...))
	}
}

// Read returns the header of the list in file, with the empty line that ends it, and the other lines: an item or a comment each.
func Read(t testing.TB, file string) (head string, lines []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, body, ok := strings.Cut(string(data), "\n\n")
	if !ok {
		t.Fatalf("%s: no empty line ends the header", file)
	}
	return head + "\n\n", slices.DeleteFunc(strings.Split(body, "\n"), func(line string) bool { return line == "" })
}

// Write writes a header and the sorted lines of a list to file. An item is sorted without the # that comments it out.
func Write(t testing.TB, file, head string, lines []string) {
	t.Helper()
	bare := func(line string) string { return strings.TrimLeft(line, "# ") }
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(bare(a), bare(b)) })
	if err := os.WriteFile(file, []byte(head+strings.Join(append(lines, ""), "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}
