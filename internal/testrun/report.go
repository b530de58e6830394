package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is one line of the output of "go test -json", in the form that "go doc test2json" describes.
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64 // seconds
}

// result is the result of a test or, without Test, of a package.
type result struct {
	Package, Test, Action string  // Action is "pass", "skip" or "fail"
	Seconds               float64 // duration
}

// report prints the output that "go test" without -v would print, and stores all results. It is safe for concurrent use.
type report struct {
	timesFile string // the file to which close writes the results, for printTimes

	mu      sync.Mutex
	out     io.Writer           // where the output is printed; guarded by mu
	output  map[string][]string // output of the tests that have not ended, by package and test; guarded by mu
	results []result            // the results so far; guarded by mu
	broken  map[string]bool     // Packages with a panic or a data race; guarded by mu.
	killed  map[string]bool     // Packages whose process was killed by a signal from outside; guarded by mu.
	// The last lines of output of the packages that failed although none of their tests did; guarded by mu.
	last map[string][]string
	errs []error // errors other than failures of tests; guarded by mu
}

// fail records an error that is not the failure of a test.
func (r *report) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// read processes the output of "go test -json", in which each line is an event such as the end of a test, until its end.
func (r *report) read(events io.Reader) error {
	d := json.NewDecoder(events)
	for {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the output of go test -json: %w", err)
		}
		r.add(e)
	}
}

// add processes one event, which is a line of the output of "go test -json".
func (r *report) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		if e.Test == "" && strings.HasPrefix(e.Output, "ok ") {
			fmt.Fprint(r.out, e.Output)
			return
		}
		if r.output == nil {
			r.output, r.broken, r.killed = map[string][]string{}, map[string]bool{}, map[string]bool{}
		}
		if e.Test == "" && strings.HasPrefix(e.Output, "signal: killed") {
			r.killed[e.Package] = true
		}
		if strings.HasPrefix(e.Output, "panic: ") || strings.HasPrefix(e.Output, "fatal error: ") || strings.Contains(e.Output, "WARNING: DATA RACE") {
			r.broken[e.Package] = true
		}
		r.output[key] = append(r.output[key], e.Output)
	case "pass", "skip", "fail":
		r.results = append(r.results, result{e.Package, e.Test, e.Action, e.Elapsed})
		if e.Action == "fail" {
			lines := r.output[key]
			fmt.Fprint(r.out, strings.Join(lines, ""))
			if e.Test == "" && !slices.ContainsFunc(r.results, func(x result) bool { return x.Package == e.Package && x.Test != "" && x.Action == "fail" }) {
				if r.last == nil {
					r.last = map[string][]string{}
				}
				r.last[e.Package] = lines[max(0, len(lines)-maxLast):]
			}
		}
		delete(r.output, key)
		if e.Test == "" {
			// The output that remains is that of tests that had not ended when the process of their package ended.
			for k, lines := range r.output {
				if strings.HasPrefix(k, e.Package+" ") {
					if e.Action == "fail" {
						fmt.Fprint(r.out, strings.Join(lines, ""))
					}
					delete(r.output, k)
				}
			}
		}
	}
}

// failed reports whether one of packages, or one of their tests, has failed.
func (r *report) failed(packages []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.results, func(x result) bool { return x.Action == "fail" && slices.Contains(packages, x.Package) })
}

// maxLast is the maximum number of lines of output that are printed at the end for a package that failed although none of its
// tests did.
const maxLast = 30

// maxRepeated is the maximum number of failed tests that are repeated. If more tests have failed, none is repeated.
const maxRepeated = 3

