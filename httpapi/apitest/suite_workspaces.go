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

// lines returns a text of n different lines.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat("x", i+1) + "\n")
	}
	return b.String()
}

// hostDir creates a directory with these files, given by path and content, and returns its path.
func hostDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, name)
		succeeds(t, os.MkdirAll(filepath.Dir(p), 0o755))
		succeeds(t, os.WriteFile(p, []byte(content), 0o644))
	}
	return dir
}

// openDir opens a directory for a request, as a client does.
func openDir(t *testing.T, dir string) caisson.Handle {
	t.Helper()
	return must(os.Open(dir))(t)
}

// createWithWorkspace creates a running sandbox with a workspace of dir. The functions change modify the request first.
func createWithWorkspace(t *testing.T, ctx context.Context, c Cores, dir string, change ...func(*caisson.WorkspaceRequest)) *caisson.Sandbox {
	t.Helper()
	req := caisson.WorkspaceRequest{Source: dir, Directory: openDir(t, dir)}
	for _, f := range change {
		f(&req)
	}
	return createSandbox(t, ctx, c, caisson.CreateRequest{Workspace: &req})
}

// writeFiles writes files to the workspace of a sandbox; a file with the content "" is removed.
func writeFiles(t *testing.T, ctx context.Context, c Cores, sb *caisson.Sandbox, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if content == "" {
			succeeds(t, c.Files.RemoveFile(ctx, string(sb.ID), "/workspace/"+name, true))
			continue
		}
		must(c.Files.WriteFile(ctx, string(sb.ID), "/workspace/"+name, 0, strings.NewReader(content)))(t)
	}
}

// checkHostFile checks the content of a file in the host directory; "" means that it must not exist.
func checkHostFile(t *testing.T, dir, name, want string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && want != "" || string(got) != want {
		t.Errorf("the host's %s is %q (%v), want %q", name, got, err, want)
	}
}

func testWorkspaces(t *testing.T, ctx context.Context, c Cores) {
	dir := hostDir(t, map[string]string{"a.txt": "a\n", ".env": "SECRET=1\n", "keys/tls.pem": "pem\n", "keys/show.pem": "pem\n"})
	sb := createWithWorkspace(t, ctx, c, dir, func(r *caisson.WorkspaceRequest) { r.Show = []string{"show.pem"} })
	w := must(c.Workspaces.GetWorkspace(ctx, string(sb.Spec.Workspace)))(t)
	want := &caisson.Workspace{
		ID: sb.Spec.Workspace, Account: sb.Account, Kind: caisson.WorkspaceOverlay, Mode: caisson.SyncSecure, State: caisson.WorkspaceLive,
		Source: dir, Target: "/workspace", Sandbox: sb.ID, Hidden: []string{".env", "keys/tls.pem"}, HiddenCount: 2,
	}
	ignored := cmpopts.IgnoreFields(caisson.Workspace{}, "HostPath", "Device", "Inode", "UID", "GID", "Files", "CreatedAt")
	if diff := cmp.Diff(want, w, ignored); diff != "" {
		t.Error(diff)
	}
	must(c.Files.StatFile(ctx, string(sb.ID), "/workspace/keys/show.pem"))(t)
	_, err := c.Files.StatFile(ctx, string(sb.ID), "/workspace/.env")
	Fails(t, err, caisson.NotFound, "")
	if got := must(c.Workspaces.GetWorkspace(ctx, string(sb.ID)))(t); got.ID != w.ID {
		t.Errorf("by its sandbox: %+v", got)
	}
	_, err = c.Workspaces.GetWorkspace(ctx, "ws-aaaaaaaaaaaaaaaa")
	Fails(t, err, caisson.NotFound, "")
	Fails(t, c.Workspaces.RemoveWorkspace(ctx, string(w.ID)), caisson.Conflict, "")

	second := createWithWorkspace(t, ctx, c, dir)
	third := createWithWorkspace(t, ctx, c, dir)
	writeFiles(t, ctx, c, second, map[string]string{"new": "new\n"}) // a workspace without changes is removed with its sandbox
	succeeds(t, c.Sandboxes.Remove(ctx, string(second.ID)))
	for _, tt := range []struct {
		f    caisson.WorkspaceFilter
		want []caisson.ID
	}{
		{caisson.WorkspaceFilter{}, []caisson.ID{third.Spec.Workspace, second.Spec.Workspace, w.ID}},
		{caisson.WorkspaceFilter{States: []caisson.WorkspaceState{caisson.WorkspaceDetached}}, []caisson.ID{second.Spec.Workspace}},
		{caisson.WorkspaceFilter{Sandbox: sb.ID}, []caisson.ID{w.ID}},
		{caisson.WorkspaceFilter{Run: caisson.NewID(caisson.RunPrefix)}, nil},
		{caisson.WorkspaceFilter{Before: second.Spec.Workspace}, []caisson.ID{w.ID}},
	} {
		var got []caisson.ID
		page, more, err := c.Workspaces.ListWorkspaces(ctx, tt.f)
		for _, w := range page {
			got = append(got, w.ID)
		}
		if err != nil || more || !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v, %t, %v; want %v", tt.f, got, more, err, tt.want)
		}
	}
	if page, more, err := c.Workspaces.ListWorkspaces(ctx, caisson.WorkspaceFilter{Limit: 2}); len(page) != 2 || !more || err != nil {
		t.Error(page, more, err)
	}
	succeeds(t, c.Workspaces.RemoveWorkspace(ctx, string(second.ID)))
	Fails(t, c.Workspaces.RemoveWorkspace(ctx, string(second.ID)), caisson.NotFound, "")

	direct := createWithWorkspace(t, ctx, c, dir, func(r *caisson.WorkspaceRequest) {
		r.Kind, r.Mode, r.Target = caisson.WorkspaceDirect, caisson.SyncUnsafe, "/src"
	})
	_, err = c.Workspaces.Diff(ctx, string(direct.ID), caisson.DiffRequest{})
	Fails(t, err, caisson.NotFound, "")
}

