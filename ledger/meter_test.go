package ledger

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestPromise5NeverOvershoots makes a thousand concurrent calls over three gateways, which together need far more than four
// budgets have.
func TestPromise5NeverOvershoots(t *testing.T) {
	w := newWorld(t)
	guests := []caisson.Guest{w.guest("a"), w.guest("a"), w.guest("a")}
	for i := range guests {
		guests[i].Run, guests[i].Session = "run", "session"
	}
	const usd = 200 * caisson.Dollar / 1000
	w.budget("account/a", caisson.Limits{USD: limit(usd)}, "")
	w.budget("run/run", caisson.Limits{Tokens: limit[int64](190_000)}, "")
	w.budget("session/session", caisson.Limits{Calls: limit[int64](700)}, "month")
	w.budget("sandbox/"+string(guests[0].Sandbox), caisson.Limits{Calls: limit[int64](20)}, "day")
	gateways := []*gateway{w.gateway(), w.gateway(), w.gateway()}

	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { // the invariant of the store holds at all times
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := w.book.Ingest(t.Context()); err != nil {
				t.Error(err)
			}
			if b := w.look("account/a"); b.Used.USD+b.Held.USD > usd {
				t.Errorf("used %s and held %s of %s", b.Used.USD, b.Held.USD, usd)
			}
		}
	})
	var done, spent, first atomic.Int64
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			g := guests[i%len(guests)]
			for range 3 {
				d := demand(100, 50+rng.Int64N(1000))
				r, err := gateways[rng.IntN(len(gateways))].Reserve(t.Context(), call(g), d)
				if over, ok := errors.AsType[*caisson.OverBudget](err); ok {
					if over.Busy != (over.Retry > 0) || over.What == "" || over.Limit == "" || over.Left == "" {
						t.Errorf("%+v", over)
					}
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if r.Output() < d.MinOutput || r.Output() > d.MaxOutput {
					t.Errorf("%d tokens were granted of %d to %d", r.Output(), d.MinOutput, d.MaxOutput)
				}
				took := answer(100, rng.Int64N(r.Output()+1))
				if err := r.Settle(took); err != nil {
					t.Error(err)
				}
				done.Add(1)
				spent.Add(int64(took.Cost))
				if i%len(guests) == 0 {
					first.Add(1)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	watch.Wait()
	for _, g := range gateways {
		g.finish()
	}
	rows := w.rows()
	total := sum(rows)
	if int64(len(rows)) != done.Load() || int64(total.USD) != spent.Load() {
		t.Errorf("the ledger has %d calls for %s, made were %d for %s", len(rows), total.USD, done.Load(), caisson.USD(spent.Load()))
	}
	if total.USD > usd || total.Tokens > 190_000 || total.Calls > 700 || first.Load() > 20 {
		t.Errorf("spent %+v, and %d calls in the first sandbox", total, first.Load())
	}
	for _, key := range []string{"account/a", "run/run", "session/session"} {
		if b := w.look(key); b.Used != total || !b.Held.IsZero() {
			t.Errorf("%s: used %+v, held %+v; calls took %+v", key, b.Used, b.Held, total)
		}
	}
	// Calls were refused for a reason: one budget is used up, except for the leases of idle gateways.
	if total.USD < usd*8/10 && total.Tokens < 190_000*8/10 && total.Calls < 700*8/10 {
		t.Errorf("calls were refused, but took only %+v", total)
	}
}

// TestClamp checks that a budget that affords only a shorter answer grants that.
func TestClamp(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	gw := w.gateway()
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](1000)}, "")
	r := get(gw.Reserve(t.Context(), call(g), demand(100, 4000)))(t)
	if r.Output() != 900 {
		t.Errorf("%d tokens of output", r.Output())
	}
	d := demand(100, 4000)
	d.MinOutput = 500
	_, err := gw.Reserve(t.Context(), call(g), d)
	over, ok := errors.AsType[*caisson.OverBudget](err)
	if !ok || !over.Busy || over.Retry == 0 || over.What != "tokens" || over.Left != "0 tokens" || over.Limit != "1000 tokens" || over.Budget != "account a" {
		t.Fatalf("%+v, %v", over, err)
	}
	must(t, r.Settle(answer(100, 100)))
	if r = get(gw.Reserve(t.Context(), call(g), d))(t); r.Output() != 700 {
		t.Errorf("%d tokens of output", r.Output())
	}
	must(t, r.Settle(answer(100, 650)))
	_, err = gw.Reserve(t.Context(), call(g), d)
	if over, ok = errors.AsType[*caisson.OverBudget](err); !ok || over.Busy || over.Left != "50 tokens" {
		t.Errorf("%+v, %v", over, err)
	}
}

