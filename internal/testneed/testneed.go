// Package testneed lets a test say what it needs of the machine. A need that is not met skips the test, and fails it
// where CAISSON_TEST_REQUIRE names the need (comma separated, or "all"), so that CI cannot go green by skipping.
package testneed

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// All reports whether tests cover everything, as "make test-all" does, and not a selection, as "make test" does.
func All() bool { return os.Getenv("CAISSON_TEST_ALL") != "" }

// Full skips t unless tests cover everything; why says what is covered without t. It is no need that CAISSON_TEST_REQUIRE names: "make test" skips
// such tests on every machine.
func Full(t testing.TB, why string) {
	t.Helper()
	if !All() {
		t.Skip("only with CAISSON_TEST_ALL=1, as in make test-all; without it: " + why)
	}
}

// Root skips t unless it runs as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "root", "must run as root")
	}
}

// Skip skips t because feature is not there, or fails it if the environment requires the feature.
func Skip(t testing.TB, feature, why string) {
	t.Helper()
	need := strings.Split(os.Getenv("CAISSON_TEST_REQUIRE"), ",")
	if slices.Contains(need, feature) || slices.Contains(need, "all") {
		t.Fatalf("%s is required here (CAISSON_TEST_REQUIRE) but: %s", feature, why)
	}
	t.Skipf("needs %s: %s", feature, why)
}
