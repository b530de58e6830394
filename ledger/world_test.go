package ledger

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sqlite"
)

// world is a data directory with the whole ledger.
type world struct {
	t     testing.TB
	path  string
	boot  string
	clock clock
	log   logBuffer

	mu    sync.Mutex
	owner map[caisson.ID]string
	blind error // error of looking up an owner

	store *sqlite.Store
	book  *Book
	root  *os.Root
}

// clock is a clock that tests can set. Its zero value is the real time.
type clock struct{ at atomic.Int64 }

func (c *clock) Now() time.Time {
	if at := c.at.Load(); at != 0 {
		return time.Unix(0, at).UTC()
	}
	return time.Now()
}

func (c *clock) set(t time.Time) { c.at.Store(t.UnixNano()) }

func (c *clock) add(d time.Duration) { c.at.Add(int64(d)) }

type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t testing.TB) *world { return openWorld(t, t.TempDir()) }

func openWorld(t testing.TB, path string) *world {
	t.Helper()
	w := &world{t: t, path: path, boot: "boot-1", owner: map[caisson.ID]string{}}
	w.open()
	t.Cleanup(w.close)
	return w
}

// open does what the engine does at its start.
func (w *world) open() {
	w.t.Helper()
	_, err := os.Stat(filepath.Join(w.path, "caisson.db"))
	w.store = get(sqlite.Open(context.Background(), sqlite.Config{
		Path: filepath.Join(w.path, "caisson.db"), Now: w.clock.Now,
		AuditKey: func() (caisson.Secret, bool, error) {
			return caisson.NewSecret(strings.Repeat("k", 32)), err != nil, nil
		},
	}))(w.t)
	w.root = get(os.OpenRoot(w.path))(w.t)
	w.book = get(NewBook(BookConfig{
		Dir: w.root, Store: w.store.Ledger(), Owner: w.known, BootID: func() (string, error) { return w.boot, nil },
		Now: w.clock.Now, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	}))(w.t)
}

func (w *world) close() {
	for _, r := range w.book.openReaders() {
		r.mu.Lock() // a meter may be requesting a lease
		r.closed = true
		r.f.Close()
		r.mu.Unlock()
	}
	w.root.Close()
	w.store.Close()
}

// restart stops the engine without a clean shutdown and starts it again.
func (w *world) restart() {
	w.t.Helper()
	w.close()
	w.open()
	must(w.t, w.book.Recover(context.Background()))
}

func (w *world) known(g caisson.Guest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blind != nil {
		return "", w.blind
	}
	id := g.Sandbox
	if id == "" {
		id = caisson.ID(g.Run)
	}
	account, ok := w.owner[id]
	if !ok {
		return "", caisson.Errorf(caisson.NotFound, "there is no %s", id)
	}
	return account, nil
}

// guest creates a sandbox and returns its guest.
func (w *world) guest(account string) caisson.Guest {
	g := caisson.Guest{Sandbox: caisson.NewID(caisson.SandboxPrefix), Account: account}
	g.Run = string(g.Sandbox)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.owner[g.Sandbox] = account
	return g
}

// budget sets a budget.
func (w *world) budget(key string, l caisson.Limits, period string) *caisson.Budget {
	w.t.Helper()
	account := "a"
	if kind, name, _ := strings.Cut(key, "/"); kind == "account" {
		account = name
	}
	return get(w.store.Ledger().PutBudget(context.Background(), caisson.In(account), &caisson.Budget{
		Key: key, Account: account, Limits: l, Period: period,
	}))(w.t)
}

func (w *world) look(key string) *caisson.Budget {
	w.t.Helper()
	return get(w.store.Ledger().GetBudget(context.Background(), caisson.AllAccounts(), key))(w.t)
}

// gateway is a meter with its journal, like in a separate process.
type gateway struct {
	*Meter
	w       *world
	journal caisson.ID
	file    *os.File
}

func (w *world) gateway() *gateway {
	w.t.Helper()
	g := &gateway{w: w}
	var err error
	g.journal, g.file, err = w.book.Begin(context.Background())
	must(w.t, err)
	w.t.Cleanup(func() { g.file.Close() })
	g.Meter = get(NewMeter(Config{Segment: Segment{Journal: g.file, Lessor: w.book.Lessor(g.journal)}, Now: w.clock.Now}))(w.t)
	return g
}

// die stops the gateway like kill -9.
func (g *gateway) die() { g.file.Close() }

// finish stops the gateway and closes its journal.
func (g *gateway) finish() {
	g.w.t.Helper()
	g.die()
	must(g.w.t, g.w.book.Finish(context.Background(), g.journal))
}

// rows returns all calls in the ledger.
func (w *world) rows() []caisson.Call {
	w.t.Helper()
	var all []caisson.Call
	for after, more := caisson.ID(""), true; more; {
		page, m, err := w.store.Ledger().Calls(context.Background(), caisson.AllAccounts(), caisson.UsageQuery{}, after, 1000)
		must(w.t, err)
		if all, more = append(all, page...), m; more {
			after = page[len(page)-1].ID
		}
	}
	return all
}

// sum returns the cost of all calls.
func sum(calls []caisson.Call) (a caisson.Amount) {
	for i := range calls {
		a = a.Plus(calls[i].Amount())
	}
	return a
}

// demand returns a demand whose maximum cost is in+out tokens at one dollar per million.
func demand(in, out int64) caisson.Demand {
	return caisson.Demand{
		Fixed:       caisson.Amount{USD: caisson.USD(in) * 1000, Tokens: in, Calls: 1},
		OutputPrice: caisson.Dollar, MinOutput: min(1, out), MaxOutput: out,
	}
}

// answer returns a call with the given number of tokens.
func answer(in, out int64) caisson.Call {
	return caisson.Call{Status: 200, Tokens: caisson.TokenCount{Input: in, Output: out}, Cost: caisson.USD(in+out) * 1000}
}

func call(g caisson.Guest) caisson.Call {
	return caisson.Call{Guest: g, Provider: "p", Model: "m", Upstream: "m-1", API: "chat"}
}

func limit[T any](v T) *T { return &v }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func get[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func wantKind(t testing.TB, err error, kind caisson.Kind) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind {
		t.Fatalf("error %v, want %s", err, kind)
	}
}

var _ io.Writer = (*logBuffer)(nil)