// repeatable returns the failed tests that are to be repeated, without subtests, or nothing if one of the failures must not be
// repeated: a panic, a data race, a package that failed although none of its tests did (it was not built, or ran out of time),
// more than maxRepeated tests, or an error in errs. A package whose process was killed is repeated whole: the kernel may have
// run out of memory.
func (r *report) repeatable() []result {
	r.mu.Lock()
	defer r.mu.Unlock()
	tests := map[string]bool{} // whether a test of the package has failed, by package
	var list, packages []result
	for _, x := range r.results {
		switch {
		case x.Action != "fail":
		case x.Test == "":
			packages = append(packages, x)
		case !strings.Contains(x.Test, "/"):
			list, tests[x.Package] = append(list, x), true
		}
	}
	for _, p := range packages {
		switch {
		case r.broken[p.Package]:
			return nil
		case tests[p.Package]:
		case r.killed[p.Package]:
			list = append(list, p)
		default:
			return nil
		}
	}
	if len(list) > maxRepeated || len(r.errs) > 0 {
		return nil
	}
	return list
}

// removeFlaky removes the failures of tests that passed when they were repeated, and the failures of their packages, from the
// results. It returns the names of those tests. The caller holds r.mu.
func (r *report) removeFlaky() []string {
	last := map[string]string{} // the last result of each test
	for _, x := range r.results {
		last[x.Package+" "+x.Test] = x.Action
	}
	var list []string
	r.results = slices.DeleteFunc(r.results, func(x result) bool {
		name := x.Package + " " + x.Test
		if x.Action != "fail" || last[name] != "pass" {
			return false
		}
		if x.Test != "" || r.killed[x.Package] {
			list = append(list, strings.TrimSpace(name))
		}
		return true
	})
	return list
}

// close prints a summary and writes the results to the file of times. took is the duration of the run. It returns an error if a
// test or package has failed, or if the tests could not be run.
func (r *report) close(took time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range r.removeFlaky() {
		fmt.Fprintf(r.out, "FLAKY: %s failed, and passed when it was repeated alone: find out why\n", name)
	}
	n := map[string]int{}
	var failed []string
	for _, x := range r.results {
		if x.Test != "" {
			n[x.Action]++
		}
		if x.Action == "fail" {
			failed = append(failed, strings.TrimSpace(x.Package+" "+x.Test))
		}
	}
	data, err := json.Marshal(r.results)
	if err == nil {
		err = os.WriteFile(r.timesFile, data, 0o644)
	}
	for _, e := range append(r.errs, err) {
		if e != nil {
			fmt.Fprintln(r.out, e)
		}
	}
	fmt.Fprintf(r.out, "%s; \"make test-times\" shows where the time went\n", took.Round(time.Second))
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", n["pass"], n["fail"], n["skip"])
	if len(failed) > 0 {
		for name, lines := range r.last {
			fmt.Fprintf(r.out, "the last output of %s, in which no test failed:\n%s", name, strings.Join(lines, ""))
		}
		return fmt.Errorf("failed:\n%s", strings.Join(failed, "\n"))
	}
	if len(r.errs) > 0 || err != nil {
		return errors.New("the tests could not be run")
	}
	return nil
}

// printTimes prints the times of the last run: of each package and of the twenty slowest tests.
func printTimes(w io.Writer, timesFile string) error {
	data, err := os.ReadFile(timesFile)
	if err != nil {
		return fmt.Errorf("no times are kept: run \"make test\" first: %w", err)
	}
	var list []result
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	slices.SortStableFunc(list, func(a, b result) int { return cmp.Compare(b.Seconds, a.Seconds) })
	for _, x := range list {
		if x.Test == "" && x.Action != "skip" {
			fmt.Fprintf(w, "%8.1f s  %s\n", x.Seconds, x.Package)
		}
	}
	fmt.Fprintln(w, "\nThe slowest tests; one that runs in parallel with others includes the time in which it was paused for them.")
	left := 20
	for _, x := range list {
		if x.Test != "" && !strings.Contains(x.Test, "/") && left > 0 {
			fmt.Fprintf(w, "%8.1f s  %s %s\n", x.Seconds, strings.TrimPrefix(x.Package, module+"/"), x.Test)
			left--
		}
	}
	return nil
}
