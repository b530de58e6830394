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

func testWorkspaces(t *testing.T, open Opener) {
	for name, test := range map[string]func(*testing.T, caisson.WorkspaceStore){
		"RoundTrip": testWorkspaceRoundTrip, "Refs": testWorkspaceRefs, "Scopes": testWorkspaceScopes, "List": testWorkspaceList,
		"Update": testWorkspaceUpdate, "Receipts": testReceipts, "ReceiptList": testReceiptList, "Delete": testWorkspaceDelete,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t).Workspaces()) })
	}
}

// workspace returns a workspace in which every field has a value.
func workspace(account string) *caisson.Workspace {
	return &caisson.Workspace{
		ID: caisson.NewID(caisson.WorkspacePrefix), Account: account, Kind: caisson.WorkspaceOverlay, Mode: caisson.SyncYolo,
		State: caisson.WorkspaceLive, Source: "~/p", Target: "/workspace", Sandbox: caisson.NewID(caisson.SandboxPrefix),
		Run: caisson.NewID(caisson.RunPrefix), Agent: "shell", HostPath: "/home/ü/<p>", Device: 1<<64 - 1, Inode: 1<<63 + 1, UID: 1000, GID: 1 << 31,
		Files: 1 << 40, Hidden: []string{".env", "a/\u202eb"}, HiddenCount: 2, Changes: 3, Warning: "w",
		CreatedAt: noon(), EndedAt: noon().Add(time.Hour), SyncedAt: noon().Add(time.Minute),
	}
}

func receipt(w *caisson.Workspace) *caisson.SyncReceipt {
	return &caisson.SyncReceipt{
		ID: caisson.NewID(caisson.ReceiptPrefix), Account: w.Account, Workspace: w.ID, Sandbox: w.Sandbox, Run: w.Run, By: "local",
		Mode: w.Mode, State: caisson.ReceiptUndone, At: noon(), UndoneAt: noon().Add(time.Hour), Checks: []string{"path"},
		Entries: []caisson.ReceiptEntry{{Path: "a", Kind: caisson.ChangeModified, Before: "x", After: "y", Merged: true}}, Waiting: 7,
	}
}

func putWorkspace(t *testing.T, s caisson.WorkspaceStore, account string) *caisson.Workspace {
	t.Helper()
	w := workspace(account)
	must(t, s.Insert(t.Context(), w))
	return w
}

func testWorkspaceRoundTrip(t *testing.T, s caisson.WorkspaceStore) {
	want := workspace("a")
	must(t, s.Insert(t.Context(), want))
	if diff := cmp.Diff(want, get[*caisson.Workspace](t)(s.Get(t.Context(), caisson.In("a"), string(want.ID)))); diff != "" {
		t.Errorf("the workspace came back changed (-want +got):\n%s", diff)
	}
	wantKind(t, s.Insert(t.Context(), want), caisson.Conflict)
	wantKind(t, s.Insert(t.Context(), &caisson.Workspace{Account: "a"}), caisson.Internal)
	wantKind(t, s.Insert(t.Context(), &caisson.Workspace{ID: "ws-1"}), caisson.Internal)
}

// testWorkspaceRefs tests that a sandbox or run refers to its newest workspace, and that workspaces without them are
// not found by "".
func testWorkspaceRefs(t *testing.T, s caisson.WorkspaceStore) {
	old, now, none := putWorkspace(t, s, "a"), workspace("a"), workspace("a")
	now.Sandbox, now.Run = old.Sandbox, old.Run
	none.Sandbox, none.Run = "", ""
	must(t, s.Insert(t.Context(), now))
	must(t, s.Insert(t.Context(), none))
	for _, ref := range []caisson.ID{now.ID, now.Sandbox, now.Run} {
		if got := get[*caisson.Workspace](t)(s.Get(t.Context(), caisson.In("a"), string(ref))); got.ID != now.ID {
			t.Errorf("%s stands for %s, want %s", ref, got.ID, now.ID)
		}
	}
	for _, ref := range []string{"", "x", "%", string(caisson.NewID(caisson.SandboxPrefix))} {
		_, err := s.Get(t.Context(), caisson.In("a"), ref)
		wantKind(t, err, caisson.NotFound)
	}
}