func testWorkspaceChanges(t *testing.T, ctx context.Context, c Cores) {
	dir := hostDir(t, map[string]string{"edit": lines(20), "gone": "gone\n", "old": "moves\n", "kept": "kept\n", "deep/er/a": "1\n"})
	sb := createWithWorkspace(t, ctx, c, dir)
	ref := string(sb.ID)
	d := must(c.Workspaces.Diff(ctx, ref, caisson.DiffRequest{}))(t)
	if len(d.Changes) > 0 || d.Review != "" || d.Workspace.ID != sb.Spec.Workspace {
		t.Errorf("before anything has changed: %+v", d)
	}
	writeFiles(t, ctx, c, sb, map[string]string{
		"edit": strings.Replace(lines(20), "xx\n", "changed\n", 1) + "one more", "gone": "", "new/file": "new\n", "key": "id: AKIAQ3EGRTZPMK5VWXYA\n",
		".git/hooks/x": "#!\n", "bin": "\x00\x01", "deep/er/a": "2\n", "esc\x1b[2J": "name\n",
	})
	succeeds(t, c.Files.MoveFile(ctx, ref, "/workspace/old", "/workspace/moved"))
	d = must(c.Workspaces.Diff(ctx, ref, caisson.DiffRequest{Patch: true}))(t)
	got := map[string]string{}
	patches := map[string]string{}
	for _, ch := range d.Changes {
		got[ch.Path] = ch.Kind + " " + ch.OldPath + " " + ch.OldType + ">" + ch.Type + " " + ch.Verdict
		patches[ch.Path] = ch.Patch
	}
	want := map[string]string{
		"edit": "modified  file>file pass", "gone": "removed  file>none pass", "moved": "renamed old file>file pass",
		"new": "added  none>dir pass", "new/file": "added  none>file pass", "key": "added  none>file ask", "bin": "added  none>file pass",
		".git": "added  none>dir deny", ".git/hooks": "added  none>dir deny", ".git/hooks/x": "added  none>file deny",
		"deep/er/a": "modified  file>file pass", "esc\x1b[2J": "added  none>file deny",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	wantPatch := "--- a/edit\n+++ b/edit\n@@ -1,5 +1,5 @@\n x\n-xx\n+changed\n xxx\n xxxx\n xxxxx\n" +
		"@@ -18,3 +18,4 @@\n " + strings.Repeat("x", 18) + "\n " + strings.Repeat("x", 19) + "\n " + strings.Repeat("x", 20) +
		"\n+one more\n\\ No newline at end of file\n"
	if diff := cmp.Diff(wantPatch, patches["edit"]); diff != "" {
		t.Error(diff)
	}
	if patches["bin"] != "" || !strings.HasPrefix(patches["new/file"], "--- /dev/null\n+++ b/new/file\n@@ -0,0 +1") {
		t.Errorf("patches %q", patches)
	}
	for pattern, want := range map[string]int{"edit": 1, "*": 12, "e*": 3, "deep": 1, "deep/**": 1, "**/a": 1, "er/a": 0, "hooks": 2, "nothing": 0} {
		d := must(c.Workspaces.Diff(ctx, ref, caisson.DiffRequest{Only: []string{pattern}}))(t)
		if len(d.Changes) != want || len(d.Changes) > 0 && d.Changes[0].Patch != "" {
			t.Errorf("only %s: %d changes, want %d", pattern, len(d.Changes), want)
		}
	}
	if w := must(c.Workspaces.GetWorkspace(ctx, ref))(t); w.Changes != len(want) {
		t.Errorf("%d changes wait, want %d", w.Changes, len(want))
	}
	_, err := c.Workspaces.Reset(ctx, ref)
	Fails(t, err, caisson.Conflict, "") // the sandbox of the workspace is running
	succeeds(t, c.Sandboxes.Remove(ctx, ref))
	if w := must(c.Workspaces.GetWorkspace(ctx, ref))(t); w.State != caisson.WorkspaceDetached || w.EndedAt.IsZero() {
		t.Errorf("when its sandbox is gone: %+v", w)
	}
	if w := must(c.Workspaces.Reset(ctx, ref))(t); w.Changes != 0 || w.State != caisson.WorkspaceSettled {
		t.Errorf("reset: %+v", w)
	}
	checkHostFile(t, dir, "edit", lines(20))
	succeeds(t, os.RemoveAll(dir))
	_, err = c.Workspaces.Diff(ctx, ref, caisson.DiffRequest{})
	Fails(t, err, caisson.Conflict, "")
	_, err = c.Workspaces.Diff(ctx, "nobody", caisson.DiffRequest{})
	Fails(t, err, caisson.NotFound, "")
}
