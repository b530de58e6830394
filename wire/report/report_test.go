package report

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-dev/caisson"
)

func denied(name string) caisson.Decision {
	return caisson.Decision{At: time.Now(), Kind: "name", Rule: -1, Reason: "no rule allows it", Name: name, Count: 1}
}

func flow(addr string, out, in int64) caisson.Decision {
	return caisson.Decision{At: time.Now(), Kind: "flow", Allowed: true, Address: addr, Protocol: "tcp", Count: 1, BytesOut: out, BytesIn: in}
}

// handed records the batches that were passed on, with their times.
type handed struct {
	mu      sync.Mutex
	start   time.Time
	batches [][]caisson.Decision
	after   []time.Duration
}

func (h *handed) take(ds []caisson.Decision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.batches = append(h.batches, slices.Clone(ds))
	h.after = append(h.after, time.Since(h.start))
}

// got returns the batches and their times.
func (h *handed) got() ([][]caisson.Decision, []time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.batches), slices.Clone(h.after)
}

func (h *handed) all() []caisson.Decision {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Concat(h.batches...)
}

// run calls f with a Recorder in a bubble with fake time, and checks that no timer or goroutine is left.
func run(t *testing.T, f func(r *Recorder, h *handed)) {
	synctest.Test(t, func(t *testing.T) {
		h := &handed{start: time.Now()}
		r, err := New(Config{Deliver: h.take})
		if err != nil {
			t.Fatal(err)
		}
		f(r, h)
		r.Close()
	})
}

// sums returns the totals of the decisions that were passed on.
func sums(ds []caisson.Decision) (count, out, in int64) {
	for _, d := range ds {
		count += d.Count
		out += d.BytesOut
		in += d.BytesIn
	}
	return count, out, in
}

func TestFirstAtOnceThenSums(t *testing.T) {
	run(t, func(r *Recorder, h *handed) {
		for range 3 { // a burst is one batch
			r.Report(denied("a.example"))
		}
		r.Report(denied("b.example"))
		time.Sleep(batchDelay)
		synctest.Wait()
		batches, after := h.got()
		if len(batches) != 1 || len(batches[0]) != 2 || batches[0][0].Count != 3 || batches[0][0].Name != "a.example" || batches[0][1].Count != 1 {
			t.Fatalf("after %v: %+v", after, batches)
		}
		time.Sleep(time.Second)
		second := time.Now()
		for range 1000 {
			r.Report(denied("a.example"))
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if batches, after = h.got(); len(batches) != 1 {
			t.Fatalf("equal decisions were handed on before the end of the window: %v", after)
		}
		time.Sleep(window)
		synctest.Wait()
		if batches, after = h.got(); len(batches) != 2 || after[1] != window || len(batches[1]) != 1 {
			t.Fatalf("%v: %+v", after, batches)
		}
		if d := batches[1][0]; d.Count != 1000 || !d.At.Equal(second) {
			t.Errorf("the sum is %+v, want 1000 since %v", d, second)
		}
		time.Sleep(3 * window)
		synctest.Wait()
		if batches, _ = h.got(); len(batches) != 2 {
			t.Errorf("handed on without a change: %+v", batches[2:])
		}
		r.Report(denied("a.example")) // counts as new again
		time.Sleep(batchDelay)
		synctest.Wait()
		if batches, after = h.got(); len(batches) != 3 {
			t.Errorf("after a silence: %v", after)
		}
	})
}

// TestSteadyOnes checks that a continuously repeated decision is one row in 10 seconds.
func TestSteadyOnes(t *testing.T) {
	run(t, func(r *Recorder, h *handed) {
		for range 100 {
			r.Report(flow("192.0.2.1:443", 10, 20))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		got := h.all()
		if count, out, in := sums(got); len(got) != 11 || count != 100 || out != 1000 || in != 2000 {
			t.Errorf("%d rows, sums %d %d %d", len(got), count, out, in)
		}
	})
}

// TestLongFlood checks that a continuous flood causes few rows, and that after an idle period all decisions are distinguished
// again.
func TestLongFlood(t *testing.T) {
	for name, of := range map[string]func(window, i int) string{
		"the same": func(_, i int) string { return fmt.Sprintf("n%d.example", i) },
		"others":   func(w, i int) string { return fmt.Sprintf("n%d.w%d.example", i, w) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *Recorder, h *handed) {
				const windows = 100
				for w := range windows {
					for range 2 {
						for i := range maxDistinct {
							r.Report(denied(of(w, i)))
						}
						time.Sleep(window / 2)
					}
				}
				time.Sleep(window)
				synctest.Wait()
				got := h.all()
				// A decision may be a row when it is new, and another row at the end of its window.
				if most := 2*maxDistinct + windows*(2*steadyDistinct+1); len(got) > most {
					t.Errorf("%d rows, want at most %d", len(got), most)
				}
				if count, _, _ := sums(got); count != 2*windows*maxDistinct {
					t.Errorf("the sum is %d", count)
				}
				time.Sleep(maxDistinct / steadyDistinct * window)
				before := len(h.all())
				for i := range maxDistinct {
					r.Report(denied(of(windows, i)))
				}
				time.Sleep(batchDelay)
				synctest.Wait()
				if n := len(h.all()) - before; n != maxDistinct {
					t.Errorf("after a rest %d rows, want %d", n, maxDistinct)
				}
			})
		})
	}
}