func testWorkspaceScopes(t *testing.T, s caisson.WorkspaceStore) {
	ctx, w := t.Context(), putWorkspace(t, s, "a")
	r := receipt(w)
	must(t, s.InsertReceipt(ctx, r))
	for _, in := range []caisson.Scope{caisson.In("b"), caisson.In("")} {
		for _, ref := range []caisson.ID{w.ID, w.Sandbox, w.Run} {
			_, err := s.Get(ctx, in, string(ref))
			wantKind(t, err, caisson.NotFound)
		}
		_, err := s.Update(ctx, in, w.ID, func(*caisson.Workspace) error { t.Error("changed"); return nil })
		wantKind(t, err, caisson.NotFound)
		wantKind(t, s.Delete(ctx, in, w.ID), caisson.NotFound)
		_, err = s.GetReceipt(ctx, in, r.ID)
		wantKind(t, err, caisson.NotFound)
		_, err = s.UpdateReceipt(ctx, in, r.ID, func(*caisson.SyncReceipt) error { t.Error("changed"); return nil })
		wantKind(t, err, caisson.NotFound)
		if page, more, err := s.List(ctx, in, caisson.WorkspaceFilter{}); err != nil || more || len(page) != 0 {
			t.Errorf("%d workspaces of somebody else's are listed, %v", len(page), err)
		}
		if page, more, err := s.ListReceipts(ctx, in, caisson.WorkspaceFilter{}); err != nil || more || len(page) != 0 {
			t.Errorf("%d receipts of somebody else's are listed, %v", len(page), err)
		}
		_, _, err = s.List(ctx, in, caisson.WorkspaceFilter{Before: w.ID})
		wantKind(t, err, caisson.Invalid)
	}
	get[*caisson.Workspace](t)(s.Get(ctx, caisson.AllAccounts(), string(w.ID)))
}

func testWorkspaceList(t *testing.T, s caisson.WorkspaceStore) {
	ctx, in := t.Context(), caisson.In("a")
	var all []caisson.ID
	for i := range 5 {
		w := workspace("a")
		if i == 1 {
			w.State = caisson.WorkspaceDetached
		}
		must(t, s.Insert(ctx, w))
		all = append([]caisson.ID{w.ID}, all...)
	}
	putWorkspace(t, s, "b")
	list := func(f caisson.WorkspaceFilter) (ids []caisson.ID, more bool) {
		t.Helper()
		page, more, err := s.List(ctx, in, f)
		must(t, err)
		for _, w := range page {
			ids = append(ids, w.ID)
		}
		return ids, more
	}
	second := get[*caisson.Workspace](t)(s.Get(ctx, in, string(all[3])))
	for name, tt := range map[string]struct {
		f    caisson.WorkspaceFilter
		want []caisson.ID
		more bool
	}{
		"all":     {caisson.WorkspaceFilter{}, all, false},
		"first":   {caisson.WorkspaceFilter{Limit: 2}, all[:2], true},
		"second":  {caisson.WorkspaceFilter{Limit: 2, Before: all[1]}, all[2:4], true},
		"last":    {caisson.WorkspaceFilter{Limit: 2, Before: all[3]}, all[4:], false},
		"states":  {caisson.WorkspaceFilter{States: []caisson.WorkspaceState{caisson.WorkspaceDetached, caisson.WorkspaceSettled}}, all[3:4], false},
		"sandbox": {caisson.WorkspaceFilter{Sandbox: second.Sandbox}, all[3:4], false},
		"run":     {caisson.WorkspaceFilter{Run: second.Run}, all[3:4], false},
		"neither": {caisson.WorkspaceFilter{Run: second.ID}, nil, false},
	} {
		if got, more := list(tt.f); !slices.Equal(got, tt.want) || more != tt.more {
			t.Errorf("%s: %v %v, want %v %v", name, got, more, tt.want, tt.more)
		}
	}
	for _, f := range []caisson.WorkspaceFilter{{Limit: -1}, {Limit: 1001}, {Before: "ws-x"}} {
		_, _, err := s.List(ctx, in, f)
		wantKind(t, err, caisson.Invalid)
	}
}

func testWorkspaceUpdate(t *testing.T, s caisson.WorkspaceStore) {
	ctx, in, w := t.Context(), caisson.In("a"), putWorkspace(t, s, "a")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := s.Update(ctx, in, w.ID, func(w *caisson.Workspace) error { w.Changes++; return nil })
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := get[*caisson.Workspace](t)(s.Update(ctx, in, w.ID, func(w *caisson.Workspace) error {
		w.State, w.Run, w.Inode = caisson.WorkspaceSettled, "rn-2", 9
		return nil
	}))
	if diff := cmp.Diff(got, get[*caisson.Workspace](t)(s.Get(ctx, in, "rn-2"))); diff != "" || got.Changes != 23 || got.Inode != 9 {
		t.Errorf("what was stored is not what was said (%d changes):\n%s", got.Changes, diff)
	}
	if page, _, err := s.List(ctx, in, caisson.WorkspaceFilter{States: []caisson.WorkspaceState{caisson.WorkspaceSettled}}); err != nil || len(page) != 1 {
		t.Errorf("%d workspaces are settled, %v", len(page), err)
	}
	no := errors.New("no")
	if _, err := s.Update(ctx, in, w.ID, func(w *caisson.Workspace) error { w.Changes = 0; return no }); err != no {
		t.Errorf("what change returned came back as %v", err)
	}
	for _, change := range []func(*caisson.Workspace){func(w *caisson.Workspace) { w.ID = "ws-2" }, func(w *caisson.Workspace) { w.Account = "b" }} {
		_, err := s.Update(ctx, in, w.ID, func(w *caisson.Workspace) error { change(w); return nil })
		wantKind(t, err, caisson.Internal)
	}
	if got := get[*caisson.Workspace](t)(s.Get(ctx, in, string(w.ID))); got.Changes != 23 {
		t.Errorf("an update that failed has changed something: %+v", got)
	}
	_, err := s.Update(ctx, in, w.Sandbox, func(*caisson.Workspace) error { return nil })
	wantKind(t, err, caisson.NotFound) // Only by its own ID.
}

