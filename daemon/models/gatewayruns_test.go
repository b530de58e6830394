package models

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
)

// gatewayWorld is the management of runs with a store; it records the changes sent to the wire process.
type gatewayWorld struct {
	*GatewayRuns
	mu   sync.Mutex
	told []string // guarded by mu
}

func newGatewayWorld(t *testing.T) *gatewayWorld {
	t.Helper()
	store := sqlitetest.New(t)
	w := &gatewayWorld{}
	usd := 10 * caisson.Dollar
	w.GatewayRuns = NewGatewayRuns(GatewayRunsConfig{
		Serves: true, Store: store, Wire: w, Budget: caisson.Limits{USD: &usd}, Events: events.New(store.Events(), nil),
		Catalog: NewCatalog(CatalogConfig{
			Offer: Offer{Providers: []caisson.Provider{{Name: "p"}}, Models: []caisson.Model{{Alias: "m", Provider: "p"}}},
		}),
	})
	return w
}

func (w *gatewayWorld) Refresh(context.Context) error { return nil }

func (w *gatewayWorld) ChangeRuns(_ context.Context, c caisson.GatewayRunChange) error {
	for _, run := range c.Remove {
		w.tell("-" + run)
	}
	for _, r := range c.Put {
		w.tell(fmt.Sprintf("+%s/%d", r.Run, r.Attempt))
	}
	return nil
}

func (w *gatewayWorld) Forget(_ context.Context, budgets ...string) error {
	w.tell(budgets...)
	return nil
}

func (w *gatewayWorld) tell(what ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, what...)
}

// heard returns the changes sent to the wire process since the last call.
func (w *gatewayWorld) heard() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := strings.Join(w.told, " ")
	w.told = nil
	return s
}

func holder(ctx context.Context, account string) context.Context {
	return caisson.WithCaller(ctx, caisson.Caller{Account: account, Token: caisson.NewID(caisson.TokenPrefix)})
}

func administrator(ctx context.Context) context.Context {
	return caisson.WithCaller(ctx, caisson.Caller{Account: caisson.LocalAccount, Local: true})
}

func runOf(id string) caisson.GatewayRun {
	return caisson.GatewayRun{Run: id, Models: caisson.ModelGrant{Models: []string{"m"}}}
}

