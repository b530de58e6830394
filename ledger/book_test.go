package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// sampleCall returns a call with all fields set.
func sampleCall(g caisson.Guest) caisson.Call {
	cost := caisson.USD(77)
	g.Attempt, g.Session, g.Agent, g.User = 2, "s", "agent", "user ü"
	return caisson.Call{
		ID: caisson.NewID(caisson.CallPrefix), At: time.Date(2026, 5, 1, 12, 0, 0, 123456789, time.UTC), Guest: g, Provider: "p",
		Model: "m", Upstream: "m-1", API: "messages", Stream: true, Status: 200, Error: "aborted",
		Tokens: caisson.TokenCount{Input: 1, Output: 2, CacheRead: 3, CacheWrite: 4}, Cost: 5, Estimated: true,
		UpstreamID: "chatcmpl-1", UpstreamCost: &cost, FirstByte: 6, Duration: 7,
	}
}

func TestRecords(t *testing.T) {
	g := caisson.Guest{Sandbox: "sb-aaaaaaaaaaaaaaaa", Account: "a", Run: "r"}
	elsewhere := caisson.Guest{Account: "a", Run: "r"}
	part, traced := g, g
	failed := sampleCall(g)
	failed.Detail = `the provider refused the credential K of model "m" (401)`
	cut := sampleCall(g)
	cut.AtMost = &caisson.Amount{USD: caisson.Dollar, Tokens: 1 << 40 / 1000, Calls: 1}
	part.Lineage, part.Trace = "rn-aaaaaaaaaaaaaaaa rn-bbbbbbbbbbbbbbbb", strings.Repeat("0f", 16)
	traced.Trace = part.Trace
	for _, c := range []caisson.Call{
		sampleCall(g), sampleCall(elsewhere), sampleCall(part), sampleCall(traced), failed, cut, {ID: "ca-aaaaaaaaaaaaaaaa", At: time.Unix(1, 0).UTC(), Guest: g},
	} {
		for _, kind := range []byte{kindBegin, kindSettle} {
			b := appendCall(nil, kind, &c)
			r, n, err := decodeRecord(append(b, 1, 2, 3))
			if err != nil || n != int64(len(b)) || r.kind != kind || !cmp.Equal(r.call, c) {
				t.Errorf("%c: %v\n%s", kind, err, cmp.Diff(c, r.call))
			}
			for i := range b {
				if _, _, err := decodeRecord(b[:i]); err != errIncomplete {
					t.Errorf("%d bytes of %d: %v", i, len(b), err)
				}
				bad := bytes.Clone(b)
				bad[i] ^= 0x41
				if _, _, err := decodeRecord(bad); err == nil {
					t.Errorf("byte %d was changed, and nobody noticed", i)
				}
			}
		}
	}
	h := header{"jr-aaaaaaaaaaaaaaaa", "boot"}
	if r, _, err := decodeRecord(appendHeader(nil, h)); err != nil || r.header != h {
		t.Error(r.header, err)
	}
	// Untrusted strings are truncated and not rejected.
	c := sampleCall(g)
	c.User, c.Error, c.UpstreamID, c.Detail = strings.Repeat("ü", 400), "\xff\x00x", strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20)
	r, _, err := decodeRecord(appendCall(nil, kindBegin, &c))
	if err != nil || len(r.call.User) != 512 || r.call.Error != "x" || len(r.call.UpstreamID) != 512 || len(r.call.Detail) != 512 {
		t.Error(err, len(r.call.User), r.call.Error)
	}
}