// TestClampOnlyWhatIsScarce checks that a low number of remaining calls does not shorten answers.
func TestClampOnlyWhatIsScarce(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	gw := w.gateway()
	w.clock.set(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)) // the time does not advance
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](1_000_000), Calls: limit[int64](4)}, "")
	for _, out := range []int64{10, 5000, 100, 20_000} {
		if r := get(gw.Reserve(t.Context(), call(g), demand(10, out)))(t); r.Output() != out {
			t.Errorf("%d tokens of output, want %d", r.Output(), out)
		}
	}
	_, err := gw.Reserve(t.Context(), call(g), demand(10, 10))
	if over, ok := errors.AsType[*caisson.OverBudget](err); !ok || over.What != "calls" {
		t.Error(err)
	}
}

func TestAffordable(t *testing.T) {
	for price := range caisson.USD(40) {
		for rest := range int64(60) {
			d := caisson.Demand{Fixed: caisson.Amount{USD: 3, Tokens: 2, Calls: 1}, OutputPrice: price * 70_001, MaxOutput: 90}
			free := caisson.Amount{USD: caisson.USD(rest), Tokens: 70, Calls: 1}
			want := int64(-1)
			for n := range d.MaxOutput + 1 {
				if free.Covers(d.MaxUsage(n)) {
					want = n
				}
			}
			if got := affordable(free, d); got != want {
				t.Fatalf("price %d, free %+v: %d tokens, want %d", d.OutputPrice, free, got, want)
			}
		}
	}
}

// TestDebt checks that the cost of a call above its maximum is deducted from the next leases.
func TestDebt(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	gw := w.gateway()
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](1000)}, "")
	r := get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t)
	must(t, r.Settle(answer(10, 790)))
	var total int64 = 800
	for {
		r, err := gw.Reserve(t.Context(), call(g), demand(10, 20))
		if err != nil {
			break
		}
		must(t, r.Settle(answer(10, r.Output())))
		total += 10 + r.Output()
	}
	gw.finish()
	if b := w.look("account/a"); b.Used.Tokens != total || total != 1000 || !b.Held.IsZero() {
		t.Errorf("used %d, held %d, made %d", b.Used.Tokens, b.Held.Tokens, total)
	}
}

