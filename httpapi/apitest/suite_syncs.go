package apitest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/caisson-dev/caisson"
)

// makeReview makes a review of the changes of a workspace. It returns the id of the review and a map from the path of each change
// to the selection with which a sync applies the change.
func makeReview(t *testing.T, ctx context.Context, c Cores, ref string) (caisson.ID, map[string]caisson.Selection) {
	t.Helper()
	d := must(c.Workspaces.Diff(ctx, ref, caisson.DiffRequest{Patch: true, Freeze: true}))(t)
	if d.Review == "" {
		t.Fatal("nothing was kept")
	}
	out := map[string]caisson.Selection{}
	for _, ch := range d.Changes {
		out[ch.Path] = caisson.Selection{Path: ch.Path, Hash: ch.Hash}
	}
	return d.Review, out
}

// secretFile is the content of a file in which the checks find a secret.
const secretFile = "id: AKIAQ3EGRTZPMK5VWXYA\n"

func testSyncs(t *testing.T, ctx context.Context, c Cores) {
	dir := hostDir(t, map[string]string{"edit": lines(20), "gone": "gone\n", "old": "moves\n"})
	sb := createWithWorkspace(t, ctx, c, dir)
	ref := string(sb.ID)
	edited := strings.Replace(lines(20), "xx\n", "changed\n", 1) + "one more"
	writeFiles(t, ctx, c, sb, map[string]string{"edit": edited, "gone": "", "new": "new\n", "key": secretFile, ".git/config": "x\n"})
	succeeds(t, c.Files.MoveFile(ctx, ref, "/workspace/old", "/workspace/moved"))
	review, is := makeReview(t, ctx, c, ref)
	sync := func(req caisson.SyncRequest) (*caisson.SyncReceipt, error) {
		req.Directory = openDir(t, dir)
		return c.Workspaces.Sync(ctx, ref, req)
	}
	forged := is["new"]
	forged.Hash = is["edit"].Hash
	other := hostDir(t, nil)
	for name, tt := range map[string]struct {
		req   caisson.SyncRequest
		kind  caisson.Kind
		field string
	}{
		"nothing reviewed": {caisson.SyncRequest{Apply: []caisson.Selection{is["new"]}}, caisson.Invalid, "review"},
		"unknown review":   {caisson.SyncRequest{Review: caisson.NewID(caisson.ReviewPrefix), Apply: []caisson.Selection{is["new"]}}, caisson.Conflict, ""},
		"other content":    {caisson.SyncRequest{Review: review, Apply: []caisson.Selection{is["edit"], forged}}, caisson.Conflict, ""},
		"denied":           {caisson.SyncRequest{Review: review, Apply: []caisson.Selection{is["edit"], is[".git/config"]}, Confirmed: true}, caisson.Denied, ""},
		"nobody was asked": {caisson.SyncRequest{Review: review, Apply: []caisson.Selection{is["edit"], is["key"]}}, caisson.Denied, ""},
		"nothing at all":   {caisson.SyncRequest{Review: review}, caisson.Invalid, "apply"},
		"review and auto":  {caisson.SyncRequest{Review: review, Auto: true}, caisson.Invalid, "auto"},
		"dropped too soon": {caisson.SyncRequest{Review: review, Apply: []caisson.Selection{is["edit"]}, Drop: []string{"new"}}, caisson.Conflict, ""},
	} {
		_, err := sync(tt.req)
		t.Log(name, err)
		Fails(t, err, tt.kind, tt.field)
	}
	_, err := c.Workspaces.Sync(ctx, ref, caisson.SyncRequest{Auto: true})
	if caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("without a directory: %v", err)
	}
	_, err = c.Workspaces.Sync(ctx, ref, caisson.SyncRequest{Auto: true, Directory: openDir(t, other)})
	Fails(t, err, caisson.Conflict, "")
	_, err = c.Workspaces.Sync(ctx, "no-such-workspace", caisson.SyncRequest{Auto: true, Directory: openDir(t, dir)})
	Fails(t, err, caisson.NotFound, "")
	checkHostFile(t, dir, "edit", lines(20)) // a sync that fails applies no change
	checkHostFile(t, dir, "new", "")

	// Apply one hunk of a file, and a change that needs a person's consent.
	part := is["edit"]
	part.Hunks = []int{1}
	first := must(sync(caisson.SyncRequest{Review: review, Apply: []caisson.Selection{part, is["key"]}, Confirmed: true}))(t)
	checkHostFile(t, dir, "edit", lines(20)+"one more")
	checkHostFile(t, dir, "key", secretFile)
	want := &caisson.SyncReceipt{
		Account: sb.Account, Workspace: sb.Spec.Workspace, Sandbox: sb.ID, By: "local", Mode: caisson.SyncSecure, State: caisson.ReceiptApplied,
		Entries: []caisson.ReceiptEntry{{Path: "edit", Kind: "modified"}, {Path: "key", Kind: "added"}}, Waiting: 6,
	}
	slices.SortFunc(first.Entries, func(a, b caisson.ReceiptEntry) int { return strings.Compare(a.Path, b.Path) })
	ignored := cmpopts.IgnoreFields(caisson.SyncReceipt{}, "ID", "At", "Checks")
	hashes := cmpopts.IgnoreFields(caisson.ReceiptEntry{}, "Before", "After", "Merged")
	if diff := cmp.Diff(want, first, ignored, hashes); diff != "" || !slices.Contains(first.Checks, "secret") {
		t.Errorf("%v %s", first.Checks, diff)
	}

	// Apply all other selected changes that pass the checks.
	second := must(sync(caisson.SyncRequest{Auto: true, Only: []string{"edit", "gone", "old", "moved"}}))(t)
	for name, content := range map[string]string{"edit": edited, "gone": "", "old": "", "moved": "moves\n", "new": "", ".git/config": ""} {
		checkHostFile(t, dir, name, content)
	}
	if len(second.Entries) != 4 || second.Waiting != 3 {
		t.Errorf("%+v", second)
	}
	if got := must(c.Workspaces.GetReceipt(ctx, second.ID))(t); !cmp.Equal(got, second) {
		t.Error(cmp.Diff(got, second))
	}
	page, more, err := c.Workspaces.ListReceipts(ctx, caisson.WorkspaceFilter{Workspace: sb.Spec.Workspace, Limit: 1})
	if err != nil || len(page) != 1 || !more || page[0].ID != second.ID {
		t.Errorf("%+v %t %v", page, more, err)
	}
	page, more, err = c.Workspaces.ListReceipts(ctx, caisson.WorkspaceFilter{Sandbox: sb.ID, Before: second.ID})
	if err != nil || len(page) != 1 || more || page[0].ID != first.ID {
		t.Errorf("%+v %t %v", page, more, err)
	}

	// A sync without changes leaves no receipt.
	if r := must(sync(caisson.SyncRequest{Auto: true, Only: []string{"nothing"}}))(t); r.ID != "" || len(r.Entries) > 0 || r.Waiting != 3 {
		t.Errorf("%+v", r)
	}

	// A sync can be undone once.
	undone := must(c.Workspaces.Undo(ctx, second.ID, openDir(t, dir)))(t)
	if undone.State != caisson.ReceiptUndone || undone.UndoneAt.IsZero() {
		t.Errorf("%+v", undone)
	}
	for name, content := range map[string]string{"edit": lines(20) + "one more", "gone": "gone\n", "old": "moves\n", "moved": ""} {
		checkHostFile(t, dir, name, content)
	}
	_, err = c.Workspaces.Undo(ctx, second.ID, openDir(t, dir))
	Fails(t, err, caisson.Conflict, "")
	succeeds(t, os.WriteFile(filepath.Join(dir, "key"), []byte("moved on\n"), 0o644))
	_, err = c.Workspaces.Undo(ctx, first.ID, openDir(t, dir))
	Fails(t, err, caisson.Conflict, "")
	checkHostFile(t, dir, "key", "moved on\n")
	if _, err = c.Workspaces.Undo(ctx, first.ID, nil); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("without a directory: %v", err)
	}
	_, err = c.Workspaces.Undo(ctx, caisson.NewID(caisson.ReceiptPrefix), openDir(t, dir))
	Fails(t, err, caisson.NotFound, "")

	// Changes can be dropped while the sandbox is stopped.
	must(c.Sandboxes.Stop(ctx, ref, 0))(t)
	review, _ = makeReview(t, ctx, c, ref)
	must(sync(caisson.SyncRequest{Review: review, Drop: []string{"new"}}))(t)
	if _, is := makeReview(t, ctx, c, ref); is["new"].Path != "" || is["gone"].Path == "" {
		t.Errorf("what is left after a drop: %v", is)
	}
}