func testReceipts(t *testing.T, s caisson.WorkspaceStore) {
	ctx, in, w := t.Context(), caisson.In("a"), putWorkspace(t, s, "a")
	want := receipt(w)
	must(t, s.InsertReceipt(ctx, want))
	if diff := cmp.Diff(want, get[*caisson.SyncReceipt](t)(s.GetReceipt(ctx, in, want.ID))); diff != "" {
		t.Errorf("the receipt came back changed (-want +got):\n%s", diff)
	}
	wantKind(t, s.InsertReceipt(ctx, want), caisson.Conflict)
	lost := receipt(workspace("a"))
	wantKind(t, s.InsertReceipt(ctx, lost), caisson.NotFound)
	wantKind(t, s.InsertReceipt(ctx, &caisson.SyncReceipt{Workspace: w.ID}), caisson.Internal)

	got := get[*caisson.SyncReceipt](t)(s.UpdateReceipt(ctx, in, want.ID, func(r *caisson.SyncReceipt) error { r.State = caisson.ReceiptApplied; return nil }))
	if stored := get[*caisson.SyncReceipt](t)(s.GetReceipt(ctx, in, want.ID)); stored.State != caisson.ReceiptApplied || cmp.Diff(got, stored) != "" {
		t.Errorf("after an update: %+v", stored)
	}
	no := errors.New("no")
	if _, err := s.UpdateReceipt(ctx, in, want.ID, func(r *caisson.SyncReceipt) error { return no }); err != no {
		t.Errorf("what change returned came back as %v", err)
	}
	_, err := s.UpdateReceipt(ctx, in, want.ID, func(r *caisson.SyncReceipt) error { r.Workspace = "ws-2"; return nil })
	wantKind(t, err, caisson.Internal)
	_, err = s.GetReceipt(ctx, in, "rc-x")
	wantKind(t, err, caisson.NotFound)
}

func testReceiptList(t *testing.T, s caisson.WorkspaceStore) {
	ctx, in := t.Context(), caisson.In("a")
	one, two := putWorkspace(t, s, "a"), putWorkspace(t, s, "a")
	var all []caisson.ID
	for _, w := range []*caisson.Workspace{one, two, one} {
		r := receipt(w)
		must(t, s.InsertReceipt(ctx, r))
		all = append([]caisson.ID{r.ID}, all...)
	}
	for name, tt := range map[string]struct {
		f    caisson.WorkspaceFilter
		want []caisson.ID
		more bool
	}{
		"all":       {caisson.WorkspaceFilter{}, all, false},
		"first":     {caisson.WorkspaceFilter{Limit: 1}, all[:1], true},
		"later":     {caisson.WorkspaceFilter{Before: all[0]}, all[1:], false},
		"workspace": {caisson.WorkspaceFilter{Workspace: one.ID}, []caisson.ID{all[0], all[2]}, false},
		"sandbox":   {caisson.WorkspaceFilter{Sandbox: two.Sandbox}, all[1:2], false},
		"run":       {caisson.WorkspaceFilter{Run: two.Run}, all[1:2], false},
	} {
		page, more, err := s.ListReceipts(ctx, in, tt.f)
		must(t, err)
		var got []caisson.ID
		for _, r := range page {
			got = append(got, r.ID)
		}
		if !slices.Equal(got, tt.want) || more != tt.more {
			t.Errorf("%s: %v %v, want %v %v", name, got, more, tt.want, tt.more)
		}
	}
	_, _, err := s.ListReceipts(ctx, in, caisson.WorkspaceFilter{Before: "rc-x"})
	wantKind(t, err, caisson.Invalid)
}

// testWorkspaceDelete tests that deleting a workspace deletes its receipts and no others.
func testWorkspaceDelete(t *testing.T, s caisson.WorkspaceStore) {
	ctx, in := t.Context(), caisson.In("a")
	gone, stays := putWorkspace(t, s, "a"), putWorkspace(t, s, "a")
	r1, r2 := receipt(gone), receipt(stays)
	must(t, s.InsertReceipt(ctx, r1))
	must(t, s.InsertReceipt(ctx, r2))
	wantKind(t, s.Delete(ctx, in, gone.Sandbox), caisson.NotFound) // Only by its own ID.
	must(t, s.Delete(ctx, in, gone.ID))
	wantKind(t, s.Delete(ctx, in, gone.ID), caisson.NotFound)
	_, err := s.Get(ctx, in, string(gone.Sandbox))
	wantKind(t, err, caisson.NotFound)
	_, err = s.GetReceipt(ctx, in, r1.ID)
	wantKind(t, err, caisson.NotFound)
	get[*caisson.SyncReceipt](t)(s.GetReceipt(ctx, in, r2.ID))
}
