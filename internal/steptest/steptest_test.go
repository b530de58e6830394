package steptest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/steptest"
)

// recorder is a [testing.TB] that records errors and logs.
type recorder struct {
	testing.TB
	failed bool
	logged []string
}

func (*recorder) Helper()        {}
func (*recorder) Name() string   { return "TestOther/sub" }
func (r *recorder) Failed() bool { return r.failed }

func (r *recorder) Logf(format string, args ...any) {
	r.logged = append(r.logged, fmt.Sprintf(format, args...))
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failed = true
	r.Logf(format, args...)
}

func TestRecord(t *testing.T) {
	t.Chdir(t.TempDir())
	check := func(update bool, passes ...string) *recorder {
		t.Setenv("CAISSON_TEST_UPDATE", map[bool]string{true: "1"}[update])
		var r steptest.Record
		for _, p := range passes {
			op, steps, _ := strings.Cut(p, ": ")
			r.Recorder(op)(strings.Fields(steps))
		}
		rec := &recorder{TB: t}
		r.Check(rec)
		return rec
	}
	check(true, "make: b a a", "make: a b late", "stop: c")
	for _, test := range []struct {
		name   string
		passes []string
		fails  bool
		says   string
	}{
		{"the same", []string{"make: a b", "stop: c"}, false, ""},
		{"one operation only", []string{"stop: c"}, false, ""},
		{"a step fewer", []string{"make: a", "stop: c"}, true, `"make: b" is no longer`},
		{"in one pass only", []string{"make: a", "make: b"}, false, ""},
		{"another step", []string{"make: a b d"}, false, `"make: d" is not on record`},
		{"none", []string{"make: "}, true, `"make: a" is no longer`},
	} {
		r := check(false, test.passes...)
		if said := strings.Join(r.logged, "\n"); r.failed != test.fails || !strings.Contains(said, test.says) || test.says == "" && said != "" {
			t.Errorf("%s: fails %v, says %s", test.name, r.failed, said)
		}
	}
}

// TestEvery tests that the samples of several commits contain all steps, and that of one commit each stride-th.
func TestEvery(t *testing.T) {
	t.Setenv("CAISSON_TEST_ALL", "")
	seen := map[int]bool{}
	for commit := range 50 {
		t.Setenv("CAISSON_TEST_SAMPLE", fmt.Sprint(commit))
		s := steptest.Every(5, "operation")
		var has []int
		for at := s.From(1); at <= 15; at = s.From(at + 1) {
			has = append(has, at)
			seen[at] = true
		}
		if len(has) != 3 || has[1] != has[0]+5 || has[2] != has[1]+5 {
			t.Errorf("the sample has %v", has)
		}
	}
	for at := 1; at <= 15; at++ {
		if !seen[at] {
			t.Errorf("no sample has step %d", at)
		}
	}
	t.Setenv("CAISSON_TEST_ALL", "1")
	if s := steptest.Every(5, "operation"); !slices.Equal([]int{s.From(1), s.From(2)}, []int{1, 2}) {
		t.Error("a run that covers everything skips steps")
	}
}

func TestInjector(t *testing.T) {
	in := steptest.Injector{Skips: func(op string, e steptest.Effect) bool { return op == "skipped" && e == steptest.Loses }}
	for _, c := range []struct {
		at     int
		effect steptest.Effect
		want   string
	}{
		{1, steptest.Fails, "[] skipped"},
		{2, steptest.Fails, "[skipped] a"},
		{3, steptest.Fails, "[skipped a] b"},
		{4, steptest.Fails, "[skipped a b] "},
		{1, steptest.Loses, "[skipped a] a"},
		{2, steptest.Loses, "[skipped a b] b"},
		{3, steptest.Loses, "[skipped a b] "},
		{2, steptest.Cancelled, "[skipped a] a"},
	} {
		in.Arm(c.at, c.effect)
		ctx := in.Context(t.Context())
		var done []string
		for _, op := range []string{"skipped", "a", "b"} {
			in.RunUncounted(func() { in.TakeStep("not counted") })
			if err := in.Do(op, func() error { done = append(done, op); return nil }); err != nil || ctx.Err() != nil {
				break
			}
		}
		hit, steps := in.Disarm()
		if got := fmt.Sprint(done, " ", hit); got != c.want {
			t.Errorf("step %d %s: %s, want %s", c.at, c.effect, got, c.want)
		}
		if slices.Contains(steps, "not counted") || ctx.Err() == nil || in.TakeStep("a") != "" {
			t.Errorf("steps %v, context %v", steps, ctx.Err())
		}
	}
}