// TestForget checks that changed limits apply to the next call.
func TestForget(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	gw := w.gateway()
	w.clock.set(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	before := get(gw.Reserve(t.Context(), call(g), demand(500, 500)))(t)
	w.clock.add(time.Second)
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](1000)}, "")
	gw.Invalidate("account/a")
	r := get(gw.Reserve(t.Context(), call(g), demand(100, 100)))(t)
	must(t, before.Settle(answer(500, 500))) // the call began without a budget, so it does not change the reserved amount
	must(t, w.book.Ingest(t.Context()))
	if b := w.look("account/a"); b.Used.Tokens != 1000 || b.Held.Tokens < 200 {
		t.Errorf("used %d, held %d", b.Used.Tokens, b.Held.Tokens)
	}
	must(t, r.Settle(answer(100, 50)))
	gw.Invalidate()
	must(t, w.book.Ingest(t.Context()))
	if b := w.look("account/a"); b.Used.Tokens != 1150 || b.Held.Tokens != 0 {
		t.Errorf("used %d, held %d", b.Used.Tokens, b.Held.Tokens)
	}
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](2000)}, "")
	gw.Invalidate("account/a")
	r = get(gw.Reserve(t.Context(), call(g), demand(100, 400)))(t)
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](100)}, "")
	gw.Invalidate("account/a")
	if _, err := gw.Reserve(t.Context(), call(g), demand(1, 1)); err == nil {
		t.Error("a call began after the limit was lowered")
	}
	must(t, r.Settle(answer(1, 1)))
	must(t, w.store.Ledger().DeleteBudget(t.Context(), caisson.In("a"), "account/a"))
	gw.Invalidate("account/a")
	must(t, get(gw.Reserve(t.Context(), call(g), demand(1000, 1000)))(t).Settle(answer(1, 1)))
	w.clock.add(time.Second)
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](2000)}, "")
	gw.Invalidate("account/a")
	must(t, get(gw.Reserve(t.Context(), call(g), demand(1, 1)))(t).Settle(answer(1, 1)))
	gw.finish()
	if b := w.look("account/a"); b.Used != sum(w.rows()) || b.Held.Tokens != 0 {
		t.Errorf("used %+v, calls took %+v", b.Used, sum(w.rows()))
	}
}

// TestIdle checks that unused leases are returned, and their memory is freed.
func TestIdle(t *testing.T) {
	w := newWorld(t)
	w.clock.set(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	g := w.guest("a")
	gw := w.gateway()
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](1_000_000)}, "")
	for range 3 {
		must(t, get(gw.Reserve(t.Context(), call(g), demand(100, 100)))(t).Settle(answer(10, 10)))
	}
	must(t, w.book.Ingest(t.Context()))
	if b := w.look("account/a"); b.Held.Tokens == 0 {
		t.Error("nothing is held between calls")
	}
	gw.segment.returnIdle(w.clock.Now().Add(-idleAfter))
	if len(gw.segment.budgets) != 2 {
		t.Errorf("%d budgets are known", len(gw.segment.budgets))
	}
	w.clock.add(idleAfter + time.Second)
	gw.segment.returnIdle(w.clock.Now().Add(-idleAfter))
	if b := w.look("account/a"); b.Held.Tokens != 0 || b.Used.Tokens != 60 {
		t.Errorf("used %d, held %d", b.Used.Tokens, b.Held.Tokens)
	}
	if len(gw.segment.budgets) != 0 {
		t.Errorf("%d budgets are remembered", len(gw.segment.budgets))
	}
	must(t, get(gw.Reserve(t.Context(), call(g), demand(100, 100)))(t).Settle(answer(10, 10)))
	r := get(gw.Reserve(t.Context(), call(g), demand(100, 100)))(t)
	must(t, gw.Close())
	must(t, gw.Close())
	_, err := gw.Reserve(t.Context(), call(g), demand(1, 1))
	wantKind(t, err, caisson.Unavailable)
	must(t, r.Settle(answer(10, 10)))
	wantKind(t, r.Settle(answer(10, 10)), caisson.Internal)
}

