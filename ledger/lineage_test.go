package ledger

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// tree is a run, its sub-run, and the sub-run's sub-run, each in a separate sandbox.
func (w *world) tree(account string) []caisson.Guest {
	var all []caisson.Guest
	lineage := ""
	for range 3 {
		g := w.guest(account)
		g.Run, g.Lineage, g.Trace = string(caisson.NewID(caisson.RunPrefix)), lineage, strings.Repeat("0f", 16)
		lineage = strings.TrimSpace(lineage + " " + g.Run)
		all = append(all, g)
	}
	return all
}

// TestPromise5SubRuns runs calls on three levels over two gateways, which together need far more than any budget has. Each
// level's budget is also charged for the levels below it, is never exceeded, and is charged for a call only once.
func TestPromise5SubRuns(t *testing.T) {
	for name, limits := range map[string][3]int64{
		"top is least": {40_000, 60_000, 80_000}, "bottom is least": {90_000, 40_000, 10_000}, "all alike": {50_000, 50_000, 50_000},
	} {
		t.Run(name, func(t *testing.T) { testSubRuns(t, limits) })
	}
}

func testSubRuns(t *testing.T, limits [3]int64) {
	w := newWorld(t)
	tree := w.tree("a")
	for i, g := range tree {
		w.budget("run/"+g.Run, caisson.Limits{Tokens: limit(limits[i])}, "")
	}
	w.budget("account/a", caisson.Limits{Calls: limit[int64](1_000_000)}, "")
	gateways := []*gateway{w.gateway(), w.gateway()}
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := w.book.Ingest(t.Context()); err != nil {
				t.Error(err)
			}
			for i, g := range tree {
				if b := w.look("run/" + g.Run); b.Used.Tokens+b.Held.Tokens > limits[i] {
					t.Errorf("level %d: used %d and held %d of %d", i, b.Used.Tokens, b.Held.Tokens, limits[i])
				}
			}
		}
	})
	var spent [3]atomic.Int64 // by calls of the run on that level
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			level := i % 3
			for range 3 {
				r, err := gateways[rng.IntN(len(gateways))].Reserve(t.Context(), call(tree[level]), demand(50, 10+rng.Int64N(400)))
				if _, ok := errors.AsType[*caisson.OverBudget](err); ok {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				took := answer(50, rng.Int64N(r.Output()+1))
				if err := r.Settle(took); err != nil {
					t.Error(err)
				}
				spent[level].Add(took.Tokens.Total())
			}
		})
	}
	wg.Wait()
	close(stop)
	watch.Wait()
	for _, g := range gateways {
		g.finish()
	}
	full := false
	for i, g := range tree {
		var want int64 // of this run and its sub-runs
		for j := i; j < 3; j++ {
			want += spent[j].Load()
		}
		b := w.look("run/" + g.Run)
		if b.Used.Tokens != want || b.Used.Tokens > limits[i] || !b.Held.IsZero() {
			t.Errorf("level %d: used %d, held %d; calls took %d of %d", i, b.Used.Tokens, b.Held.Tokens, want, limits[i])
		}
		full = full || want > limits[i]*8/10
		rows := get(w.store.Ledger().Usage(t.Context(), caisson.In("a"), caisson.UsageQuery{Under: g.Run}))(t)
		if len(rows) != 1 || rows[0].Tokens.Total() != want {
			t.Errorf("level %d: calls took %d, the ledger says %+v", i, want, rows)
		}
	}
	if !full {
		t.Error("calls were refused, but no budget is nearly used up")
	}
	if b := w.look("account/a"); b.Used.Tokens != sum(w.rows()).Tokens {
		t.Errorf("the account: %+v", b.Used)
	}
	for _, row := range w.rows() {
		i := strings.Count(row.Lineage+" ", " ")
		if row.Trace != tree[0].Trace || row.Lineage == "" && row.Run != tree[0].Run || row.Lineage != "" && row.Run != tree[i].Run {
			t.Fatalf("%+v", row.Guest)
		}
	}
}

