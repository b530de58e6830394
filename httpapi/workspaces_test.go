package httpapi_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/poll"
)

// withWorkspace makes a sandbox with a workspace of a new directory in which one change waits.
func withWorkspace(t *testing.T, c *client.Client) (dir string, sb *caisson.Sandbox) {
	t.Helper()
	dir = mountable(t, "file")
	sb, err := c.Create(t.Context(), caisson.CreateRequest{Workspace: &caisson.WorkspaceRequest{Source: dir}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteFile(t.Context(), string(sb.ID), "/workspace/new", 0, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	return dir, sb
}

func open(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// leading returns the number of descriptors of this process that are open on a directory.
func leading(t *testing.T, dir string) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == dir {
			n++
		}
	}
	return n
}

// TestWorkspaceDirectory: the workspace's descriptor comes after those of mounts, and nothing of it stays open.
func TestWorkspaceDirectory(t *testing.T) {
	s := serve(t)
	c := s.local(t, "")
	mount, dir := mountable(t, "mounted"), mountable(t, "worked on")
	sb, err := c.Create(t.Context(), caisson.CreateRequest{
		Mounts: []caisson.Mount{{Source: mount, Target: "/m"}}, Workspace: &caisson.WorkspaceRequest{Source: dir, Target: "/src"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StatFile(t.Context(), string(sb.ID), "/src/worked on"); err != nil {
		t.Error(err)
	}
	w, err := c.GetWorkspace(t.Context(), string(sb.ID))
	if err != nil || w.Source != dir || w.HostPath != "" {
		t.Errorf("%+v, %v", w, err)
	}
	_, err = c.Create(t.Context(), caisson.CreateRequest{Workspace: &caisson.WorkspaceRequest{Source: filepath.Join(dir, "worked on")}})
	apitest.Fails(t, err, caisson.Invalid, "")
	remote := s.remote(t, caisson.LocalAccount)
	for _, d := range []caisson.Handle{nil, open(t, dir)} {
		_, err = remote.Create(t.Context(), caisson.CreateRequest{Workspace: &caisson.WorkspaceRequest{Source: dir, Directory: d}})
		apitest.Fails(t, err, caisson.Denied, "")
	}
	post := func(body string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, s.url+protocol.Prefix+"/sandboxes", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_, secret, err := c.CreateToken(t.Context(), caisson.LocalAccount, "t", 0)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret.Reveal())
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	if status, body := post(`{"workspace":{"source":"/etc"}}`); status != http.StatusForbidden {
		t.Errorf("a token names a host directory: %d %s", status, body)
	}
	if status, body := post(`{"workspace":{"source":"/etc","kind":"raw"}}`); status != http.StatusBadRequest {
		t.Errorf("an unknown kind: %d %s", status, body)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := c.Remove(t.Context(), string(sb.ID)); err != nil {
		t.Error(err)
	}
	// Jobs of the workspace may end after its removal.
	poll.Until(t, apitest.Timeout, func() bool { return leading(t, mount)+leading(t, dir) == 0 })
}

// TestWorkspacesNeedTheDirectory: only who can open the directory, over the unix socket, changes it; looking is for the account.
func TestWorkspacesNeedTheDirectory(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := s.local(t, "")
	dir, sb := withWorkspace(t, c)
	ref := string(sb.ID)
	remote := s.remote(t, caisson.LocalAccount)
	if d, err := remote.Diff(t.Context(), ref, caisson.DiffRequest{}); err != nil || len(d.Changes) != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	for _, d := range []caisson.Handle{nil, open(t, dir)} {
		_, err := remote.Sync(t.Context(), ref, caisson.SyncRequest{Auto: true, Directory: d})
		apitest.Fails(t, err, caisson.Denied, "")
	}
	_, err := c.Sync(t.Context(), ref, caisson.SyncRequest{Auto: true})
	apitest.Fails(t, err, caisson.Invalid, "directory")
	r, err := c.Sync(t.Context(), ref, caisson.SyncRequest{Auto: true, Directory: open(t, dir)})
	if err != nil || len(r.Entries) != 1 {
		t.Fatal(r, err)
	}
	_, err = remote.Undo(t.Context(), r.ID, nil)
	apitest.Fails(t, err, caisson.Denied, "")

	// Of another account's there is nothing to see.
	for _, other := range []*client.Client{s.local(t, "mallory"), s.remote(t, "mallory")} {
		_, err := other.Diff(t.Context(), ref, caisson.DiffRequest{})
		apitest.Fails(t, err, caisson.NotFound, "")
		_, err = other.GetReceipt(t.Context(), r.ID)
		apitest.Fails(t, err, caisson.NotFound, "")
		if list, _, err := other.ListReceipts(t.Context(), caisson.WorkspaceFilter{}); len(list) > 0 || err != nil {
			t.Error(list, err)
		}
		if list, _, err := other.ListWorkspaces(t.Context(), caisson.WorkspaceFilter{}); len(list) > 0 || err != nil {
			t.Error(list, err)
		}
	}
	_, err = s.local(t, "mallory").Sync(t.Context(), ref, caisson.SyncRequest{Auto: true, Directory: open(t, dir)})
	apitest.Fails(t, err, caisson.NotFound, "")
	_, err = s.local(t, "mallory").Undo(t.Context(), r.ID, open(t, dir))
	apitest.Fails(t, err, caisson.NotFound, "")

	_, err = c.Undo(t.Context(), "no-id", open(t, dir))
	apitest.Fails(t, err, caisson.NotFound, "")
	_, _, err = c.ListReceipts(t.Context(), caisson.WorkspaceFilter{Workspace: "../x"})
	apitest.Fails(t, err, caisson.Invalid, "workspace")
	_, _, err = c.ListWorkspaces(t.Context(), caisson.WorkspaceFilter{States: []caisson.WorkspaceState{"gone"}})
	if caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("an unknown state: %v", err)
	}
}

// TestSyncOnce: a sync that is repeated with its key is done once.
func TestSyncOnce(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := s.local(t, "")
	dir, sb := withWorkspace(t, c)
	ctx := client.WithIdempotencyKey(t.Context(), "k")
	var ids []caisson.ID
	for range 2 {
		r, err := c.Sync(ctx, string(sb.ID), caisson.SyncRequest{Auto: true, Directory: open(t, dir)})
		if err != nil || len(r.Entries) != 1 {
			t.Fatal(r, err)
		}
		ids = append(ids, r.ID)
	}
	if list, _, err := c.ListReceipts(t.Context(), caisson.WorkspaceFilter{}); len(list) != 1 || ids[0] != ids[1] || err != nil {
		t.Errorf("%v: %d receipts, %v", ids, len(list), err)
	}
	_, err := c.Sync(ctx, string(sb.ID), caisson.SyncRequest{Auto: true, Only: []string{"x"}, Directory: open(t, dir)})
	apitest.Fails(t, err, caisson.Invalid, protocol.IdempotencyHeader)
}

// bareWorkspaces answer with nothing in their lists.
type bareWorkspaces struct{ caisson.Workspaces }

func (bareWorkspaces) Diff(context.Context, string, caisson.DiffRequest) (*caisson.Diff, error) {
	return &caisson.Diff{Workspace: &caisson.Workspace{}}, nil
}

func (bareWorkspaces) GetReceipt(context.Context, caisson.ID) (*caisson.SyncReceipt, error) {
	return &caisson.SyncReceipt{}, nil
}

// TestWorkspaceAnswers: empty lists are [].
func TestWorkspaceAnswers(t *testing.T) {
	c := serve(t, func(cfg *httpapi.Config) { cfg.Workspaces = bareWorkspaces{} }).local(t, "")
	if d, err := c.Diff(t.Context(), "x", caisson.DiffRequest{}); err != nil || d.Changes == nil {
		t.Errorf("%+v, %v", d, err)
	}
	if r, err := c.GetReceipt(t.Context(), caisson.NewID(caisson.ReceiptPrefix)); err != nil || r.Checks == nil || r.Entries == nil {
		t.Errorf("%+v, %v", r, err)
	}
}