func FuzzRecords(f *testing.F) {
	c := sampleCall(caisson.Guest{Sandbox: "sb-aaaaaaaaaaaaaaaa", Account: "a"})
	f.Add(appendCall(nil, kindBegin, &c)[frameBytes:])
	f.Add(appendCall(nil, kindSettle, &caisson.Call{})[frameBytes:])
	f.Add(appendHeader(nil, header{"jr-aaaaaaaaaaaaaaaa", "b"})[frameBytes:])
	c.Run, c.Lineage, c.Trace = "rn-cccccccccccccccc", "rn-aaaaaaaaaaaaaaaa rn-bbbbbbbbbbbbbbbb", strings.Repeat("0f", 16)
	f.Add(appendCall(nil, kindSettle, &c)[frameBytes:])
	f.Add([]byte{kindBegin})
	f.Add([]byte{kindHeader, version, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _, _ = decodeRecord(body) // as a frame, mostly with a wrong checksum
		b := appendFrame(append(make([]byte, frameBytes), body...), 0)
		r, n, err := decodeRecord(b)
		if err != nil {
			return
		}
		if n != int64(len(b)) {
			t.Fatalf("%d of %d bytes", n, len(b))
		}
		if r.kind == kindHeader {
			return
		}
		again, _, err := decodeRecord(appendCall(nil, r.kind, &r.call))
		if err != nil || !cmp.Equal(again.call, r.call) {
			t.Fatalf("%v\n%s", err, cmp.Diff(r.call, again.call))
		}
	})
}

// write appends bytes to a gateway's journal, like a compromised process.
func (g *gateway) write(b []byte) {
	g.w.t.Helper()
	_, err := g.file.Write(b)
	must(g.w.t, err)
}

// TestHostileJournals checks that, whatever a gateway writes, its leases are charged, valid rows are kept, and everything else is
// ignored.
func TestHostileJournals(t *testing.T) {
	rec := func(kind byte, change func(c *caisson.Call)) func(*world, *gateway, caisson.Guest) []byte {
		return func(_ *world, _ *gateway, guest caisson.Guest) []byte {
			c := call(guest)
			c.ID, c.At = caisson.NewID(caisson.CallPrefix), time.Now()
			change(&c)
			return appendCall(nil, kind, &c)
		}
	}
	raw := func(b ...byte) func(*world, *gateway, caisson.Guest) []byte {
		return func(*world, *gateway, caisson.Guest) []byte { return b }
	}
	for name, c := range map[string]struct {
		bytes   func(*world, *gateway, caisson.Guest) []byte
		damaged bool // all held amounts are charged
		dropped bool
	}{
		"torn length":        {bytes: raw(1, 0)},
		"torn record":        {bytes: raw(40, 0, 0, 0, 1, 2, 3, 4, 'B')},
		"zeros":              {bytes: raw(make([]byte, 4096)...), damaged: true},
		"huge length":        {bytes: raw(0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0), damaged: true},
		"wrong checksum":     {bytes: raw(1, 0, 0, 0, 1, 2, 3, 4, 'B', 0), damaged: true},
		"unknown kind":       {bytes: raw(appendFrame(append(make([]byte, 8), 'X'), 0)...), damaged: true},
		"header again":       {bytes: raw(appendHeader(nil, header{"jr-aaaaaaaaaaaaaaaa", "boot-1"})...), damaged: true},
		"end without begin":  {bytes: rec(kindSettle, func(*caisson.Call) {}), damaged: true},
		"another's sandbox":  {bytes: rec(kindBegin, func(c *caisson.Call) { c.Account = "victim" }), dropped: true},
		"no such sandbox":    {bytes: rec(kindBegin, func(c *caisson.Call) { c.Sandbox = "sb-aaaaaaaaaaaaaaaa" }), dropped: true},
		"no such run":        {bytes: rec(kindBegin, func(c *caisson.Call) { c.Sandbox, c.Run = "", "other" }), dropped: true},
		"nowhere":            {bytes: rec(kindBegin, func(c *caisson.Call) { c.Sandbox, c.Run = "", "" }), damaged: true},
		"not a sandbox":      {bytes: rec(kindBegin, func(c *caisson.Call) { c.Sandbox = "r" }), damaged: true},
		"far in the future":  {bytes: rec(kindBegin, func(c *caisson.Call) { c.At = time.Now().AddDate(1, 0, 0) })},
		"negative amounts":   {bytes: rec(kindBegin, func(c *caisson.Call) { c.Cost = -5 }), damaged: true},
		"astronomic cost":    {bytes: rec(kindBegin, func(c *caisson.Call) { c.Cost = math.MaxInt64 })},
		"astronomic amounts": {bytes: rec(kindBegin, func(c *caisson.Call) { c.Tokens.Input = 1 << 62 }), damaged: true},
		"begun twice": {bytes: func(w *world, g *gateway, guest caisson.Guest) []byte {
			c := call(guest)
			c.ID, c.At = caisson.NewID(caisson.CallPrefix), time.Now()
			return appendCall(appendCall(nil, kindBegin, &c), kindBegin, &c)
		}, damaged: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			guest := w.guest("a")
			w.budget("account/a", caisson.Limits{Tokens: limit[int64](10_000)}, "")
			gw := w.gateway()
			must(t, get(gw.Reserve(t.Context(), call(guest), demand(10, 90)))(t).Settle(answer(10, 5)))
			get(gw.Reserve(t.Context(), call(guest), demand(10, 90)))(t)
			gw.write(c.bytes(w, gw, guest))
			if !c.damaged && len(c.bytes(w, gw, guest)) > 10 {
				must(t, get(gw.Reserve(t.Context(), call(guest), demand(1, 1)))(t).Settle(answer(1, 1)))
			}
			must(t, w.book.Ingest(t.Context()))
			before := w.look("account/a")
			gw.finish()
			b := w.look("account/a")
			if c.damaged && b.Used.Tokens < before.Used.Tokens+before.Held.Tokens {
				t.Errorf("what was held was freed: before %+v %+v, after %+v", before.Used, before.Held, b.Used)
			}
			rows := w.rows()
			if !c.damaged && (b.Used.Tokens != sum(rows).Tokens || b.Used.Tokens > 200) {
				t.Errorf("used %d, calls took %d", b.Used.Tokens, sum(rows).Tokens)
			}
			if b.Held.Tokens != 0 {
				t.Errorf("%d are held", b.Held.Tokens)
			}
			for _, row := range rows {
				if row.Account != "a" || row.Sandbox != guest.Sandbox {
					t.Errorf("the ledger believes %+v", row)
				}
			}
			if strings.Contains(w.log.String(), "a call was dropped") != c.dropped {
				t.Error(w.log.String())
			}
		})
	}
}