// TestSubRunsKilled checks that calls of a sub-run that were in progress when its gateway was killed are charged to every level
// in full.
func TestSubRunsKilled(t *testing.T) {
	w := newWorld(t)
	tree := w.tree("a")
	for _, g := range tree {
		w.budget("run/"+g.Run, caisson.Limits{Tokens: limit[int64](1000)}, "")
	}
	gw := w.gateway()
	must(t, get(gw.Reserve(t.Context(), call(tree[1]), demand(10, 90)))(t).Settle(answer(10, 5)))
	get(gw.Reserve(t.Context(), call(tree[2]), demand(10, 90)))(t)
	gw.die()
	w.restart()
	for i, want := range []int64{115, 115, 100} {
		if b := w.look("run/" + tree[i].Run); b.Used.Tokens != want || !b.Held.IsZero() {
			t.Errorf("level %d: used %d, held %d", i, b.Used.Tokens, b.Held.Tokens)
		}
	}
}

// TestBudgetOfSubRuns checks that a budget that is set later for a run includes the cost of its sub-runs, once per call.
func TestBudgetOfSubRuns(t *testing.T) {
	w := newWorld(t)
	tree, other := w.tree("a"), w.tree("a")
	gw := w.gateway()
	for _, g := range append(tree, other[2]) {
		for range 2 {
			must(t, get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t).Settle(answer(10, 5)))
		}
	}
	must(t, w.book.Ingest(t.Context()))
	for i, want := range []int64{90, 60, 30} {
		if b := w.budget("run/"+tree[i].Run, caisson.Limits{Tokens: limit[int64](1000)}, ""); b.Used.Tokens != want {
			t.Errorf("level %d: used %d, want %d", i, b.Used.Tokens, want)
		}
	}
}

// TestLineageBounds checks that an invalid lineage is neither recorded nor read.
func TestLineageBounds(t *testing.T) {
	id := func(c string) string { return "rn-" + strings.Repeat(c, 16) }
	longest := ""
	for i := range caisson.MaxLineage {
		longest = strings.TrimSpace(longest + " " + id("abcdefghijk"[i:i+1]))
	}
	const trace = "0123456789abcdef0123456789abcdef"
	w := newWorld(t)
	for _, c := range []struct {
		run, lineage, trace string
		ok                  bool
	}{
		{id("z"), "", "", true},
		{"r", id("a"), trace, true},
		{id("z"), longest, trace, true},
		{id("z"), longest + " " + id("y"), "", false},
		{id("z"), id("a") + " " + id("a"), "", false},
		{id("z"), id("z"), "", false},
		{id("z"), id("a") + "  " + id("b"), "", false},
		{id("z"), " " + id("a"), "", false},
		{id("z"), id("a") + " ", "", false},
		{id("z"), id("a") + "\t" + id("b"), "", false},
		{id("z"), "sb-aaaaaaaaaaaaaaaa", "", false},
		{id("z"), "rn-AAAAAAAAAAAAAAAA", "", false},
		{"", id("a"), "", false},
		{"sandbox", id("a"), "", false},
		{id("z"), "", trace[1:], false},
		{id("z"), "", strings.ToUpper(trace), false},
		{id("z"), "", trace[1:] + "\n", false},
	} {
		guest := w.guest("a")
		if c.run != "sandbox" {
			guest.Run = c.run
		}
		guest.Lineage, guest.Trace = c.lineage, c.trace
		gw := w.gateway()
		r, err := gw.Reserve(t.Context(), call(guest), demand(10, 90))
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil {
			must(t, r.Settle(answer(10, 5)))
		} else {
			wantKind(t, err, caisson.Internal)
			row := call(guest)
			row.ID, row.At = caisson.NewID(caisson.CallPrefix), w.clock.Now()
			gw.write(appendCall(appendCall(nil, kindBegin, &row), kindSettle, &row))
		}
		gw.finish()
		rows := slices.DeleteFunc(w.rows(), func(row caisson.Call) bool { return row.Sandbox != guest.Sandbox })
		if c.ok != (len(rows) == 1) || c.ok && rows[0].Guest != guest {
			t.Errorf("%+v: rows %+v", c, rows)
		}
		if refused := slices.ContainsFunc(strings.Split(w.log.String(), "\n"), func(line string) bool {
			return strings.Contains(line, "a journal is damaged") && strings.Contains(line, string(gw.journal))
		}); refused == c.ok {
			t.Errorf("%+v: %s", c, w.log.String())
		}
	}
}

