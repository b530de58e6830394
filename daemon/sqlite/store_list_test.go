package sqlite_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func (k objectKind[T]) testScopes(t *testing.T, s caisson.Store) {
	ctx := t.Context()
	mine := k.insert(t, s, "a", "mine")[0]
	k.insert(t, s, "b", "theirs")
	for _, in := range []caisson.Scope{caisson.In("b"), caisson.In("c"), caisson.In(""), {}} {
		for _, ref := range []string{k.ref(mine), "mine"} {
			_, err := k.table(s).Get(ctx, in, ref)
			wantKind(t, err, caisson.NotFound)
			_, err = k.table(s).Update(ctx, in, ref, func(*T) error { t.Error("another account's object was seen"); return nil })
			wantKind(t, err, caisson.NotFound)
			wantKind(t, k.table(s).Delete(ctx, in, ref), caisson.NotFound)
		}
		page, more, err := k.table(s).List(ctx, in, caisson.Filter{})
		must(t, err)
		if more || slices.Contains(k.names(page), "mine") {
			t.Errorf("%v lists another account's object", in)
		}
		if page, _, err := k.table(s).List(ctx, in, caisson.Filter{After: k.pageToken(mine)}); !k.named && err == nil {
			t.Errorf("%v continues after another account's object: %q", in, k.names(page))
		}
	}
	got := get[*T](t)(k.table(s).Get(ctx, caisson.In("a"), k.ref(mine)))
	if !cmp.Equal(got, mine) {
		t.Error("the object has changed")
	}
}

func (k objectKind[T]) testEveryone(t *testing.T, s caisson.Store) {
	ctx, all := t.Context(), caisson.AllAccounts()
	only := k.insert(t, s, "a", "only")[0]
	k.insert(t, s, "a", "both")
	k.insert(t, s, "b", "both")
	if got := get[*T](t)(k.table(s).Get(ctx, all, "only")); !cmp.Equal(got, only) {
		t.Errorf("got another object: %+v", got)
	}
	get[*T](t)(k.table(s).Update(ctx, all, k.ref(only), func(o *T) error { *k.textField(o) = "x"; return nil }))
	_, err := k.table(s).Get(ctx, all, "both")
	wantKind(t, err, caisson.Conflict)
	wantKind(t, k.table(s).Delete(ctx, all, "both"), caisson.Conflict)
	must(t, k.table(s).Delete(ctx, caisson.In("a"), "both"))
	must(t, k.table(s).Delete(ctx, all, "both"))
	page, _, err := k.table(s).List(ctx, all, caisson.Filter{})
	must(t, err)
	if got := k.names(page); !slices.Equal(got, []string{"only"}) {
		t.Errorf("left: %q", got)
	}
}

func (k objectKind[T]) testList(t *testing.T, s caisson.Store) {
	names := []string{"m", "z", "a", "k"}
	k.insert(t, s, "a", names...)
	k.insert(t, s, "b", "a", "other")
	if k.named {
		slices.Sort(names)
	}
	page, more, err := k.table(s).List(t.Context(), caisson.In("a"), caisson.Filter{})
	must(t, err)
	if got := k.names(page); more || !slices.Equal(got, names) {
		t.Errorf("listed %q (more: %v), want %q", got, more, names)
	}
	page, more, err = k.table(s).List(t.Context(), caisson.In("a"), caisson.Filter{Name: "z"})
	must(t, err)
	if got := k.names(page); more || !slices.Equal(got, []string{"z"}) {
		t.Errorf("listed %q by name", got)
	}
	for _, limit := range []int{-1, 1001} {
		_, _, err := k.table(s).List(t.Context(), caisson.In("a"), caisson.Filter{Limit: limit})
		wantKind(t, err, caisson.Invalid)
	}
}

// pages lists all objects, limit at a time, and calls between after each page but the last.
func (k objectKind[T]) pages(t *testing.T, s caisson.Store, in caisson.Scope, f caisson.Filter, between func(page []*T)) []*T {
	t.Helper()
	var all []*T
	for range 1000 {
		page, more, err := k.table(s).List(t.Context(), in, f)
		must(t, err)
		all = append(all, page...)
		if !more {
			return all
		}
		if len(page) == 0 {
			t.Fatal("an empty page, and more behind it")
		}
		f.After = k.pageToken(page[len(page)-1])
		if between != nil {
			between(page)
		}
	}
	t.Fatal("paging does not end")
	return nil
}

func (k objectKind[T]) testPaging(t *testing.T, s caisson.Store) {
	var names []string
	for i := range 105 {
		names = append(names, fmt.Sprintf("n%03d", i))
	}
	k.insert(t, s, "a", names...)
	k.insert(t, s, "b", names[:10]...)
	for _, limit := range []int{1, 7, 35, 104, 105, 106, 1000} {
		all := k.pages(t, s, caisson.In("a"), caisson.Filter{Limit: limit}, nil)
		if got := k.names(all); !slices.Equal(got, names) {
			t.Errorf("pages of %d: %q", limit, got)
		}
		all = k.pages(t, s, caisson.AllAccounts(), caisson.Filter{Limit: limit}, nil)
		if len(all) != 115 {
			t.Errorf("pages of %d of every account: %d objects", limit, len(all))
		}
	}
	page, more, err := k.table(s).List(t.Context(), caisson.In("a"), caisson.Filter{})
	must(t, err)
	if len(page) != 100 || !more {
		t.Errorf("a page is %d long by default (more: %v)", len(page), more)
	}
}