// TestRemoteGuests checks that calls of remote runs are charged to the account of the run only.
func TestRemoteGuests(t *testing.T) {
	w := newWorld(t)
	w.owner["run-1"] = "a"
	w.budget("run/run-1", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	gw := w.gateway()
	for _, account := range []string{"a", "victim"} {
		r := get(gw.Reserve(t.Context(), call(caisson.Guest{Account: account, Run: "run-1"}), demand(10, 90)))(t)
		must(t, r.Settle(answer(10, 5)))
	}
	gw.finish()
	rows := w.rows()
	if len(rows) != 1 || rows[0].Account != "a" || rows[0].Run != "run-1" || rows[0].Sandbox != "" {
		t.Errorf("rows: %+v", rows)
	}
	if b := w.look("run/run-1"); b.Used.Tokens != 15 || b.Held.Tokens != 0 {
		t.Errorf("budget: %+v", b)
	}
	if !strings.Contains(w.log.String(), "a call was dropped") {
		t.Error(w.log.String())
	}
}

// TestOwnerUnknownNow checks that a failed lookup of an owner does not drop the call and does not mark the journal as damaged.
func TestOwnerUnknownNow(t *testing.T) {
	w := newWorld(t)
	w.owner["run-1"] = "a"
	w.budget("run/run-1", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	gw := w.gateway()
	settle := func() {
		must(t, get(gw.Reserve(t.Context(), call(caisson.Guest{Account: "a", Run: "run-1"}), demand(10, 90)))(t).Settle(answer(10, 5)))
	}
	blind := func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.blind = err
	}
	settle()
	for _, err := range []error{context.DeadlineExceeded, errors.New("the disk does not answer")} {
		blind(err)
		if err := w.book.Ingest(t.Context()); caisson.KindOf(err) != caisson.Unavailable {
			t.Errorf("ingest: %v", err)
		}
		if err := w.book.Recover(t.Context()); err != nil {
			t.Error(err) // journals in use have readers already
		}
	}
	// A daemon that starts meanwhile returns the error, and counts nothing as spent.
	gw.die()
	w.close()
	w.open()
	if err := w.book.Recover(t.Context()); caisson.KindOf(err) != caisson.Unavailable {
		t.Errorf("recover: %v", err)
	}
	blind(nil)
	w.restart()
	if rows := w.rows(); len(rows) != 1 || rows[0].Run != "run-1" {
		t.Errorf("rows: %+v", rows)
	}
	if b := w.look("run/run-1"); b.Used.Tokens != 15 || b.Held.Tokens != 0 {
		t.Errorf("budget: %+v", b)
	}
	if strings.Contains(w.log.String(), "dropped") || strings.Contains(w.log.String(), "damaged") {
		t.Error(w.log.String())
	}
}

// TestShortened checks that a gateway that truncates its journal cannot undo what was read.
func TestShortened(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	gw := w.gateway()
	for range 3 {
		must(t, get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t).Settle(answer(10, 5)))
	}
	must(t, w.book.Ingest(t.Context()))
	before := w.look("account/a")
	must(t, os.Truncate(filepath.Join(w.path, journalPath(gw.journal)), 300))
	gw.die()
	w.restart()
	if b := w.look("account/a"); len(w.rows()) != 3 || b.Used.Tokens < before.Used.Tokens+before.Held.Tokens {
		t.Errorf("%d rows, used %d; was %d and %d held", len(w.rows()), b.Used.Tokens, before.Used.Tokens, before.Held.Tokens)
	}
}