// TestPeriods checks that a lease ends with its day, and that a call is charged to the day on which it began.
func TestPeriods(t *testing.T) {
	w := newWorld(t)
	w.clock.set(time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC))
	g := w.guest("a")
	gw := w.gateway()
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](1000)}, "day")
	late := get(gw.Reserve(t.Context(), call(g), demand(400, 400)))(t)
	w.clock.add(time.Second)
	r := get(gw.Reserve(t.Context(), call(g), demand(500, 500)))(t) // a new day, with the whole budget
	_, err := gw.Reserve(t.Context(), call(g), demand(1, 1))
	if _, ok := errors.AsType[*caisson.OverBudget](err); !ok {
		t.Errorf("%v", err)
	}
	must(t, late.Settle(answer(400, 400)))
	w.clock.add(-time.Hour) // the clock is set back: this meter stays on the new day
	_, err = gw.Reserve(t.Context(), call(g), demand(1, 1))
	if _, ok := errors.AsType[*caisson.OverBudget](err); !ok {
		t.Errorf("%v", err)
	}
	w.clock.add(time.Hour)
	must(t, r.Settle(answer(100, 100)))
	r = get(gw.Reserve(t.Context(), call(g), demand(400, 400)))(t)
	must(t, r.Settle(answer(400, 400)))
	gw.finish()
	if b := w.look("account/a"); b.Used.Tokens != 1000 || b.Held.Tokens != 0 {
		t.Errorf("used %d, held %d on the new day", b.Used.Tokens, b.Held.Tokens)
	}
	w.clock.add(-time.Hour)
	if b := w.look("account/a"); b.Used.Tokens != 800 {
		t.Errorf("used %d on the old day", b.Used.Tokens)
	}
	w.clock.add(time.Hour)
	if b := w.budget("account/a", caisson.Limits{Tokens: limit[int64](1000)}, "month"); b.Used.Tokens != 1000 {
		t.Errorf("used %d in the new month", b.Used.Tokens)
	}
	if b := w.budget("account/a", caisson.Limits{Tokens: limit[int64](1000)}, ""); b.Used.Tokens != 1800 {
		t.Errorf("used %d ever", b.Used.Tokens)
	}
}

// fullDisk is a journal that accepts a limited number of bytes.
type fullDisk struct{ left int }

func (f *fullDisk) Write(p []byte) (int, error) {
	if len(p) > f.left {
		return f.left, errors.New("no space left on device")
	}
	f.left -= len(p)
	return len(p), nil
}

// lessorFunc is a lessor that grants every request.
type lessorFunc func(budget string, need, want caisson.Amount) (caisson.Lease, error)

func (f lessorFunc) Lease(_ context.Context, _, budget string, need, want caisson.Amount) (caisson.Lease, error) {
	return f(budget, need, want)
}

func (lessorFunc) Return(context.Context, string, caisson.Amount) error { return nil }

func unlimited(string, caisson.Amount, caisson.Amount) (caisson.Lease, error) {
	return caisson.Lease{Unlimited: true}, nil
}

// TestUnwritable checks that no call is made and no answer is completed if the ledger cannot be written.
func TestUnwritable(t *testing.T) {
	w := newWorld(t)
	m := get(NewMeter(Config{Segment: Segment{Journal: &fullDisk{400}, Lessor: lessorFunc(unlimited)}}))(t)
	r1 := get(m.Reserve(t.Context(), call(w.guest("a")), demand(1, 1)))(t)
	r2 := get(m.Reserve(t.Context(), call(w.guest("a")), demand(1, 1)))(t)
	_, err := m.Reserve(t.Context(), call(w.guest("a")), demand(1, 1))
	for err == nil {
		_, err = m.Reserve(t.Context(), call(w.guest("a")), demand(1, 1))
	}
	wantKind(t, err, caisson.Unavailable)
	wantKind(t, r1.Settle(answer(1, 1)), caisson.Unavailable)
	wantKind(t, r2.Settle(answer(1, 1)), caisson.Unavailable)
}