func TestDifferencesThatCount(t *testing.T) {
	run(t, func(r *Recorder, h *handed) {
		base := flow("192.0.2.1:443", 1, 1)
		for _, change := range []func(*caisson.Decision){
			func(*caisson.Decision) {},
			func(d *caisson.Decision) { d.At = d.At.Add(time.Second) }, // equal
			func(d *caisson.Decision) { d.Count, d.BytesIn = 7, 9 },    // equal
			func(d *caisson.Decision) { d.Address = "192.0.2.1:80" },
			func(d *caisson.Decision) { d.Allowed = false },
			func(d *caisson.Decision) { d.Rule = 3 },
			func(d *caisson.Decision) { d.Name = "x" },
			func(d *caisson.Decision) { d.Protocol = "udp" },
			func(d *caisson.Decision) { d.Kind = "request" },
			func(d *caisson.Decision) { d.Reason = "because" },
		} {
			d := base
			change(&d)
			r.Report(d)
		}
		time.Sleep(batchDelay)
		synctest.Wait()
		if got := h.all(); len(got) != 8 || got[0].Count != 9 {
			t.Errorf("%d: %+v", len(got), got)
		}
	})
}

// TestFlood checks that few of many distinct decisions are listed, and that the totals are correct.
func TestFlood(t *testing.T) {
	run(t, func(r *Recorder, h *handed) {
		const n = 10_000
		for i := range n {
			r.Report(denied(fmt.Sprintf("n%d.example", i)))
			d := flow(fmt.Sprintf("192.0.2.1:%d", i), 2, 3)
			r.Report(d)
		}
		time.Sleep(window)
		synctest.Wait()
		got := h.all()
		count, out, in := sums(got)
		if len(got) != maxDistinct+2 || count != 2*n || out != 2*n || in != 3*n {
			t.Errorf("%d rows, sums %d %d %d", len(got), count, out, in)
		}
		others := 0
		for _, d := range got {
			if strings.HasPrefix(d.Reason, "others") {
				others++
				if d.Count != n-maxDistinct/2 || d.Rule != -1 || d.Name != "" || d.Address != "" {
					t.Errorf("others: %+v", d)
				}
			}
		}
		if others != 2 {
			t.Errorf("%d rows of others", others)
		}
		if c := r.Counters(); c != (Counters{Allowed: n, Denied: n, BytesOut: 2 * n, BytesIn: 3 * n}) {
			t.Errorf("counters %+v", c)
		}
		if len(r.sums) > maxDistinct || r.recent.Len() != maxRecent {
			t.Errorf("%d sums, %d recent", len(r.sums), r.recent.Len())
		}
		r.Report(denied("after.example")) // a new window has room, though the table is full
		time.Sleep(batchDelay)
		synctest.Wait()
		if got := h.all(); got[len(got)-1].Name != "after.example" {
			t.Errorf("after the flood: %+v", got[len(got)-1])
		}
	})
}

// TestBytesOnly checks that the bytes of a connection are added when it ends, without counting it again.
func TestBytesOnly(t *testing.T) {
	run(t, func(r *Recorder, h *handed) {
		r.Report(flow("192.0.2.1:443", 0, 0))
		d := flow("192.0.2.1:443", 100, 200)
		d.Count = 0
		r.Report(d)
		r.Report(caisson.Decision{Kind: "name", Allowed: true}) // no count: counts as one, at the current time
		time.Sleep(batchDelay)
		synctest.Wait()
		got := h.all()
		if len(got) != 2 || got[0].Count != 1 || got[0].BytesIn != 200 || got[1].Count != 1 || got[1].At.IsZero() {
			t.Errorf("%+v", got)
		}
		if c := r.Counters(); c.Allowed != 2 {
			t.Errorf("%+v", c)
		}
	})
}

