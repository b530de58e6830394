package main

import (
	"strings"
	"testing"
	"time"
)

// TestReport tests that the output of failed tests is printed and that of passed tests is not, and that a summary is
// printed at the end.
func TestReport(t *testing.T) {
	const events = `{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"good says\n"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":1.5}
{"Action":"output","Package":"p","Test":"TestBad","Output":"bad says\n"}
{"Action":"fail","Package":"p","Test":"TestBad","Elapsed":0.5}
{"Action":"output","Package":"p","Test":"TestHangs","Output":"hangs says\n"}
{"Action":"output","Package":"p","Output":"panic: test timed out\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t2s\n"}
{"Action":"fail","Package":"p","Elapsed":2}
{"Action":"output","Package":"q","Output":"ok  \tq\t3s\n"}
{"Action":"pass","Package":"q","Elapsed":3}
{"Action":"build-output","ImportPath":"r","Output":"r.go:1: no\n"}
{"Action":"output","Package":"r","Output":"FAIL\tr [build failed]\n"}
{"Action":"fail","Package":"r","Elapsed":0,"FailedBuild":"r"}
`
	t.Chdir(t.TempDir())
	var out strings.Builder
	r := &report{out: &out, timesFile: "times.json"}
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	err := r.close(time.Minute)
	if err == nil || !strings.Contains(err.Error(), "p TestBad") || !strings.Contains(err.Error(), "\nr") {
		t.Errorf("the error is %v", err)
	}
	for text, want := range map[string]bool{
		"good says": false, "bad says": true, "hangs says": true, "timed out": true, "ok  \tq\t3s": true, "r.go:1": true, "[build failed]": true, "1 passed, 1 failed, 0 skipped": true,
	} {
		if strings.Contains(out.String(), text) != want {
			t.Errorf("%q: want %v in\n%s", text, want, out.String())
		}
	}
	var times strings.Builder
	if err := printTimes(&times, "times.json"); err != nil || !strings.Contains(times.String(), "3.0 s  q") || !strings.Contains(times.String(), "1.5 s  p TestGood") {
		t.Errorf("%v\n%s", err, times.String())
	}
	if r.read(strings.NewReader("{")) == nil {
		t.Error("output that is cut is no error")
	}
}

// TestRepeat tests which failures are repeated, and what is reported of a test that then passes or fails again.
func TestRepeat(t *testing.T) {
	const once = `{"Action":"pass","Package":"p","Test":"TestGood"}
{"Action":"fail","Package":"p","Test":"TestBad/part"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"fail","Package":"p"}
`
	for name, test := range map[string]struct {
		first, second   string // events
		repeated, flaky int
		ok              bool
	}{
		"flaky": {once, `{"Action":"pass","Package":"p","Test":"TestBad/part"}
{"Action":"pass","Package":"p","Test":"TestBad"}
{"Action":"pass","Package":"p"}`, 1, 2, true},
		"broken": {once, `{"Action":"pass","Package":"p","Test":"TestBad/part"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"fail","Package":"p"}`, 1, 1, false},
		"not built": {`{"Action":"fail","Package":"p"}`, "", 0, 0, false},
		"killed": {`{"Action":"output","Package":"p","Output":"signal: killed\n"}
{"Action":"fail","Package":"p"}`, `{"Action":"pass","Package":"p"}`, 1, 1, true},
		"panic":     {`{"Action":"output","Package":"p","Output":"panic: no\n"}` + once, "", 0, 0, false},
		"data race": {`{"Action":"output","Package":"p","Test":"TestBad","Output":"WARNING: DATA RACE\n"}` + once, "", 0, 0, false},
		"too many": {strings.NewReplacer("TestGood", "TestA", "pass", "fail").Replace(once) + strings.ReplaceAll(once, "TestBad", "TestB") +
			strings.ReplaceAll(once, "TestBad", "TestC"), "", 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			r := &report{out: &out, timesFile: t.TempDir() + "/times.json"}
			if err := r.read(strings.NewReader(test.first)); err != nil {
				t.Fatal(err)
			}
			if got := len(r.repeatable()); got != test.repeated {
				t.Errorf("%d tests are repeated", got)
			}
			if err := r.read(strings.NewReader(test.second)); err != nil {
				t.Fatal(err)
			}
			if err := r.close(time.Minute); (err == nil) != test.ok {
				t.Errorf("the error is %v", err)
			}
			if got := strings.Count(out.String(), "FLAKY: p "); got != test.flaky {
				t.Errorf("%d tests are flaky in\n%s", got, out.String())
			}
		})
	}
}
