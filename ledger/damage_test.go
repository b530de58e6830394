package ledger

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// picky is a store that rejects some calls, and all records of some journals.
type picky struct {
	caisson.LedgerStore
	call    caisson.USD // rejects calls with this cost
	journal caisson.ID
}

func (p *picky) Ingest(ctx context.Context, journal caisson.ID, from, to int64, calls []caisson.Call) error {
	if journal == p.journal {
		return caisson.Errorf(caisson.Internal, "this journal cannot be stored")
	}
	for i := range calls {
		if calls[i].Cost == p.call {
			return caisson.Errorf(caisson.Invalid, "a call cannot be stored")
		}
	}
	return p.LedgerStore.Ingest(ctx, journal, from, to, calls)
}

// costing makes a call with the given cost.
func costing(t *testing.T, g *gateway, guest caisson.Guest, cost caisson.USD) {
	t.Helper()
	a := answer(10, 5)
	a.Cost = cost
	must(t, get(g.Reserve(t.Context(), call(guest), demand(10, 90)))(t).Settle(a))
}

// TestPoisonedRow checks that a row that the store rejects is left out, without effect on other rows and other gateways.
func TestPoisonedRow(t *testing.T) {
	w := newWorld(t)
	mallory, alice := w.guest("m"), w.guest("a")
	w.budget("account/m", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	p := &picky{LedgerStore: w.store.Ledger(), call: 666}
	w.book.store = p
	bad, good := w.gateway(), w.gateway()
	for _, cost := range []caisson.USD{1, 666, 3} {
		costing(t, bad, mallory, cost)
	}
	must(t, w.book.Ingest(t.Context()))
	costing(t, good, alice, 7)
	must(t, w.book.Ingest(t.Context()))
	if rows := w.rows(); len(rows) != 3 || rows[0].Cost != 1 || rows[1].Cost != 3 || rows[2].Cost != 7 {
		t.Errorf("%+v", rows)
	}
	if !strings.Contains(w.log.String(), "a call cannot be stored and is dropped") {
		t.Error(w.log.String())
	}
	before := w.look("account/m")
	bad.finish()
	if b := w.look("account/m"); b.Used.Tokens != before.Used.Tokens+before.Held.Tokens || b.Held.Tokens != 0 {
		t.Errorf("before %+v %+v, after %+v %+v", before.Used, before.Held, b.Used, b.Held)
	}
	// The same for a call that was never settled.
	p.call = 100_000 // the maximum cost of the demand
	lost := w.gateway()
	get(lost.Reserve(t.Context(), call(mallory), demand(10, 90)))(t)
	lost.finish()
}

// TestJournalOfAnother checks that the holder of a journal that cannot be stored gets no leases, and that others do.
func TestJournalOfAnother(t *testing.T) {
	w := newWorld(t)
	mallory, alice := w.guest("m"), w.guest("a")
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	p := &picky{LedgerStore: w.store.Ledger(), call: -1}
	w.book.store = p
	bad, good := w.gateway(), w.gateway()
	costing(t, bad, mallory, 1)
	p.journal = bad.journal
	costing(t, bad, mallory, 1)
	costing(t, good, alice, 1)
	_, err := w.book.Lessor(bad.journal).Lease(t.Context(), "a", "account/a", caisson.Amount{}, caisson.Amount{Tokens: 1})
	wantKind(t, err, caisson.Internal)
}

// TestRecoverSetsAside checks that no journal prevents the engine from starting.
func TestRecoverSetsAside(t *testing.T) {
	w := newWorld(t)
	guest := w.guest("a")
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	bad, good := w.gateway(), w.gateway()
	costing(t, good, guest, 2)
	get(bad.Reserve(t.Context(), call(guest), demand(10, 90)))(t)
	before := w.look("account/a")
	if before.Held.Tokens < 100 {
		t.Fatalf("held %+v", before.Held)
	}
	bad.die()
	good.die()
	w.close()
	w.open()
	w.book.store = &picky{LedgerStore: w.store.Ledger(), journal: bad.journal, call: -1}
	must(t, w.book.Recover(t.Context()))
	if rows := w.rows(); len(rows) != 1 || rows[0].Cost != 2 {
		t.Errorf("%+v", rows)
	}
	if b := w.look("account/a"); b.Held.Tokens != 0 || b.Used.Tokens < 100+15 {
		t.Errorf("used %+v, held %+v", b.Used, b.Held)
	}
	name := filepath.Join(w.path, journalPath(bad.journal))
	if _, err := os.Stat(name + damagedExt); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(name); !os.IsNotExist(err) {
		t.Error(err)
	}
	w.restart()
	if n := strings.Count(w.log.String(), "is set aside"); n != 1 {
		t.Errorf("%d lines:\n%s", n, w.log.String())
	}
	// A directory in place of a journal.
	must(t, os.Mkdir(filepath.Join(w.path, journalPath("jr-bbbbbbbbbbbbbbbb")), 0o700))
	w.restart()
}

// TestRecoverStillWritten checks that a journal that a process still writes to does not prevent the start, and that it is read.
func TestRecoverStillWritten(t *testing.T) {
	w := newWorld(t)
	guest := w.guest("a")
	gw := w.gateway()
	costing(t, gw, guest, 4)
	w.close()
	w.open()
	must(t, w.book.Recover(t.Context()))
	costing(t, gw, guest, 5)
	must(t, w.book.Ingest(t.Context()))
	if rows := w.rows(); len(rows) != 2 || rows[1].Cost != 5 {
		t.Errorf("%+v", rows)
	}
}

// TestAbsurdCost checks that the cost of a call is limited, whatever a provider reports, and that the row is then marked as
// estimated.
func TestAbsurdCost(t *testing.T) {
	w := newWorld(t)
	guest := w.guest("a")
	gw := w.gateway()
	a := answer(1, 1)
	upstream := caisson.USD(math.MaxInt64)
	a.Cost, a.UpstreamCost = math.MaxInt64, &upstream
	must(t, get(gw.Reserve(t.Context(), call(guest), demand(10, 90)))(t).Settle(a))
	c := call(guest)
	c.ID, c.At, c.Cost = caisson.NewID(caisson.CallPrefix), time.Now(), math.MaxInt64
	gw.write(appendCall(appendCall(nil, kindBegin, &c), kindSettle, &c))
	gw.finish()
	rows := w.rows()
	if len(rows) != 2 {
		t.Fatalf("%+v", rows)
	}
	for _, row := range rows {
		if row.Cost != 10_000*caisson.Dollar || !row.Estimated || row.UpstreamCost != nil && *row.UpstreamCost != row.Cost {
			t.Errorf("%+v", row)
		}
	}
}

// TestOthersSession checks that a guest that claims a session of another account is not charged to the session's budget.
func TestOthersSession(t *testing.T) {
	w := newWorld(t)
	mallory, alice := w.guest("m"), w.guest("a")
	mallory.Session, alice.Session = "s1", "s1"
	w.budget("session/s1", caisson.Limits{Tokens: limit[int64](100)}, "")
	gw := w.gateway()
	for range 3 {
		costing(t, gw, mallory, 1) // at most 100 each
	}
	costing(t, gw, alice, 1)
	if _, err := w.book.Lessor(gw.journal).Lease(t.Context(), "m", "account/a", caisson.Amount{}, caisson.Amount{}); err == nil {
		t.Error("an account asked for another's budget")
	}
	if _, err := w.book.Lessor(gw.journal).Lease(t.Context(), "m", "sandbox/"+string(alice.Sandbox), caisson.Amount{}, caisson.Amount{}); err == nil {
		t.Error("an account asked for the budget of another's sandbox")
	}
	gw.finish()
	if b := w.look("session/s1"); b.Used.Tokens != 15 || b.Held.Tokens != 0 {
		t.Errorf("used %d, held %d", b.Used.Tokens, b.Held.Tokens)
	}
}

// TestSpoiltGetsNothing checks that a holder that writes an invalid journal can spend no more than its leases.
func TestSpoiltGetsNothing(t *testing.T) {
	w := newWorld(t)
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](100)}, "")
	gw := w.gateway()
	l, one := w.book.Lessor(gw.journal), caisson.Amount{Tokens: 1}
	get(l.Lease(t.Context(), "a", "account/a", one, one))(t)
	gw.write(make([]byte, 64))
	must(t, w.book.Ingest(t.Context()))
	_, err := l.Lease(t.Context(), "a", "account/a", one, one)
	wantKind(t, err, caisson.Conflict)
	wantKind(t, l.Return(t.Context(), "account/a", one), caisson.Conflict)
}