// TestSlowTaker checks that Report never waits for Deliver, and that no decision is lost.
func TestSlowTaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var got []caisson.Decision
		r, err := New(Config{Deliver: func(ds []caisson.Decision) { <-release; got = append(got, ds...) }})
		if err != nil {
			t.Fatal(err)
		}
		r.Report(denied("a.example"))
		time.Sleep(10 * window)
		for i := range 1000 {
			r.Report(denied(fmt.Sprintf("n%d.example", i%100)))
		}
		close(release)
		r.Close()
		if count, _, _ := sums(got); count != 1001 || len(got) > maxDistinct+2 {
			t.Errorf("%d rows with %d decisions", len(got), count)
		}
	})
}

// TestClose checks that the remaining sums are passed on once, and nothing afterwards.
func TestClose(t *testing.T) {
	run(t, func(r *Recorder, h *handed) {
		r.Report(denied("a.example"))
		r.Close()
		if got := h.all(); len(got) != 1 || got[0].Count != 1 {
			t.Errorf("at the end: %+v", got)
		}
		r.Report(denied("a.example"))
		r.Report(denied("b.example"))
		time.Sleep(3 * window)
		r.Close()
		if got := h.all(); len(got) != 1 {
			t.Errorf("after the end: %+v", got)
		}
		if c := r.Counters(); c.Denied != 3 || len(r.Recent()) != 2 {
			t.Errorf("%+v, %d recent", c, len(r.Recent()))
		}
	})
}

// TestIdle checks that an idle wire uses no timers.
func TestIdle(t *testing.T) {
	run(t, func(r *Recorder, h *handed) {
		r.Report(denied("a.example"))
		time.Sleep(3 * window)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.batchTimer != nil || r.windowTimer != nil || len(r.sums) != 0 {
			t.Errorf("%v %v %d", r.batchTimer, r.windowTimer, len(r.sums))
		}
	})
}

func TestRecent(t *testing.T) {
	r, err := New(Config{Deliver: func([]caisson.Decision) {}})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1000, 0)
	d := denied("again.example")
	d.At = at
	r.Report(d)
	for i := range 60 {
		r.Report(denied(fmt.Sprintf("n%d.example", i)))
		r.Report(flow("192.0.2.1:443", 1, 1))
	}
	r.Report(denied("again.example"))
	for i := range 10 {
		r.Report(denied(fmt.Sprintf("m%d.example", i)))
	}
	got := r.Recent()
	if len(got) != maxRecent || got[0].Name != "m9.example" {
		t.Fatalf("%d, first %+v", len(got), got[0])
	}
	if g := got[10]; g.Name != "again.example" || g.Count != 2 || !g.At.Equal(at) {
		t.Errorf("%+v", g)
	}
}

// TestLongText checks that long text from a guest is truncated without splitting a character.
func TestLongText(t *testing.T) {
	r, err := New(Config{Deliver: func([]caisson.Decision) {}})
	if err != nil {
		t.Fatal(err)
	}
	r.Report(denied("x" + strings.Repeat("ä", 10_000)))
	if got := r.Recent()[0].Name; len(got) != maxText-1 || !strings.HasSuffix(got, "ä") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// TestConcurrent runs concurrent calls for the race detector.
func TestConcurrent(t *testing.T) {
	var mu sync.Mutex
	var count int64
	r, err := New(Config{Deliver: func(ds []caisson.Decision) {
		mu.Lock()
		defer mu.Unlock()
		n, _, _ := sums(ds)
		count += n
	}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 1000 {
				r.Report(denied(fmt.Sprintf("n%d.example", (i+j)%100)))
				if j%100 == 0 {
					r.Recent()
					r.Counters()
				}
			}
		})
	}
	wg.Wait()
	r.Close()
	if count != 8000 {
		t.Errorf("%d of 8000", count)
	}
}

func TestNewNeedsATaker(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("New succeeds")
	}
}

func benchmark(b *testing.B, ds ...caisson.Decision) {
	r, err := New(Config{Deliver: func([]caisson.Decision) {}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			r.Report(ds[i%len(ds)])
		}
	})
}

func BenchmarkReportAllowed(b *testing.B) {
	d := flow("192.0.2.1:443", 1, 1)
	d.Reason, d.Name = "rule 3 allows *.example.com", "registry.npm.example.com"
	benchmark(b, d)
}

func BenchmarkReportDenied(b *testing.B) { benchmark(b, denied("registry.npm.example.com")) }

func BenchmarkReportFlood(b *testing.B) {
	var ds []caisson.Decision
	for i := range 10_000 {
		ds = append(ds, denied(fmt.Sprintf("n%d.example", i)))
	}
	benchmark(b, ds...)
}
