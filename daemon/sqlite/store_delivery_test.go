package sqlite_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func testDeliveries(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.DeliveryStore){
		"RoundTrip": testDeliveryRoundTrip, "Refs": testDeliveryRefs, "Scopes": testDeliveryScopes, "List": testDeliveryList,
		"Everyone": testDeliveriesOfEveryone, "Update": testDeliveryUpdate, "Delete": testDeliveryDelete,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).Deliveries()) })
	}
}

// delivery returns a delivery in which every field has a value.
func delivery(account string) *caisson.Delivery {
	return &caisson.Delivery{
		ID: caisson.NewID(caisson.DeliveryPrefix), Account: account, Repo: "r", Run: caisson.NewID(caisson.RunPrefix),
		Session: caisson.NewID(caisson.SessionPrefix), Sandbox: caisson.NewID(caisson.SandboxPrefix), State: caisson.DeliveryWaiting,
		Base: "main", Branch: "caisson/ü", From: "00", Pushed: "01", Commit: "02", Sent: "03", Commits: 4,
		Findings: []caisson.Finding{{Check: "secret", Verdict: caisson.VerdictAsk, Message: "0a1b2c3d <a>\u202eb: m", Line: 3}},
		Pull:     true, Ready: true, Title: "t", Body: "b\n", URL: "https://host/pull/1", Number: 1 << 40, Attempts: 3, Error: "e",
		NextAt: noon(), CreatedAt: noon(), RetriedAt: noon().Add(time.Minute), EndedAt: noon().Add(time.Hour),
	}
}

func putDelivery(t *testing.T, s caisson.DeliveryStore, account string) *caisson.Delivery {
	t.Helper()
	d := delivery(account)
	must(t, s.Insert(t.Context(), d))
	return d
}

func testDeliveryRoundTrip(t *testing.T, s caisson.DeliveryStore) {
	want := delivery("a")
	must(t, s.Insert(t.Context(), want))
	if diff := cmp.Diff(want, get[*caisson.Delivery](t)(s.Get(t.Context(), caisson.In("a"), string(want.ID)))); diff != "" {
		t.Errorf("the delivery came back changed (-want +got):\n%s", diff)
	}
	wantKind(t, s.Insert(t.Context(), want), caisson.Conflict)
	for _, d := range []caisson.Delivery{{Account: "a", Repo: "r"}, {ID: "dl-1", Repo: "r"}, {ID: "dl-1", Account: "a"}} {
		wantKind(t, s.Insert(t.Context(), &d), caisson.Internal)
	}
}

// testDeliveryRefs tests that a run refers to its newest delivery, and that deliveries without a run are not found by
// "".
func testDeliveryRefs(t *testing.T, s caisson.DeliveryStore) {
	old, now, none := putDelivery(t, s, "a"), delivery("a"), delivery("a")
	now.Run, none.Run = old.Run, ""
	must(t, s.Insert(t.Context(), now))
	must(t, s.Insert(t.Context(), none))
	for ref, want := range map[caisson.ID]caisson.ID{old.ID: old.ID, now.ID: now.ID, now.Run: now.ID, none.ID: none.ID} {
		if got := get[*caisson.Delivery](t)(s.Get(t.Context(), caisson.In("a"), string(ref))); got.ID != want {
			t.Errorf("%s stands for %s, want %s", ref, got.ID, want)
		}
	}
	for _, ref := range []string{"", "x", "%", "r", string(old.Sandbox), string(old.Session)} {
		_, err := s.Get(t.Context(), caisson.In("a"), ref)
		wantKind(t, err, caisson.NotFound)
	}
}

