// Package steptest helps tests that inject a failure at each step of an operation. It selects the steps of a test run,
// and checks that an operation still takes the steps that a file lists.
package steptest

import (
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson/internal/testneed"
)

// Environment variables that the Makefile sets. They are read with [os.Getenv], so that they are part of the key of
// cached test results.
const (
	sampleEnv = "CAISSON_TEST_SAMPLE" // selects the sample of steps; its value is the hash of the commit
	updateEnv = "CAISSON_TEST_UPDATE" // if not empty, the records of steps are written instead of checked
)

// A Sample is a set of step numbers. The zero value contains every step.
type Sample struct {
	stride, offset int // The sample contains the steps n for which n%stride == offset.
}

// Every returns a sample of each stride-th step, or of every step if testneed.All returns true. Its first step depends
// on the hash of the commit and on name, so that the operations of one commit start at different steps, and all steps
// are covered over several commits.
func Every(stride int, name string) Sample {
	if testneed.All() {
		return Sample{}
	}
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\x00%s", os.Getenv(sampleEnv), name)
	return Sample{stride, int(h.Sum32() % uint32(stride))}
}

// Has reports whether the sample contains step n.
func (s Sample) Has(n int) bool { return s.stride == 0 || n%s.stride == s.offset }

// From returns the first step of the sample that is not less than n.
func (s Sample) From(n int) int {
	for !s.Has(n) {
		n++
	}
	return n
}

// A Record collects the names of the steps that the operations of one test take. A test executes an operation several times; the
// executions with an injected failure are not recorded. A Record is safe for concurrent use.
type Record struct {
	mu  sync.Mutex
	ops map[string]*operation // the operations by name; guarded by mu
}

// operation is the part of a Record about one operation of the test.
type operation struct {
	passes int            // Number of executions of the operation, without an injected failure, so far.
	steps  map[string]int // Number of executions, without an injected failure, that have taken a step, by its name.
}

// Recorder returns a function that records the names of the steps of one execution of operation name without an injected failure.
func (r *Record) Recorder(name string) func(steps []string) {
	return func(steps []string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ops == nil {
			r.ops = map[string]*operation{}
		}
		op := r.ops[name]
		if op == nil {
			op = &operation{steps: map[string]int{}}
			r.ops[name] = op
		}
		op.passes++
		slices.Sort(steps)
		for _, s := range slices.Compact(steps) {
			op.steps[s]++
		}
	}
}

// Check fails the test if an operation no longer takes a step that testdata/steps/NAME.txt lists for it, where NAME is
// the test's name. A new step is only logged, because some depend on timing. With CAISSON_TEST_UPDATE=1 it writes the
// file instead, with the steps of each operation that all of its recorded executions took. It does nothing if the test has
// failed already, and ignores operations that did not run.
func (r *Record) Check(t testing.TB) {
	t.Helper()
	if t.Failed() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	path := filepath.Join("testdata", "steps", strings.ReplaceAll(t.Name(), "/", "-")+".txt")
	if os.Getenv(updateEnv) != "" {
		r.write(t, path)
		return
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("the record of steps: %v; CAISSON_TEST_UPDATE=1 writes it", err)
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		known[line] = true
		name, step, _ := strings.Cut(line, ": ")
		if op := r.ops[name]; op != nil && op.steps[step] == 0 {
			t.Errorf("step %q is no longer taken; if that is intended, CAISSON_TEST_UPDATE=1 records it", line)
		}
	}
	for name, op := range r.ops {
		for step := range op.steps {
			if line := name + ": " + step; !known[line] {
				t.Logf("step %q is not on record; CAISSON_TEST_UPDATE=1 records it", line)
			}
		}
	}
}

// write writes the record to the file path.
func (r *Record) write(t testing.TB, path string) {
	t.Helper()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.ops)) {
		op := r.ops[name]
		for _, step := range slices.Sorted(maps.Keys(op.steps)) {
			if op.steps[step] == op.passes {
				fmt.Fprintf(&b, "%s: %s\n", name, step)
			}
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
