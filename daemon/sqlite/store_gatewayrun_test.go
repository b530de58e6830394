package sqlite_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testGatewayRuns(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.GatewayRunStore){
		"Put": testPutGatewayRun, "Scopes": testGatewayRunScopes, "End": testEndGatewayRun, "Concurrent": testConcurrentGatewayRuns,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).GatewayRuns()) })
	}
}

func gatewayRun(run, account string) *caisson.GatewayRun {
	usd := 5 * caisson.Dollar
	return &caisson.GatewayRun{
		Run: run, Attempt: 2, Account: account, Session: "s", Agent: "a", User: "ü",
		Models:    caisson.ModelGrant{Models: []string{"large"}, Budget: caisson.Limits{USD: &usd}},
		CreatedAt: noon(), ExpiresAt: noon().Add(time.Hour),
	}
}

func putGatewayRun(t *testing.T, s caisson.GatewayRunStore, run, account string) *caisson.GatewayRun {
	t.Helper()
	r := gatewayRun(run, account)
	must(t, s.Put(t.Context(), caisson.In(account), r))
	return r
}

func testPutGatewayRun(t *testing.T, s caisson.GatewayRunStore) {
	want := putGatewayRun(t, s, "r1", "a")
	if diff := cmp.Diff(want, get[*caisson.GatewayRun](t)(s.Get(t.Context(), caisson.In("a"), "r1"))); diff != "" {
		t.Errorf("the run came back changed (-want +got):\n%s", diff)
	}
	want.Attempt, want.Models.Models = 3, []string{"small"}
	must(t, s.Put(t.Context(), caisson.AllAccounts(), want))
	if diff := cmp.Diff(want, get[*caisson.GatewayRun](t)(s.Get(t.Context(), caisson.AllAccounts(), "r1"))); diff != "" {
		t.Errorf("the run was not replaced (-want +got):\n%s", diff)
	}
	// An account can neither replace another account's run nor create a run for another account.
	wantKind(t, s.Put(t.Context(), caisson.In("b"), gatewayRun("r1", "b")), caisson.Conflict)
	wantKind(t, s.Put(t.Context(), caisson.In("b"), gatewayRun("r2", "a")), caisson.NotFound)
	wantKind(t, s.Put(t.Context(), caisson.In("b"), gatewayRun("", "b")), caisson.Internal)
	if got := get[*caisson.GatewayRun](t)(s.Get(t.Context(), caisson.In("a"), "r1")); got.Account != "a" || got.Attempt != 3 {
		t.Errorf("after a conflict: %+v", got)
	}
}

func testGatewayRunScopes(t *testing.T, s caisson.GatewayRunStore) {
	for _, r := range [][2]string{{"r3", "a"}, {"r1", "a"}, {"r2", "b"}} {
		putGatewayRun(t, s, r[0], r[1])
	}
	list := func(in caisson.Scope) (out []string) {
		t.Helper()
		for _, r := range get[[]*caisson.GatewayRun](t)(s.List(t.Context(), in)) {
			out = append(out, r.Account+"/"+r.Run)
		}
		if n := get[int](t)(s.Count(t.Context(), in)); n != len(out) {
			t.Errorf("%d runs are counted, %d listed", n, len(out))
		}
		return out
	}
	for name, tt := range map[string]struct {
		in   caisson.Scope
		want []string
	}{
		"a": {caisson.In("a"), []string{"a/r1", "a/r3"}}, "nobody": {caisson.In(""), nil},
		"everyone": {caisson.AllAccounts(), []string{"a/r1", "b/r2", "a/r3"}},
	} {
		if got := list(tt.in); !slices.Equal(got, tt.want) {
			t.Errorf("runs of %s: %v", name, got)
		}
	}
	for _, in := range []caisson.Scope{caisson.In("b"), caisson.In("")} {
		_, err := s.Get(t.Context(), in, "r1")
		wantKind(t, err, caisson.NotFound)
		wantKind(t, s.End(t.Context(), in, "r1", noon()), caisson.NotFound)
	}
	if got := list(caisson.In("a")); len(got) != 2 {
		t.Errorf("somebody else ended a run: %v", got)
	}
}

func testEndGatewayRun(t *testing.T, s caisson.GatewayRunStore) {
	ctx, in := t.Context(), caisson.In("a")
	putGatewayRun(t, s, "r1", "a")
	must(t, s.End(ctx, in, "r1", noon()))
	wantKind(t, s.End(ctx, in, "r1", noon()), caisson.NotFound)
	_, err := s.Get(ctx, in, "r1")
	wantKind(t, err, caisson.NotFound)
	if n := get[int](t)(s.Count(ctx, in)); n != 0 {
		t.Errorf("%d runs", n)
	}
	// An ended run keeps its account, so that calls in progress are charged to that account.
	if account := get[string](t)(s.Owner(ctx, "r1")); account != "a" {
		t.Errorf("it was %q's", account)
	}
	wantKind(t, s.Put(ctx, caisson.In("b"), gatewayRun("r1", "b")), caisson.Conflict)
	putGatewayRun(t, s, "r1", "a")
	must(t, s.Trim(ctx, noon().Add(time.Hour)))
	get[*caisson.GatewayRun](t)(s.Get(ctx, in, "r1")) // The run was started again and is not trimmed.
	must(t, s.End(ctx, in, "r1", noon()))
	must(t, s.Trim(ctx, noon()))
	get[string](t)(s.Owner(ctx, "r1")) // The run ended at the limit, not before it.
	must(t, s.Trim(ctx, noon().Add(time.Second)))
	_, err = s.Owner(ctx, "r1")
	wantKind(t, err, caisson.NotFound)
	putGatewayRun(t, s, "r1", "b")
}

// testConcurrentGatewayRuns tests that only one of several accounts gets the same ID.
func testConcurrentGatewayRuns(t *testing.T, s caisson.GatewayRunStore) {
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			account := fmt.Sprint("a", i)
			switch err := s.Put(t.Context(), caisson.In(account), gatewayRun("r", account)); {
			case err == nil:
				won.Add(1)
			case caisson.KindOf(err) != caisson.Conflict:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d accounts have the run", won.Load())
	}
}