// TestRotate checks that a full journal is replaced while calls are in progress.
func TestRotate(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](1000)}, "")
	first, f, err := w.book.Begin(t.Context())
	must(t, err)
	finished := make(chan error, 1)
	next := func(ctx context.Context) (Segment, error) {
		id, f, err := w.book.Begin(ctx)
		t.Cleanup(func() { f.Close() })
		return Segment{Journal: f, Lessor: w.book.Lessor(id)}, err
	}
	m := get(NewMeter(Config{Segment: Segment{Journal: f, Lessor: w.book.Lessor(first), Done: func() {
		f.Close()
		finished <- w.book.Finish(context.Background(), first)
	}}, Next: next}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = m.Run(ctx) })
	defer run.Wait()
	defer cancel()
	old := get(m.Reserve(ctx, call(g), demand(100, 100)))(t)
	old.(*reservation).segment.journal.bytes.Store(rotateBytes + 1)
	must(t, get(m.Reserve(ctx, call(g), demand(100, 100)))(t).Settle(answer(50, 50)))
	poll.Until(t, time.Minute, func() bool { return m.pageNow() != old.(*reservation).segment })
	r := get(m.Reserve(ctx, call(g), demand(100, 100)))(t)
	select {
	case err := <-finished:
		t.Fatal("the journal was closed with a call under way", err)
	default:
	}
	must(t, old.Settle(answer(1, 1)))
	must(t, <-finished)
	must(t, r.Settle(answer(2, 2)))
	must(t, w.book.Ingest(t.Context()))
	if b := w.look("account/a"); b.Used.Tokens != 106 || len(w.rows()) != 3 {
		t.Errorf("used %d in %d calls", b.Used.Tokens, len(w.rows()))
	}
}

