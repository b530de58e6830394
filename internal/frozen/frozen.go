// Package frozen compares the module with lists in files: lists of items that must not disappear, such as the names of the API
// ([Check]), and lists of known faults that must not grow ([CheckShrinking]). A list is a file of
// sorted lines. The lines up to the first empty one are its header, and lines that start with # are comments.
package frozen

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Updating reports whether lists are to be updated. [os.Getenv] makes the variable part of the key of cached test
// results.
func Updating() bool { return os.Getenv("CAISSON_TEST_UPDATE") != "" }

// Check fails the test for each line of the list in file that, after rename, is not in now; advice is added to the
// error. Lines of now that are not in the list are only logged. CAISSON_TEST_UPDATE=1 adds them to the list; no line is
// ever removed.
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

// CheckShrinking fails the test for each entry of found that is not in the list in file, or is listed with a smaller number;
// why is added to the error. A line of the list consists of an entry and, unless it is 0, its number. A listed entry
// that is not found, or is found with a smaller number, also fails the test. CAISSON_TEST_UPDATE=1 removes such lines
// and lowers such numbers; it adds no line.
func CheckShrinking(t testing.TB, file string, found map[string]int, why string) {
	t.Helper()
	head, lines := Read(t, file)
	now := map[string]string{} // Lines by entry.
	for entry, n := range found {
		if now[entry] = entry; n != 0 {
			now[entry] = fmt.Sprintf("%s %d", entry, n)
		}
	}
	var kept []string
	for _, line := range lines {
		entry, most := line, 0
		if i := strings.LastIndexByte(line, ' '); i > 0 {
			if n, err := strconv.Atoi(line[i+1:]); err == nil {
				entry, most = line[:i], n
			}
		}
		is, ok := now[entry]
		delete(now, entry)
		switch {
		case ok && found[entry] > most:
			t.Errorf("%s: %q has become %q; %s", file, line, is, why)
			is = line
		case is != line && !Updating():
			t.Errorf("%s: %q no longer occurs, now it is %q: remove or lower this line, as CAISSON_TEST_UPDATE=1 does", file, line, is)
		}
		if ok {
			kept = append(kept, is)
		}
	}
	for _, is := range slices.Sorted(maps.Values(now)) {
		t.Errorf("%s: %q is new; %s", file, is, why)
	}
	if Updating() {
		Write(t, file, head, kept)
	}
}

// Read returns the header of a list, including the empty line, and the lines that follow.
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

// Write writes a list. A comment is sorted as if it were not commented out.
func Write(t testing.TB, file, head string, lines []string) {
	t.Helper()
	bare := func(line string) string { return strings.TrimLeft(line, "# ") }
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(bare(a), bare(b)) })
	if err := os.WriteFile(file, []byte(head+strings.Join(append(lines, ""), "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}