func testDeliveryScopes(t *testing.T, s caisson.DeliveryStore) {
	ctx, d := t.Context(), putDelivery(t, s, "a")
	theirs := delivery("b")
	theirs.Run = d.Run // This cannot happen, but the scopes must still be enforced.
	must(t, s.Insert(ctx, theirs))
	if got := get[*caisson.Delivery](t)(s.Get(ctx, caisson.In("a"), string(d.Run))); got.ID != d.ID {
		t.Errorf("a run stands for a delivery of %s", got.Account)
	}
	for _, in := range []caisson.Scope{caisson.In("c"), caisson.In("")} {
		for _, ref := range []caisson.ID{d.ID, d.Run} {
			_, err := s.Get(ctx, in, string(ref))
			wantKind(t, err, caisson.NotFound)
		}
		_, err := s.Update(ctx, in, d.ID, func(*caisson.Delivery) error { t.Error("changed"); return nil })
		wantKind(t, err, caisson.NotFound)
		wantKind(t, s.Delete(ctx, in, d.ID), caisson.NotFound)
		if page, more, err := s.List(ctx, in, caisson.DeliveryFilter{Run: d.Run}); err != nil || more || len(page) != 0 {
			t.Errorf("%d deliveries of somebody else's are listed, %v", len(page), err)
		}
		_, _, err = s.List(ctx, in, caisson.DeliveryFilter{Before: d.ID})
		wantKind(t, err, caisson.Invalid)
	}
	get[*caisson.Delivery](t)(s.Get(ctx, caisson.AllAccounts(), string(d.ID)))
}

// idsOf returns the IDs of a page of deliveries.
func idsOf(t *testing.T, s caisson.DeliveryStore, in caisson.Scope, f caisson.DeliveryFilter) (ids []caisson.ID, more bool) {
	t.Helper()
	page, more, err := s.List(t.Context(), in, f)
	must(t, err)
	for _, d := range page {
		ids = append(ids, d.ID)
	}
	return ids, more
}

func testDeliveryList(t *testing.T, s caisson.DeliveryStore) {
	in := caisson.In("a")
	var all []caisson.ID
	for i := range 5 {
		d := delivery("a")
		if i == 1 {
			d.State, d.Repo = caisson.DeliveryHeld, "other"
		}
		must(t, s.Insert(t.Context(), d))
		all = append([]caisson.ID{d.ID}, all...)
	}
	putDelivery(t, s, "b")
	second := get[*caisson.Delivery](t)(s.Get(t.Context(), in, string(all[3])))
	for name, tt := range map[string]struct {
		f    caisson.DeliveryFilter
		want []caisson.ID
		more bool
	}{
		"all":       {caisson.DeliveryFilter{}, all, false},
		"first":     {caisson.DeliveryFilter{Limit: 2}, all[:2], true},
		"second":    {caisson.DeliveryFilter{Limit: 2, Before: all[1]}, all[2:4], true},
		"last":      {caisson.DeliveryFilter{Limit: 2, Before: all[3]}, all[4:], false},
		"states":    {caisson.DeliveryFilter{States: []caisson.DeliveryState{caisson.DeliveryHeld, caisson.DeliveryFailed}}, all[3:4], false},
		"repo":      {caisson.DeliveryFilter{Repo: "other"}, all[3:4], false},
		"repo page": {caisson.DeliveryFilter{Repo: "r", Before: all[2]}, all[4:], false},
		"run":       {caisson.DeliveryFilter{Run: second.Run}, all[3:4], false},
		"both":      {caisson.DeliveryFilter{Run: second.Run, Repo: "r"}, nil, false},
		"nothing":   {caisson.DeliveryFilter{Repo: "%"}, nil, false},
	} {
		if got, more := idsOf(t, s, in, tt.f); !slices.Equal(got, tt.want) || more != tt.more {
			t.Errorf("%s: %v %v, want %v %v", name, got, more, tt.want, tt.more)
		}
	}
	for _, f := range []caisson.DeliveryFilter{{Limit: -1}, {Limit: 1001}, {Before: "dl-x"}} {
		_, _, err := s.List(t.Context(), in, f)
		wantKind(t, err, caisson.Invalid)
	}
}