func (k objectKind[T]) testPagingWithChanges(t *testing.T, s caisson.Store) {
	k.insert(t, s, "a", "b1", "b2", "b3", "b4", "b5", "b6")
	n := 0
	all := k.pages(t, s, caisson.In("a"), caisson.Filter{Limit: 2}, func(page []*T) {
		n++
		// The last object of the page is deleted, another one on it changes, and a new one is added at the end.
		must(t, k.table(s).Delete(t.Context(), caisson.In("a"), k.ref(page[1])))
		get[*T](t)(k.table(s).Update(t.Context(), caisson.In("a"), k.ref(page[0]), func(o *T) error { *k.textField(o) = "x"; return nil }))
		if n == 1 {
			k.insert(t, s, "a", "b7")
		}
	})
	if got, want := k.names(all), []string{"b1", "b2", "b3", "b4", "b5", "b6", "b7"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	if !k.named {
		_, _, err := k.table(s).List(t.Context(), caisson.In("a"), caisson.Filter{After: "sb-neverexistedabc"})
		wantKind(t, err, caisson.Invalid)
	}
}

func (k objectKind[T]) testLabels(t *testing.T, s caisson.Store) {
	if k.labels == nil {
		k.insert(t, s, "a", "one")
		if all := k.pages(t, s, caisson.In("a"), caisson.Filter{Labels: map[string]string{"a": "1"}}, nil); len(all) != 0 {
			t.Error("an object without labels matches one")
		}
		return
	}
	odd := `a."b'c\$[*] ☃`
	for i := range 20 {
		obj := k.make("a", fmt.Sprintf("n%02d", i))
		*k.labels(obj) = map[string]string{"even": fmt.Sprint(i%2 == 0), "third": fmt.Sprint(i % 3), odd: odd, "<&>": ""}
		must(t, k.table(s).Insert(t.Context(), obj))
	}
	k.insert(t, s, "a", "without")
	for _, c := range []struct {
		labels map[string]string
		want   int
	}{
		{map[string]string{"even": "true"}, 10},
		{map[string]string{"even": "true", "third": "0"}, 4},
		{map[string]string{odd: odd}, 20},
		{map[string]string{"<&>": ""}, 20},
		{map[string]string{"missing": ""}, 0},
		{map[string]string{"third": "00"}, 0},
		{map[string]string{"even": "TRUE"}, 0},
	} {
		for _, limit := range []int{1, 3, 100} {
			all := k.pages(t, s, caisson.In("a"), caisson.Filter{Labels: c.labels, Limit: limit}, nil)
			if len(all) != c.want {
				t.Errorf("%v in pages of %d: %d objects, want %d", c.labels, limit, len(all), c.want)
			}
		}
	}
}

func testStates(t *testing.T, s caisson.Store) {
	k := sandboxKind()
	for i, state := range append(caisson.States(), caisson.States()...) {
		box := k.make("a", fmt.Sprint(i))
		box.State = state
		must(t, s.Sandboxes().Insert(t.Context(), box))
	}
	all := k.pages(t, s, caisson.In("a"), caisson.Filter{States: []caisson.State{caisson.Running, caisson.Paused}, Limit: 1}, nil)
	if len(all) != 4 {
		t.Errorf("%d sandboxes are running or paused, want 4", len(all))
	}
	for _, box := range all {
		get[*caisson.Sandbox](t)(s.Sandboxes().Update(t.Context(), caisson.In("a"), string(box.ID), func(b *caisson.Sandbox) error {
			b.State = caisson.Stopped
			return nil
		}))
	}
	all = k.pages(t, s, caisson.AllAccounts(), caisson.Filter{States: []caisson.State{caisson.Stopped}}, nil)
	if len(all) != 6 {
		t.Errorf("%d sandboxes are stopped, want 6", len(all))
	}
}

func testSandboxNames(t *testing.T, s caisson.Store) {
	k, ctx, in := sandboxKind(), t.Context(), caisson.In("a")
	k.insert(t, s, "a", "", "", "") // Objects without a name do not conflict.
	boxes := k.insert(t, s, "a", "one", "two")
	rename := func(name string) func(*caisson.Sandbox) error {
		return func(b *caisson.Sandbox) error { b.Name = name; return nil }
	}
	_, err := s.Sandboxes().Update(ctx, in, "one", rename("two"))
	wantKind(t, err, caisson.Conflict)
	get[*caisson.Sandbox](t)(s.Sandboxes().Update(ctx, in, "one", rename("three")))
	_, err = s.Sandboxes().Get(ctx, in, "one")
	wantKind(t, err, caisson.NotFound)
	get[*caisson.Sandbox](t)(s.Sandboxes().Update(ctx, in, "two", rename("")))
	k.insert(t, s, "a", "one", "two")
	// A name that equals another sandbox's ID does not hide that sandbox.
	k.insert(t, s, "a", string(boxes[0].ID))
	if got := get[*caisson.Sandbox](t)(s.Sandboxes().Get(ctx, in, string(boxes[0].ID))); got.Name != "three" {
		t.Errorf("an id found the sandbox that has it as its name")
	}
}