func TestGatewayRuns(t *testing.T) {
	w := newGatewayWorld(t)
	a, b := holder(t.Context(), "a"), holder(t.Context(), "b")
	put := func(ctx context.Context, r caisson.GatewayRun) *caisson.GatewayRun {
		t.Helper()
		got, err := w.PutGatewayRun(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	budget := func(run string) *caisson.Budget {
		t.Helper()
		b, err := w.Store.Ledger().GetBudget(t.Context(), caisson.AllAccounts(), "run/"+run)
		if err != nil && caisson.KindOf(err) != caisson.NotFound {
			t.Fatal(err)
		}
		return b
	}
	first := put(a, runOf("r"))
	if first.Account != "a" || time.Until(first.ExpiresAt) < 23*time.Hour || w.heard() != "run/r +r/0" {
		t.Errorf("%+v, %q", first, w.told)
	}
	if x := budget("r"); x.Account != "a" || *x.Limits.USD != 10*caisson.Dollar {
		t.Errorf("%+v", x)
	}
	again := runOf("r")
	again.Attempt = 1
	again.Models.Budget.Calls = new(int64)
	if got := put(a, again); !got.CreatedAt.Equal(first.CreatedAt) || w.heard() != "run/r +r/1" {
		t.Errorf("%+v", got)
	}
	if x := budget("r"); x.Limits.USD != nil || *x.Limits.Calls != 0 {
		t.Errorf("%+v", x)
	}
	w.Budget = caisson.Limits{}
	if put(a, runOf("r")); budget("r") != nil || w.heard() != "run/r +r/0" {
		t.Error("the old budget is still there")
	}
	put(b, runOf("other"))
	if list, err := w.ListGatewayRuns(b); err != nil || len(list) != 1 || list[0].Run != "other" {
		t.Error(list, err)
	}
	w.heard()
	if err := w.RemoveGatewayRun(b, "r"); caisson.KindOf(err) != caisson.NotFound || w.heard() != "" {
		t.Error(err)
	}
	if err := w.RemoveGatewayRun(a, "r"); err != nil || w.heard() != "-r" {
		t.Error(err)
	}
	want := []string{"a gateway.run.put r", "a gateway.run.put r", "a gateway.run.put r", "b gateway.run.put other", "a gateway.run.removed r"}
	list, err := w.Store.Events().After(t.Context(), caisson.AllAccounts(), "", 0, 100)
	var got []string
	for _, e := range list {
		got = append(got, e.Account+" "+e.Type+" "+e.Subject)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("events: %q, %v", got, err)
	}
}

func TestGatewayRunsRefuse(t *testing.T) {
	w := newGatewayWorld(t)
	usd := caisson.Dollar
	for _, key := range []string{"session/theirs", "run/theirs"} {
		if _, err := w.Store.Ledger().PutBudget(t.Context(), caisson.AllAccounts(), &caisson.Budget{Key: key, Account: "b", Limits: caisson.Limits{USD: &usd}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.PutGatewayRun(holder(t.Context(), "b"), runOf("taken")); err != nil {
		t.Fatal(err)
	}
	w.heard()
	for name, c := range map[string]struct {
		change func(r *caisson.GatewayRun)
		kind   caisson.Kind
		field  string
	}{
		"no id":             {func(r *caisson.GatewayRun) { r.Run = "" }, caisson.Invalid, "run"},
		"a bar":             {func(r *caisson.GatewayRun) { r.Run = "a|b" }, caisson.Invalid, "run"},
		"a long id":         {func(r *caisson.GatewayRun) { r.Run = strings.Repeat("r", 65) }, caisson.Invalid, "run"},
		"negative":          {func(r *caisson.GatewayRun) { r.Attempt = -1 }, caisson.Invalid, "attempt"},
		"past":              {func(r *caisson.GatewayRun) { r.ExpiresAt = time.Now() }, caisson.Invalid, "expiresAt"},
		"for ever":          {func(r *caisson.GatewayRun) { r.ExpiresAt = time.Now().AddDate(10, 0, 0) }, caisson.Invalid, "expiresAt"},
		"control":           {func(r *caisson.GatewayRun) { r.User = "a\nb" }, caisson.Invalid, "user"},
		"long":              {func(r *caisson.GatewayRun) { r.Agent = strings.Repeat("ü", 65) }, caisson.Invalid, "agent"},
		"no text":           {func(r *caisson.GatewayRun) { r.Session = "\xff" }, caisson.Invalid, "session"},
		"no model":          {func(r *caisson.GatewayRun) { r.Models.Models = nil }, caisson.Invalid, "models.models"},
		"unknown model":     {func(r *caisson.GatewayRun) { r.Models.Models = []string{"x"} }, caisson.Invalid, "models.models"},
		"recorded":          {func(r *caisson.GatewayRun) { r.Models.Record = true }, caisson.Invalid, "models.record"},
		"another account":   {func(r *caisson.GatewayRun) { r.Account = "b" }, caisson.Denied, ""},
		"another's run":     {func(r *caisson.GatewayRun) { r.Run = "taken" }, caisson.Conflict, ""},
		"another's budget":  {func(r *caisson.GatewayRun) { r.Run = "theirs" }, caisson.Conflict, ""},
		"another's session": {func(r *caisson.GatewayRun) { r.Session = "theirs" }, caisson.Conflict, ""},
	} {
		r := runOf("r")
		c.change(&r)
		_, err := w.PutGatewayRun(holder(t.Context(), "a"), r)
		if caisson.KindOf(err) != c.kind || caisson.FieldOf(err) != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, do := range map[string]func(context.Context) error{
		"put":  func(ctx context.Context) error { _, err := w.PutGatewayRun(ctx, runOf("r")); return err },
		"list": func(ctx context.Context) error { _, err := w.ListGatewayRuns(ctx); return err },
		"rm":   func(ctx context.Context) error { return w.RemoveGatewayRun(ctx, "taken") },
	} {
		if err := do(t.Context()); caisson.KindOf(err) != caisson.Unauthed {
			t.Errorf("%s by nobody: %v", name, err)
		}
	}
	w.Serves = false
	if _, err := w.PutGatewayRun(administrator(t.Context()), runOf("r")); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("without a listener: %v", err)
	}
	if got := w.heard(); got != "" {
		t.Errorf("the wire process was told %q", got)
	}
	if list, err := w.Live(t.Context()); err != nil || len(list) != 1 {
		t.Error(list, err)
	}
}

// TestGatewayRunsEnd checks that expired runs are removed with their budgets, and no longer count.
func TestGatewayRunsEnd(t *testing.T) {
	w := newGatewayWorld(t)
	ctx := administrator(t.Context())
	r := runOf("short")
	r.Account, r.ExpiresAt = "a", time.Now().Add(time.Hour)
	for _, r := range []caisson.GatewayRun{r, runOf("long")} {
		if _, err := w.PutGatewayRun(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	w.heard()
	if err := w.Housekeep(t.Context(), time.Now()); err != nil || w.heard() != "" {
		t.Error(err)
	}
	if err := w.Housekeep(t.Context(), time.Now().Add(2*time.Hour)); err != nil || w.heard() != "-short run/short" {
		t.Error(err)
	}
	if list, err := w.Live(t.Context()); err != nil || len(list) != 1 || list[0].Run != "long" {
		t.Error(list, err)
	}
	// Its last calls are still charged to its account.
	if account, err := w.Store.GatewayRuns().Owner(t.Context(), "short"); err != nil || account != "a" {
		t.Error(account, err)
	}
	if err := w.Housekeep(t.Context(), time.Now().Add(2*gatewayRunRetention)); err != nil {
		t.Error(err)
	}
	if _, err := w.Store.GatewayRuns().Owner(t.Context(), "short"); caisson.KindOf(err) != caisson.NotFound {
		t.Error(err)
	}
}

// TestGatewayRunsFull checks the maximum number of runs; expired ones do not count.
func TestGatewayRunsFull(t *testing.T) {
	w := newGatewayWorld(t)
	store := &crowded{GatewayRunStore: w.Store.GatewayRuns(), n: map[string]int{"": maxGatewayRuns - 1, "a": maxAccountRuns}}
	w.Store = crowdedStore{w.Store, store}
	if _, err := w.PutGatewayRun(holder(t.Context(), "a"), runOf("r")); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("an account with too many: %v", err)
	}
	if _, err := w.PutGatewayRun(holder(t.Context(), "b"), runOf("r")); err != nil {
		t.Error(err)
	}
	store.n[""] = maxGatewayRuns
	if _, err := w.PutGatewayRun(administrator(t.Context()), runOf("s")); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("too many in all: %v", err)
	}
	if _, err := w.PutGatewayRun(holder(t.Context(), "b"), runOf("r")); err != nil {
		t.Errorf("one that is there already: %v", err)
	}
}

// crowded is a store that reports more runs than it has.
type crowded struct {
	caisson.GatewayRunStore
	n map[string]int // by account
}

func (c *crowded) Count(_ context.Context, in caisson.Scope) (int, error) {
	account, _ := in.Account()
	return c.n[account], nil
}

type crowdedStore struct {
	caisson.Store
	runs *crowded
}

func (s crowdedStore) GatewayRuns() caisson.GatewayRunStore { return s.runs }
