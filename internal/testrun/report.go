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

// event is a line of "go test -json", see "go doc test2json".
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64 // seconds
}

// result is the result of a test or, without Test, of a package.
type result struct {
	Package, Test, Action string
	Seconds               float64
}

// report prints the output that "go test" without -v would print, and stores all results. It is safe for concurrent
// use.
type report struct {
	timesFile string // The file for the results; see printTimes.

	mu      sync.Mutex
	out     io.Writer           // guarded by mu
	output  map[string][]string // Output of tests that have not passed, by package and test; guarded by mu.
	results []result            // guarded by mu
	errs    []error             // guarded by mu
}

func (r *report) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// read processes events until the end of the stream.
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

// add processes one event.
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
			r.output = map[string][]string{}
		}
		r.output[key] = append(r.output[key], e.Output)
	case "pass", "skip", "fail":
		r.results = append(r.results, result{e.Package, e.Test, e.Action, e.Elapsed})
		if e.Action == "fail" {
			fmt.Fprint(r.out, strings.Join(r.output[key], ""))
		}
		delete(r.output, key)
		if e.Test == "" {
			// The remaining output is that of tests that had not ended when their process ended.
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

// close prints a summary and writes the times. It returns the error of the run.
func (r *report) close(took time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
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