// TestOthersLineage checks that a guest that claims to be a sub-run of another account's run is not charged to its budget and not
// visible there.
func TestOthersLineage(t *testing.T) {
	w := newWorld(t)
	mallory, alice := w.tree("m"), w.tree("a")
	w.budget("run/"+alice[0].Run, caisson.Limits{Tokens: limit[int64](100)}, "")
	mallory[1].Lineage = alice[0].Run
	gw := w.gateway()
	for range 3 {
		costing(t, gw, mallory[1], 1) // at most 100 each
	}
	costing(t, gw, alice[1], 1)
	must(t, w.book.Ingest(t.Context()))
	one := caisson.Amount{Tokens: 1}
	held := w.look("run/" + alice[0].Run).Held
	if l := get(w.book.Lessor(gw.journal).Lease(t.Context(), "m", "run/"+alice[0].Run, one, one))(t); !l.Unlimited || !l.Granted.IsZero() {
		t.Errorf("an account was given of another's run: %+v", l)
	}
	if now := w.look("run/" + alice[0].Run).Held; now != held {
		t.Errorf("held %+v, before %+v", now, held)
	}
	gw.finish()
	if b := w.look("run/" + alice[0].Run); b.Used.Tokens != 15 || b.Held.Tokens != 0 {
		t.Errorf("used %d, held %d", b.Used.Tokens, b.Held.Tokens)
	}
	rows := get(w.store.Ledger().Usage(t.Context(), caisson.In("a"), caisson.UsageQuery{Under: alice[0].Run}))(t)
	if len(rows) != 1 || rows[0].Calls != 1 {
		t.Errorf("%+v", rows)
	}
	must(t, w.store.Ledger().DeleteBudget(t.Context(), caisson.In("a"), "run/"+alice[0].Run))
	w.budget("run/"+alice[0].Run, caisson.Limits{}, "")
	if b := w.look("run/" + alice[0].Run); b.Used.Tokens != 15 {
		t.Errorf("counted anew: %d", b.Used.Tokens)
	}
}

// TestOldJournal checks that a journal of a build without lineages, which was killed while writing it, is read.
func TestOldJournal(t *testing.T) {
	h := appendHeader(nil, header{"jr-aaaaaaaaaaaaaaaa", "boot"})
	for v, ok := range map[byte]bool{0: false, 1: true, 2: true, 3: true, 4: false, 'x': false} {
		b := bytes.Clone(h)
		b[frameBytes+1] = v
		if _, _, err := decodeRecord(appendFrame(b, 0)); (err == nil) != ok {
			t.Errorf("version %d: %v", v, err)
		}
	}
	const old = "7700000005da3f00531363612d61616161616161616161616161616161aab4aab08bd0b7ab311373622d616161616161616161616161616161610161" +
		"0172040173056167656e74077573657220c3bc0170016d036d2d31086d657373616765730790030761626f72746564020406080a0a63686174636d70" +
		"6c2d319a010c0e"
	want := sampleCall(caisson.Guest{Sandbox: "sb-aaaaaaaaaaaaaaaa", Account: "a", Run: "r"})
	want.ID = "ca-aaaaaaaaaaaaaaaa"
	r, _, err := decodeRecord(get(hex.DecodeString(old))(t))
	if err != nil || !cmp.Equal(r.call, want) {
		t.Errorf("%v\n%s", err, cmp.Diff(want, r.call))
	}
}
