package sandboxes_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
)

// disk is the simulated free space of the host's disk.
type disk struct{ left atomic.Int64 }

func (d *disk) free() (caisson.Size, error) { return caisson.Size(d.left.Load()), nil }

// withDisk gives w a disk with that much free space and a reserve of 1 GiB.
func withDisk(w *world, left caisson.Size) *disk {
	d := &disk{}
	d.left.Store(int64(left))
	must(w.t, w.Close())
	w.config.Host.Free, w.config.Limits.DiskReserve = d.free, 1<<30
	w.boot()
	return d
}

// asks returns a request for a workspace over an empty directory.
func asks(t *testing.T) *caisson.WorkspaceRequest {
	t.Helper()
	req, _ := asking(t, t.TempDir())
	return req
}

// fill creates a file of that many bytes, all of them allocated on disk.
func fill(t *testing.T, name string, size int) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	_, err = f.Write(make([]byte, size))
	must(t, err)
	must(t, f.Close())
}

func (w *world) wantReason(id caisson.ID, state caisson.State, words string) {
	w.t.Helper()
	sb, err := w.store.Sandboxes().Get(w.t.Context(), caisson.AllAccounts(), string(id))
	must(w.t, err)
	if sb.State != state || !strings.Contains(sb.Reason, words) || words == "" && sb.Reason != "" {
		w.t.Errorf("the sandbox is %s, %q; want %s, %q", sb.State, sb.Reason, state, words)
	}
}

// TestPromise9WorkspaceOverLimit: the disk limit applies to a sandbox's changes in its workspace, and a sandbox that
// exceeds it but does not grow can delete files.
func TestPromise9WorkspaceOverLimit(t *testing.T) {
	t.Parallel()
	w, l := withLayers(t)
	limit := caisson.Resources{Disk: 64 << 20}
	sb := w.create(caisson.CreateRequest{Workspace: asks(t), Resources: limit})
	other := w.create(caisson.CreateRequest{Workspace: asks(t), Resources: limit})
	big := l.path(sb.Spec.Workspace, "upper/deep/er/big")
	w.Look(t.Context())
	fill(t, big, 60<<20)
	w.Look(t.Context())
	w.wantReason(sb.ID, caisson.Running, "")
	p := got(w.Processes().Exec(w.ctx(), string(sb.ID), caisson.ExecRequest{Command: command("sleep", "1h")}))(t)
	defer p.Close()
	fill(t, big, 8<<20)
	w.Look(t.Context())
	w.wantReason(sb.ID, caisson.Failed, "the changes in its workspace take 68MiB of at most 64MiB")
	if s := got(p.Wait(w.ctx()))(t); !s.Unknown || !strings.Contains(s.Reason, "the sandbox was ended: the changes in its workspace take 68MiB") {
		t.Errorf("what ran in it ended with %+v", s)
	}
	w.wantReason(other.ID, caisson.Running, "")
	if !slices.Contains(w.events(string(sb.ID)), "sandbox.failed") {
		t.Error("no event tells of it")
	}

	// A sandbox that exceeds the limit at its first check can delete files, as long as it does not grow.
	big = l.path(other.Spec.Workspace, "upper/big")
	fill(t, big, 70<<20)
	w.restart()
	w.Look(t.Context())
	w.Look(t.Context())
	w.wantReason(other.ID, caisson.Running, "")
	fill(t, big, 1<<20)
	w.Look(t.Context())
	w.wantReason(other.ID, caisson.Failed, "at most 64MiB")
	for _, id := range []caisson.ID{sb.ID, other.ID} {
		must(t, w.Sandboxes().Remove(w.ctx(), string(id)))
	}
	l.settled()
}

// TestPromise9ManyFiles: empty files count too, and directories that are too deep to be measured are not allowed.
func TestPromise9ManyFiles(t *testing.T) {
	t.Parallel()
	w, l := withLayers(t)
	limit := caisson.Resources{Disk: 64 << 20}
	many := w.create(caisson.CreateRequest{Workspace: asks(t), Resources: limit})
	deep := w.create(caisson.CreateRequest{Workspace: asks(t), Resources: limit})
	w.Look(t.Context())
	for i := range 20_000 {
		must(t, os.Symlink("x", filepath.Join(l.path(many.Spec.Workspace, "upper"), "l"+strconv.Itoa(i))))
	}
	d, err := os.OpenRoot(l.path(deep.Spec.Workspace, "upper"))
	must(t, err)
	for range 400 {
		must(t, d.Mkdir("d", 0o755))
		sub, err := d.OpenRoot("d")
		must(t, err)
		must(t, d.Close())
		d = sub
	}
	must(t, d.Close())
	w.Look(t.Context())
	w.wantReason(many.ID, caisson.Failed, "at most 64MiB")
	w.wantReason(deep.ID, caisson.Failed, "more than 300 directories")
}

// TestPromise9FullDisk: when the disk is nearly full, only the sandbox that writes most at that time is stopped; none
// is stopped if other programs fill the disk.
func TestPromise9FullDisk(t *testing.T) {
	t.Parallel()
	w, l := withLayers(t)
	d := withDisk(w, 100<<30)
	writer := w.create(caisson.CreateRequest{Workspace: asks(t)})
	large := w.create(caisson.CreateRequest{Workspace: asks(t)})
	idle := w.create(caisson.CreateRequest{})
	fill(t, l.path(large.Spec.Workspace, "upper/old"), 32<<20)
	if w.Look(t.Context()) {
		t.Error("the disk counts as nearly full")
	}
	d.left.Store(200 << 20)
	if !w.Look(t.Context()) {
		t.Error("the disk does not count as nearly full")
	}
	for _, id := range []caisson.ID{writer.ID, large.ID, idle.ID} {
		w.wantReason(id, caisson.Running, "")
	}
	fill(t, l.path(writer.Spec.Workspace, "upper/new"), 8<<20)
	fill(t, l.path(large.Spec.Workspace, "upper/new"), 2<<20)
	w.Look(t.Context())
	w.wantReason(writer.ID, caisson.Failed, "the host's disk has only 200")
	w.wantReason(large.ID, caisson.Running, "")
	w.wantReason(idle.ID, caisson.Running, "")
}

// TestGuardLooksAway: sandboxes that are being changed, are frozen or have just ended do not disturb a check.
func TestGuardLooksAway(t *testing.T) {
	t.Parallel()
	w, l := withLayers(t)
	sb := w.create(caisson.CreateRequest{Workspace: asks(t), Resources: caisson.Resources{Disk: 64 << 20}})
	w.Look(t.Context())
	fill(t, l.path(sb.Spec.Workspace, "upper/big"), 70<<20)
	_, err := w.Sandboxes().Suspend(w.ctx(), string(sb.ID))
	must(t, err)
	w.Look(t.Context())
	w.wantReason(sb.ID, caisson.Suspended, "")
	_, err = w.Sandboxes().Wake(w.ctx(), string(sb.ID))
	must(t, err)
	w.Look(t.Context()) // it has grown between the last check and its freeze
	w.wantReason(sb.ID, caisson.Failed, "at most 64MiB")
	must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	w.Look(t.Context())
}