// testDeliveriesOfEveryone tests that unfinished deliveries of all accounts are found, as the daemon requires at start.
func testDeliveriesOfEveryone(t *testing.T, s caisson.DeliveryStore) {
	a, b := putDelivery(t, s, "a"), putDelivery(t, s, "b")
	ended := delivery("a")
	ended.State = caisson.DeliveryDelivered
	must(t, s.Insert(t.Context(), ended))
	f := caisson.DeliveryFilter{States: []caisson.DeliveryState{caisson.DeliveryWaiting, caisson.DeliverySending}, Limit: 1}
	if got, more := idsOf(t, s, caisson.AllAccounts(), f); !slices.Equal(got, []caisson.ID{b.ID}) || !more {
		t.Errorf("first page %v, more %t", got, more)
	}
	f.Before = b.ID
	if got, more := idsOf(t, s, caisson.AllAccounts(), f); !slices.Equal(got, []caisson.ID{a.ID}) || more {
		t.Errorf("second page %v, more %t", got, more)
	}
}

func testDeliveryUpdate(t *testing.T, s caisson.DeliveryStore) {
	ctx, in, d := t.Context(), caisson.In("a"), putDelivery(t, s, "a")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := s.Update(ctx, in, d.ID, func(d *caisson.Delivery) error { d.Attempts++; return nil })
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := get[*caisson.Delivery](t)(s.Update(ctx, in, d.ID, func(d *caisson.Delivery) error {
		d.State, d.Error = caisson.DeliveryFailed, "no"
		return nil
	}))
	if diff := cmp.Diff(got, get[*caisson.Delivery](t)(s.Get(ctx, in, string(d.Run)))); diff != "" || got.Attempts != 23 {
		t.Errorf("what was stored is not what was said (%d attempts):\n%s", got.Attempts, diff)
	}
	if ids, _ := idsOf(t, s, in, caisson.DeliveryFilter{States: []caisson.DeliveryState{caisson.DeliveryFailed}}); !slices.Equal(ids, []caisson.ID{d.ID}) {
		t.Errorf("failed are %v", ids)
	}
	no := errors.New("no")
	if _, err := s.Update(ctx, in, d.ID, func(d *caisson.Delivery) error { d.Attempts = 0; return no }); err != no {
		t.Errorf("what change returned came back as %v", err)
	}
	for _, change := range []func(*caisson.Delivery){
		func(d *caisson.Delivery) { d.ID = "dl-2" }, func(d *caisson.Delivery) { d.Account = "b" },
		func(d *caisson.Delivery) { d.Repo = "other" }, func(d *caisson.Delivery) { d.Run = "" },
	} {
		_, err := s.Update(ctx, in, d.ID, func(d *caisson.Delivery) error { change(d); return nil })
		wantKind(t, err, caisson.Internal)
	}
	if got := get[*caisson.Delivery](t)(s.Get(ctx, in, string(d.ID))); got.Attempts != 23 || got.Repo != "r" {
		t.Errorf("an update that failed has changed something: %+v", got)
	}
	_, err := s.Update(ctx, in, d.Run, func(*caisson.Delivery) error { return nil })
	wantKind(t, err, caisson.NotFound) // Only by its own ID.
}

func testDeliveryDelete(t *testing.T, s caisson.DeliveryStore) {
	ctx, in := t.Context(), caisson.In("a")
	gone, stays := putDelivery(t, s, "a"), putDelivery(t, s, "a")
	wantKind(t, s.Delete(ctx, in, gone.Run), caisson.NotFound) // Only by its own ID.
	must(t, s.Delete(ctx, in, gone.ID))
	wantKind(t, s.Delete(ctx, in, gone.ID), caisson.NotFound)
	_, err := s.Get(ctx, in, string(gone.Run))
	wantKind(t, err, caisson.NotFound)
	get[*caisson.Delivery](t)(s.Get(ctx, in, string(stays.ID)))
}
