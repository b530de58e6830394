// Package testneed lets a test declare its requirements. A requirement that is not met skips the test, or fails it if
// CAISSON_TEST_REQUIRE lists the requirement (comma separated, or "all"), so that CI cannot pass by skipping.
package testneed

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// All reports whether tests cover everything, as with "make test-all", or only a selection, as with "make test".
func All() bool { return os.Getenv("CAISSON_TEST_ALL") != "" }

// Full skips t unless tests cover everything; why describes what is covered without t. CAISSON_TEST_REQUIRE does not
// apply: "make test" skips such tests on every machine.
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

// Skip skips t because feature is missing, or fails it if the environment requires the feature.
func Skip(t testing.TB, feature, why string) {
	t.Helper()
	need := strings.Split(os.Getenv("CAISSON_TEST_REQUIRE"), ",")
	if slices.Contains(need, feature) || slices.Contains(need, "all") {
		t.Fatalf("%s is required here (CAISSON_TEST_REQUIRE) but: %s", feature, why)
	}
	t.Skipf("needs %s: %s", feature, why)
}