// TestRestart checks that an engine that restarts reads no record twice, and accepts records of sandboxes that have been removed.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	gw := w.gateway()
	open := get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t)
	must(t, get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t).Settle(answer(10, 5)))
	must(t, w.book.Ingest(t.Context()))
	must(t, w.book.Ingest(t.Context()))
	must(t, open.Settle(answer(10, 6)))
	get(gw.Reserve(t.Context(), call(g), demand(10, 20)))(t)
	w.mu.Lock()
	delete(w.owner, g.Sandbox)
	w.mu.Unlock()
	gw.die()
	// The last begin record was not read before its sandbox was removed, so it is ignored.
	w.restart()
	rows := w.rows()
	if b := w.look("account/a"); len(rows) != 2 || b.Used.Tokens != 31 || b.Held.Tokens != 0 {
		t.Errorf("%d rows, used %+v, held %+v", len(rows), b.Used, b.Held)
	}
	w.restart()
	if len(w.rows()) != 2 {
		t.Error("rows were added")
	}
	if n := strings.Count(w.log.String(), "model call"); n != 2 {
		t.Errorf("%d lines in the log, want 2:\n%s", n, w.log.String())
	}
	for _, want := range []string{"account=a", "sandbox=" + string(g.Sandbox), "model=m", "status=200", "cost=0.000015", "input=10", "output=5"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log does not say %s", want)
		}
	}
}

// TestKilledBetween kills the engine after it has closed a journal and before it has removed the file.
func TestKilledBetween(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	gw := w.gateway()
	must(t, get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t).Settle(answer(10, 5)))
	get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t)
	name := filepath.Join(w.path, journalPath(gw.journal))
	saved := get(os.ReadFile(name))(t)
	gw.finish()
	must(t, os.WriteFile(name, saved, 0o600))
	must(t, os.WriteFile(filepath.Join(w.path, "ledger", "notes.txt"), saved, 0o600))
	w.restart()
	if _, err := os.Stat(name); !os.IsNotExist(err) || len(w.rows()) != 2 {
		t.Errorf("%v, %d rows", err, len(w.rows()))
	}
	if _, err := os.Stat(filepath.Join(w.path, "ledger", "notes.txt")); err != nil {
		t.Error("a file that is not ours was removed")
	}
}

// TestStillAlive checks that a journal that a process has open is not finished.
func TestStillAlive(t *testing.T) {
	w := newWorld(t)
	gw := w.gateway()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := w.book.Finish(ctx, gw.journal); err == nil {
		t.Error("a journal was finished while its gateway lives")
	}
	gw.finish()
	_, err := w.book.Lessor(gw.journal).Lease(t.Context(), "a", "account/a", caisson.Amount{}, caisson.Amount{})
	wantKind(t, err, caisson.Conflict)
}

