package frozen_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/frozen"
)

// recorder is a [testing.TB] that records errors.
type recorder struct {
	testing.TB
	errors string
}

func (*recorder) Helper()             {}
func (*recorder) Logf(string, ...any) {}

func (r *recorder) Errorf(format string, args ...any) { r.errors += fmt.Sprintf(format, args...) }

// TestCheck tests that a missing item fails, even while the list is updated, and stays in the list.
func TestCheck(t *testing.T) {
	const old = "# Header.\n\na\nc\n# d: e\n"
	for _, test := range []struct{ now, update, fails, file string }{
		{"A c", "", "", old},
		{"A b c f", "", "", old},
		{"A b c f", "1", "", "# Header.\n\na\nb\nc\n# d: e\nf\n"},
		{"A b", "", `"c" has vanished; mend`, old},
		{"a b c", "1", `"A" has vanished; mend`, "# Header.\n\na\na\nb\nc\n# d: e\n"},
	} {
		t.Setenv("CAISSON_TEST_UPDATE", test.update)
		file := t.TempDir() + "/list"
		if err := os.WriteFile(file, []byte(old), 0o644); err != nil {
			t.Fatal(err)
		}
		r := &recorder{TB: t}
		frozen.Check(r, file, strings.Fields(test.now), func(line string) string { return strings.ReplaceAll(line, "a", "A") }, "mend")
		got, err := os.ReadFile(file)
		if err != nil || string(got) != test.file || !strings.Contains(r.errors, test.fails) || test.fails == "" && r.errors != "" {
			t.Errorf("%+v: file %q, errors %q, %v", test, got, r.errors, err)
		}
	}
}
