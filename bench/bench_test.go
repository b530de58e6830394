package bench

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func TestQuantile(t *testing.T) {
	twenty := make(samples, 20)
	for i := range twenty {
		twenty[i] = float64(20 - i)
	}
	for _, c := range []struct {
		s    samples
		q    float64
		want float64
	}{
		{nil, 0.5, 0}, {samples{7}, 0.5, 7}, {samples{7}, 0.95, 7}, {samples{3, 1, 2}, 0.5, 2}, {twenty, 0.5, 10}, {twenty, 0.95, 19}, {twenty, 1, 20},
	} {
		if got := c.s.quantile(c.q); got != c.want {
			t.Errorf("quantile %v of %v is %v, want %v", c.q, c.s, got, c.want)
		}
	}
}

// TestSpeed tests that P95 is a high value for durations and a low one for speeds.
func TestSpeed(t *testing.T) {
	hundred := make(samples, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	if got := newRow("x", "ms", hundred, "", nil); got.P50 != 50 || got.P95 != 95 {
		t.Errorf("times: %+v", got)
	}
	if got := newSpeed("x", "calls/s", hundred, "y", samples{25}); got.P50 != 50 || got.P95 != 5 || got.Ratio != 2 {
		t.Errorf("speeds: %+v", got)
	}
}

func TestTargets(t *testing.T) {
	row := newRow("x", "ms", samples{3}, "theirs", samples{2})
	if row.Ratio != 1.5 || !row.Met || row.Target != "" {
		t.Errorf("%+v", row)
	}
	for _, c := range []struct {
		row    Row
		target string
		met    bool
	}{
		{row.under(3), "< 3 ms", false},
		{row.under(3.1), "< 3.1 ms", true},
		{row.atMostTimes(1.5), "≤ 1.5 × baseline", true},
		{row.atMostTimes(1.4), "≤ 1.4 × baseline", false},
		{row.atMostOver(1), "≤ 1 ms over baseline", true},
		{row.over(2.9), "> 2.9 ms", true},
		{row.atLeastTimes(1.5), "≥ 1.5 × baseline", true},
		{row.atLeastTimes(1.6), "≥ 1.6 × baseline", false},
		{row.over(3), "> 3 ms", false},
		{row.atMostOver(1).under(2), "≤ 1 ms over baseline, < 2 ms", false},
		{row.under(2).atMostOver(1), "< 2 ms, ≤ 1 ms over baseline", false},
	} {
		if c.row.Target != c.target || c.row.Met != c.met {
			t.Errorf("target %q met %v, want %q %v", c.row.Target, c.row.Met, c.target, c.met)
		}
	}
	var b strings.Builder
	if err := WriteTable(&b, []Row{row.under(3), newRow("alone", "MB", samples{1}, "", nil)}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| `x` ", "| 3.00 ms ", "| no ", "| `alone` "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}

// TestNumbers tests that values below a millisecond are not rounded away.
func TestNumbers(t *testing.T) {
	for want, row := range map[string]Row{
		"x: 0.261 ms (p95 0.261, n 1); y: 0.061, × 4.30": newRow("x", "ms", samples{0.26115}, "y", samples{0.06071}),
		"x: 6.03 ms (p95 6.03, n 1)":                     newRow("x", "ms", samples{6.0342}, "", nil),
		"x: 12.35 MB (p95 12.35, n 1)":                   newRow("x", "MB", samples{12.346}, "", nil),
	} {
		if got := row.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if r := newRow("x", "ms", samples{0.361}, "y", samples{0.061}).atMostOver(0.3); !r.Met {
		t.Errorf("%+v", r)
	}
}

// TestPhases tests that the phases are those of the median counted run, and that the remaining time is reported.
func TestPhases(t *testing.T) {
	at := func(ms float64) *measuredRun {
		return &measuredRun{ms, &caisson.Run{Result: &caisson.RunResult{Phases: []caisson.Phase{
			{Name: "fork", Time: caisson.Duration(ms / 2 * float64(time.Millisecond))}, {Name: "agent", Time: caisson.Duration(time.Millisecond)},
		}}}}
	}
	rows := measuredRuns{at(1000), at(30), at(10), at(20)}.phases("x")
	var got []string
	for _, r := range rows {
		got = append(got, r.String())
	}
	want := []string{"x.fork: 10.00 ms (p95 10.00, n 1)", "x.agent: 1.000 ms (p95 1.000, n 1)", "x.rest: 9.00 ms (p95 9.00, n 1)"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestCompare tests that sides take turns, start equally often, and that the first samples are not counted.
func TestCompare(t *testing.T) {
	var order strings.Builder
	mark := func(s string) func(context.Context) error {
		return func(context.Context) error { order.WriteString(s); return nil }
	}
	all, err := compare(t.Context(), 3, operation{before: mark("("), do: mark("a"), after: mark(")")}, operation{do: mark("b")})
	if err != nil {
		t.Fatal(err)
	}
	if got := order.String(); got != "(a)bb(a)(a)bb(a)" {
		t.Errorf("order %s", got)
	}
	if len(all[0]) != 3 || len(all[1]) != 3 {
		t.Errorf("%d and %d samples", len(all[0]), len(all[1]))
	}
}

func TestNothingSelected(t *testing.T) {
	if _, err := Run(t.Context(), Config{Bin: t.TempDir(), Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "make bench") {
		t.Errorf("without programs: %v", err)
	}
}
