package sqlite_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func (k objectKind[T]) test(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.Store){
		"RoundTrip":  k.testRoundTrip,
		"NotFound":   k.testNotFound,
		"Conflict":   k.testConflict,
		"Update":     k.testUpdate,
		"Concurrent": k.testConcurrentUpdate,
		"Race":       k.testConcurrentInsert,
		"Cancel":     k.testCancel,
		"Scopes":     k.testScopes,
		"Everyone":   k.testEveryone,
		"List":       k.testList,
		"Paging":     k.testPaging,
		"Changes":    k.testPagingWithChanges,
		"Labels":     k.testLabels,
		"Delete":     k.testDelete,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func (k objectKind[T]) testRoundTrip(t *testing.T, s caisson.Store) {
	for _, name := range []string{"plain", "docker.io/library/debian:12", `'; DROP TABLE sandbox; --`, "ü☃\u202e%_"} {
		want := k.make("a", name)
		must(t, k.table(s).Insert(t.Context(), want))
		for _, ref := range []string{k.ref(want), name} {
			got := get[*T](t)(k.table(s).Get(t.Context(), caisson.In("a"), ref))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q came back changed (-want +got):\n%s", ref, diff)
			}
		}
	}
}

func (k objectKind[T]) testNotFound(t *testing.T, s caisson.Store) {
	k.insert(t, s, "a", "one")
	for _, ref := range []string{"", "two", "ONE", "on", "a/one", "a/", "%", "sb-aaaaaaaaaaaaaaaa"} {
		for _, in := range []caisson.Scope{caisson.In("a"), caisson.AllAccounts()} {
			_, err := k.table(s).Get(t.Context(), in, ref)
			wantKind(t, err, caisson.NotFound)
			_, err = k.table(s).Update(t.Context(), in, ref, func(*T) error { t.Error("changed nothing"); return nil })
			wantKind(t, err, caisson.NotFound)
			wantKind(t, k.table(s).Delete(t.Context(), in, ref), caisson.NotFound)
		}
	}
}

func (k objectKind[T]) testConflict(t *testing.T, s caisson.Store) {
	first := k.insert(t, s, "a", "one")[0]
	wantKind(t, k.table(s).Insert(t.Context(), first), caisson.Conflict)
	wantKind(t, k.table(s).Insert(t.Context(), k.make("a", "one")), caisson.Conflict)
	k.insert(t, s, "b", "one") // Names are unique only within an account.
	k.insert(t, s, "a", "One")
	must(t, k.table(s).Delete(t.Context(), caisson.In("a"), "one"))
	k.insert(t, s, "a", "one") // A name is unique only while the object exists.
}

func (k objectKind[T]) testUpdate(t *testing.T, s caisson.Store) {
	ctx, in := t.Context(), caisson.In("a")
	obj := k.insert(t, s, "a", "one", "two")[0]
	set := func(note string) func(*T) error {
		return func(o *T) error { *k.textField(o) = note; return nil }
	}
	for _, ref := range []string{k.ref(obj), "one"} {
		got := get[*T](t)(k.table(s).Update(ctx, in, ref, set("by "+ref)))
		stored := get[*T](t)(k.table(s).Get(ctx, in, "one"))
		if *k.textField(got) != "by "+ref || !cmp.Equal(got, stored) {
			t.Errorf("update by %s returned %q and stored %q", ref, *k.textField(got), *k.textField(stored))
		}
	}
	refused := errors.New("refused")
	_, err := k.table(s).Update(ctx, in, "one", func(o *T) error { *k.textField(o) = "lost"; return refused })
	if err != refused {
		t.Errorf("error of change came back as %v", err)
	}
	for what, change := range map[string]func(*T) error{
		"key":     func(o *T) error { *k.key(o) += "x"; return nil },
		"account": func(o *T) error { *k.account(o) = "b"; return nil },
	} {
		if _, err := k.table(s).Update(ctx, in, "one", change); err == nil {
			t.Errorf("%s could be changed", what)
		}
	}
	func() {
		defer func() { recover() }()
		k.table(s).Update(ctx, in, "one", func(o *T) error { *k.textField(o) = "lost"; panic("in change") })
	}()
	stored := get[*T](t)(k.table(s).Get(ctx, in, "one"))
	if *k.textField(stored) != "by one" {
		t.Errorf("a change that failed was stored: %q", *k.textField(stored))
	}
	same := get[*T](t)(k.table(s).Update(ctx, in, "one", set("by one")))
	if !cmp.Equal(same, stored) {
		t.Error("a change of nothing changed something")
	}
}