func testConflicts(t *testing.T, ctx context.Context, c Cores) {
	dir := hostDir(t, map[string]string{"merges": lines(20), "clashes": "a\n", "same": "a\n", "late": "a\n"})
	sb := createWithWorkspace(t, ctx, c, dir)
	ref := string(sb.ID)
	writeFiles(t, ctx, c, sb, map[string]string{
		"merges": strings.Replace(lines(20), "xx\n", "sandbox\n", 1), "clashes": "sandbox\n", "same": "both\n", "late": "sandbox\n",
	})
	must(c.Workspaces.Diff(ctx, ref, caisson.DiffRequest{}))(t) // returns after the base for merges has been saved
	edit := func(name, content string) {
		t.Helper()
		succeeds(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	edit("merges", lines(20)+"host\n")
	edit("clashes", "host\n")
	edit("same", "both\n")
	d := must(c.Workspaces.Diff(ctx, ref, caisson.DiffRequest{Freeze: true, Patch: true}))(t)
	got := map[string]caisson.Change{}
	for _, ch := range d.Changes {
		got[ch.Path] = ch
	}
	if ch := got["merges"]; !ch.HostChanged || !ch.Merge || ch.Verdict != caisson.VerdictPass || strings.Contains(ch.Patch, "+host") {
		t.Errorf("%+v", ch)
	}
	if ch := got["clashes"]; !ch.HostChanged || ch.Merge || ch.Verdict != caisson.VerdictConflict || len(ch.Finding) != 1 {
		t.Errorf("%+v", ch)
	}
	if len(d.Changes) != 3 {
		t.Errorf("%d changes, want 3: what both have is none", len(d.Changes))
	}
	sync := func(req caisson.SyncRequest) (*caisson.SyncReceipt, error) {
		req.Directory = openDir(t, dir)
		return c.Workspaces.Sync(ctx, ref, req)
	}
	pick := func(name string) caisson.Selection { return caisson.Selection{Path: name, Hash: got[name].Hash} }
	_, err := sync(caisson.SyncRequest{Review: d.Review, Apply: []caisson.Selection{pick("clashes")}, Confirmed: true})
	Fails(t, err, caisson.Conflict, "")
	edit("late", "host\n")
	_, err = sync(caisson.SyncRequest{Review: d.Review, Apply: []caisson.Selection{pick("merges"), pick("late")}})
	Fails(t, err, caisson.Conflict, "")
	checkHostFile(t, dir, "merges", lines(20)+"host\n")
	r := must(sync(caisson.SyncRequest{Review: d.Review, Apply: []caisson.Selection{pick("merges")}}))(t)
	if len(r.Entries) != 1 || !r.Entries[0].Merged || r.Waiting != 2 {
		t.Errorf("%+v", r)
	}
	checkHostFile(t, dir, "merges", strings.Replace(lines(20), "xx\n", "sandbox\n", 1)+"host\n")
	checkHostFile(t, dir, "clashes", "host\n")
	checkHostFile(t, dir, "late", "host\n")
}