// TestLostFile checks that the leases of a journal's holder count as spent if the journal is lost.
func TestLostFile(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	gw := w.gateway()
	get(gw.Reserve(t.Context(), call(g), demand(10, 90)))(t)
	gw.die()
	must(t, os.Remove(filepath.Join(w.path, journalPath(gw.journal))))
	w.restart()
	if b := w.look("account/a"); b.Used.Tokens != 100 || b.Held.Tokens != 0 {
		t.Errorf("used %+v, held %+v", b.Used, b.Held)
	}
}

func TestLessorBelievesNothing(t *testing.T) {
	w := newWorld(t)
	gw := w.gateway()
	g := w.guest("a")
	l := w.book.Lessor(gw.journal)
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](10_000)}, "")
	for _, key := range []string{"", "account", "account/", "x/y", "sandbox/x", "run/" + strings.Repeat("x", 200), "run/a\nb", "sandbox/sb-aaaaaaaaaaaaaaaa"} {
		if _, err := l.Lease(t.Context(), "a", key, caisson.Amount{}, caisson.Amount{}); err == nil {
			t.Errorf("%q: no error", key)
		}
	}
	one := caisson.Amount{Tokens: 1}
	for _, a := range [][2]caisson.Amount{
		{{Tokens: -1}, one}, {one, {}}, {{}, {Tokens: 1 << 60}}, {{}, {USD: 1 << 62}}, {{}, {Calls: 1 << 40}}, {{USD: -1}, {USD: -1}},
	} {
		if _, err := l.Lease(t.Context(), "a", "account/a", a[0], a[1]); err == nil {
			t.Errorf("%+v: no error", a)
		}
	}
	for _, a := range []caisson.Amount{{Tokens: -5}, {Tokens: 1}, {USD: 1}} {
		wantKind(t, l.Return(t.Context(), "account/a", a), caisson.Invalid)
	}
	lease := get(l.Lease(t.Context(), "a", "sandbox/"+string(g.Sandbox), one, one))(t)
	if !lease.Unlimited {
		t.Errorf("%+v", lease)
	}
	_, err := w.book.Lessor("jr-aaaaaaaaaaaaaaaa").Lease(t.Context(), "a", "account/a", one, one)
	wantKind(t, err, caisson.Conflict)
	if b := w.look("account/a"); !b.Held.IsZero() {
		t.Errorf("held %+v", b.Held)
	}
}

// TestFormat pins the frame, because a journal may be read by a newer build than the one that wrote it.
func TestFormat(t *testing.T) {
	b := appendHeader(nil, header{"jr-aaaaaaaaaaaaaaaa", "boot"})
	if got := binary.LittleEndian.Uint32(b); int(got) != len(b)-8 || b[8] != 'H' || b[9] != version || b[10] != 19 {
		t.Errorf("% x", b)
	}
}

// TestCutCallInBudgets checks that budgets count the maximum cost of a call whose row is an estimate: in the process that made
// it, in the store, and after a restart.
func TestCutCallInBudgets(t *testing.T) {
	w := newWorld(t)
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](1_000)}, "")
	g := w.guest("a")
	cut := answer(10, 20)
	cut.Estimated, cut.AtMost = true, &caisson.Amount{Tokens: 600}
	must(t, get(w.gateway().Reserve(t.Context(), call(g), demand(10, 590)))(t).Settle(cut))
	if _, err := w.gateway().Reserve(t.Context(), call(g), demand(401, 1)); err == nil {
		t.Error("the budget allows what the cut call can have taken")
	}
	must(t, w.book.Ingest(t.Context()))
	if b, rows := w.look("account/a"), w.rows(); b.Used.Tokens != 600 || len(rows) != 1 || rows[0].Tokens.Total() != 30 || rows[0].AtMost.Tokens != 600 {
		t.Errorf("used %+v by %+v", b.Used, rows)
	}
}