func (k objectKind[T]) testConcurrentUpdate(t *testing.T, s caisson.Store) {
	const workers, rounds = 8, 25
	obj := k.insert(t, s, "a", "one")[0]
	get[*T](t)(k.table(s).Update(t.Context(), caisson.In("a"), "one", func(o *T) error { *k.textField(o) = "0"; return nil }))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				_, err := k.table(s).Update(t.Context(), caisson.In("a"), k.ref(obj), func(o *T) error {
					n, err := strconv.Atoi(*k.textField(o))
					*k.textField(o) = strconv.Itoa(n + 1)
					return err
				})
				if err != nil {
					t.Error(err)
				}
				if _, err := k.table(s).Get(t.Context(), caisson.In("a"), "one"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := *k.textField(get[*T](t)(k.table(s).Get(t.Context(), caisson.In("a"), "one"))); got != strconv.Itoa(workers*rounds) {
		t.Errorf("%s of %d updates were kept", got, workers*rounds)
	}
}

func (k objectKind[T]) testConcurrentInsert(t *testing.T, s caisson.Store) {
	const workers = 8
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { errs[i] = k.table(s).Insert(t.Context(), k.make("a", "one")) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			wantKind(t, err, caisson.Conflict)
		}
	}
	if won != 1 {
		t.Errorf("%d inserts of one name succeeded", won)
	}
}

func (k objectKind[T]) testCancel(t *testing.T, s caisson.Store) {
	k.insert(t, s, "a", "one")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := k.table(s).Update(ctx, caisson.In("a"), "one", func(o *T) error {
		*k.textField(o) = "lost"
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("update with a context that ended in between: %v", err)
	}
	if err := k.table(s).Insert(ctx, k.make("a", "two")); !errors.Is(err, context.Canceled) {
		t.Errorf("insert with a context that has ended: %v", err)
	}
	if err := k.table(s).Delete(ctx, caisson.In("a"), "one"); !errors.Is(err, context.Canceled) {
		t.Errorf("delete with a context that has ended: %v", err)
	}
	if _, err := k.table(s).Get(ctx, caisson.In("a"), "one"); !errors.Is(err, context.Canceled) {
		t.Errorf("get with a context that has ended: %v", err)
	}
	page, _, err := k.table(s).List(t.Context(), caisson.AllAccounts(), caisson.Filter{})
	must(t, err)
	if len(page) != 1 || *k.textField(page[0]) == "lost" {
		t.Errorf("a cancelled change was stored")
	}
}

func (k objectKind[T]) testDelete(t *testing.T, s caisson.Store) {
	ctx, in := t.Context(), caisson.In("a")
	objs := k.insert(t, s, "a", "one", "two", "three")
	must(t, k.table(s).Delete(ctx, in, k.ref(objs[0])))
	must(t, k.table(s).Delete(ctx, in, "two"))
	wantKind(t, k.table(s).Delete(ctx, in, "two"), caisson.NotFound)
	page, _, err := k.table(s).List(ctx, in, caisson.Filter{})
	must(t, err)
	if got := k.names(page); !slices.Equal(got, []string{"three"}) {
		t.Errorf("left after two deletes: %q", got)
	}
	must(t, k.table(s).Insert(ctx, objs[0])) // The key can be used again.
	must(t, k.table(s).Delete(ctx, in, k.ref(objs[0])))
}