// TestRotateBroken checks that a journal that cannot be written is replaced, and that calls are refused until then.
func TestRotateBroken(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	ended := make(chan struct{})
	id, f, err := w.book.Begin(t.Context())
	must(t, err)
	defer f.Close()
	m := get(NewMeter(Config{
		Segment: Segment{Journal: &fullDisk{200}, Lessor: lessorFunc(unlimited), Done: func() { close(ended) }},
		Next:    func(context.Context) (Segment, error) { return Segment{Journal: f, Lessor: w.book.Lessor(id)}, nil },
	}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	defer run.Wait()
	defer cancel()
	run.Go(func() { _ = m.Run(ctx) })
	first := get(m.Reserve(ctx, call(g), demand(1, 1)))(t)
	broken := m.pageNow()
	wantKind(t, first.Settle(answer(1, 1)), caisson.Unavailable)
	poll.Until(t, time.Minute, func() bool { return m.pageNow() != broken })
	<-ended
	must(t, get(m.Reserve(ctx, call(g), demand(1, 1)))(t).Settle(answer(1, 1)))
	must(t, w.book.Ingest(ctx))
	if n := len(w.rows()); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func (m *Meter) pageNow() *segment {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.segment
}

// TestLessorFails checks that calls wait for the lessor, and are refused if it fails.
func TestLessorFails(t *testing.T) {
	w := newWorld(t)
	asked := make(chan struct{})
	m := get(NewMeter(Config{Segment: Segment{Journal: &fullDisk{1 << 20}, Lessor: lessorFunc(func(string, caisson.Amount, caisson.Amount) (caisson.Lease, error) {
		<-asked
		return caisson.Lease{}, errors.New("the socket is gone")
	})}}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Reserve(ctx, call(w.guest("a")), demand(1, 1)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(asked)
	_, err := m.Reserve(t.Context(), call(w.guest("a")), demand(1, 1))
	wantKind(t, err, caisson.Unavailable)
}

func TestBadDemands(t *testing.T) {
	w := newWorld(t)
	gw := w.gateway()
	g := w.guest("a")
	for name, c := range map[string]struct {
		call   caisson.Call
		demand caisson.Demand
	}{
		"no guest":     {caisson.Call{}, demand(1, 1)},
		"nowhere":      {call(caisson.Guest{Account: "a"}), demand(1, 1)},
		"no account":   {call(caisson.Guest{Sandbox: g.Sandbox}), demand(1, 1)},
		"no call":      {call(g), caisson.Demand{MaxOutput: 1}},
		"negative":     {call(g), demand(-1, 1)},
		"upside down":  {call(g), caisson.Demand{Fixed: caisson.Amount{Calls: 1}, MinOutput: 2, MaxOutput: 1}},
		"without end":  {call(g), demand(1, 1<<62)},
		"not an id":    {caisson.Call{ID: "x", Guest: g}, demand(1, 1)},
		"a long story": {call(caisson.Guest{Sandbox: g.Sandbox, Account: "a", Run: string(make([]byte, 200))}), demand(1, 1)},
	} {
		if _, err := gw.Reserve(t.Context(), c.call, c.demand); err == nil {
			t.Errorf("%s: a call began", name)
		}
	}
	gw.finish()
	if n := len(w.rows()); n != 0 {
		t.Errorf("%d calls are in the ledger", n)
	}
}

func BenchmarkMeter(b *testing.B) {
	w := newWorld(b)
	g := w.guest("a")
	g.Session, g.Run = "s", "r"
	for _, key := range []string{"account/a", "run/r", "session/s", "sandbox/" + string(g.Sandbox)} {
		w.budget(key, caisson.Limits{Tokens: limit[int64](1 << 40)}, "")
	}
	gw := w.gateway()
	c, d, a := call(g), demand(100, 100), answer(50, 50)
	b.Run("serial", func(b *testing.B) {
		for b.Loop() {
			r, err := gw.Reserve(b.Context(), c, d)
			if err != nil {
				b.Fatal(err)
			}
			must(b, r.Settle(a))
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				r, err := gw.Reserve(b.Context(), c, d)
				if err != nil {
					b.Fatal(err)
				}
				must(b, r.Settle(a))
			}
		})
	})
}

// BenchmarkHotPath measures the cost of a call on the meter's side: both records, no lease.
func BenchmarkHotPath(b *testing.B) {
	w := newWorld(b)
	_, f, err := w.book.Begin(b.Context())
	must(b, err)
	defer f.Close()
	m := get(NewMeter(Config{Segment: Segment{Journal: f, Lessor: lessorFunc(func(_ string, _, want caisson.Amount) (caisson.Lease, error) {
		return caisson.Lease{Granted: want}, nil
	})}}))(b)
	g := w.guest("a")
	g.Session, g.Run = "s", "r"
	c, d, a := call(g), demand(100, 100), answer(50, 50)
	b.ReportAllocs()
	for b.Loop() {
		r, err := m.Reserve(b.Context(), c, d)
		if err != nil {
			b.Fatal(err)
		}
		must(b, r.Settle(a))
	}
}

// TestClockCorrected checks that correcting a clock that was days ahead loses no call and no money.
func TestClockCorrected(t *testing.T) {
	for _, period := range []string{"", "day"} {
		t.Run(period, func(t *testing.T) {
			w := newWorld(t)
			right := time.Date(2026, 5, 10, 12, 0, 0, 0, time.UTC)
			w.clock.set(right.Add(48 * time.Hour))
			g := w.guest("a")
			w.budget("account/a", caisson.Limits{Tokens: limit[int64](1000)}, period)
			gw := w.gateway()
			under := get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t)
			must(t, get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t).Settle(answer(10, 5)))
			w.clock.set(right)
			must(t, w.book.Ingest(t.Context())) // records written with the wrong clock
			must(t, under.Settle(answer(10, 5)))
			for range 8 {
				must(t, get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t).Settle(answer(10, 90)))
			}
			must(t, w.book.Ingest(t.Context()))
			if period == "" {
				if b := w.look("account/a"); b.Used.Tokens != 830 || b.Used.Tokens+b.Held.Tokens > 1000 {
					t.Errorf("used %d, held %d", b.Used.Tokens, b.Held.Tokens)
				}
			}
			gw.finish()
			rows := w.rows()
			if len(rows) != 10 {
				t.Errorf("%d rows, want 10:\n%s", len(rows), w.log.String())
			}
			used := int64(0)
			for _, row := range rows {
				// One or both of the first calls were read before the clock was corrected, because prefetching a lease ingests
				// the journal.
				if row.At.Equal(right) || period == "" {
					used += row.Amount().Tokens
				}
			}
			if b := w.look("account/a"); b.Used.Tokens != used || used < 800 || b.Held.Tokens != 0 {
				t.Errorf("used %d of %d, held %d", b.Used.Tokens, used, b.Held.Tokens)
			}
		})
	}
}
