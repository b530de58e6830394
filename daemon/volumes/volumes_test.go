package volumes_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

func TestVolumes(t *testing.T) {
	w := newWorld(t)
	v := got(w.service.CreateVolume(w.as("a"), caisson.VolumeRequest{Name: "data", Labels: map[string]string{"k": "v"}}))(t)
	if v.Account != "a" || v.Labels["k"] != "v" || v.CreatedAt.IsZero() || v.Sandbox != "" {
		t.Errorf("made %+v", v)
	}
	other := w.create("b", "data") // another account's of the same name
	if w.get("a", "data").ID != v.ID || w.get("a", string(v.ID)).ID != v.ID || w.get("b", "data").ID != other.ID {
		t.Error("a volume is not found by its id and name")
	}
	_, err := w.service.CreateVolume(w.as("a"), caisson.VolumeRequest{Name: "data"})
	wants(t, err, caisson.Conflict, "data exists already")
	_, err = w.service.GetVolume(w.as("b"), string(v.ID))
	wants(t, err, caisson.NotFound, string(v.ID))
	wants(t, w.service.RemoveVolume(w.as("b"), string(v.ID)), caisson.NotFound, string(v.ID))
	page, more, err := w.service.ListVolumes(w.as("a"), caisson.Filter{Labels: map[string]string{"k": "v"}})
	if err != nil || more || len(page) != 1 || page[0].ID != v.ID {
		t.Errorf("listed %v, more: %v, %v", page, more, err)
	}
	w.dirs(v, other)
	must(t, w.service.RemoveVolume(w.as("a"), "data"))
	_, err = w.service.GetVolume(w.as("a"), "data")
	wants(t, err, caisson.NotFound, "data")
	wants(t, w.service.RemoveVolume(w.as("a"), "data"), caisson.NotFound, "data")
	w.dirs(other)
	if again := w.create("a", "data"); again.ID == v.ID {
		t.Error("a new volume has the id of one that was removed")
	}
	if got, want := w.told(v), []string{"volume.created", "volume.removed"}; !slices.Equal(got, want) {
		t.Errorf("the events are %q", got)
	}
}

func TestNames(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"", "A", "a/b", "..", ".a", "-a", "a b", "ü", strings.Repeat("a", 65), "vl-aaaaaaaaaaaaaaaa", "a\n"} {
		_, err := w.service.CreateVolume(w.as("a"), caisson.VolumeRequest{Name: name})
		if wants(t, err, caisson.Invalid, "name"); caisson.FieldOf(err) != "name" {
			t.Errorf("%q: %v", name, err)
		}
		if name == "" {
			continue
		}
		if _, err := w.holds.Attach(t.Context(), "a", name, "sb-aaaaaaaaaaaaaaaa"); err == nil {
			t.Errorf("a sandbox got a volume named %q", name)
		}
	}
	for _, labels := range []map[string]string{{"": "x"}, {"a": strings.Repeat("x", 1025)}} {
		_, err := w.service.CreateVolume(w.as("a"), caisson.VolumeRequest{Name: "a", Labels: labels})
		wants(t, err, caisson.Invalid, "labels")
	}
	w.dirs()
	for _, name := range []string{"a", "0", "a.b_c-d", strings.Repeat("a", 64)} {
		w.create("a", name)
	}
}

// TestOwner checks that a volume belongs to its account's guests regardless of the umask, and is inaccessible to other users of
// the host.
func TestOwner(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	w := newWorld(t)
	for _, account := range []string{"a", "b"} {
		v := w.create(account, "data")
		base := got(w.store.Accounts().Get(t.Context(), account))(t).UIDBase
		for path, want := range map[string]unix.Stat_t{
			w.data(v):                       {Mode: 0o777, Uid: base, Gid: base},
			filepath.Dir(w.data(v)):         {Mode: 0o700},
			filepath.Join(w.dir, "volumes"): {Mode: 0o700},
		} {
			var st unix.Stat_t
			must(t, unix.Lstat(path, &st))
			if os.Geteuid() != 0 {
				st.Uid, st.Gid = want.Uid, want.Gid
			}
			if st.Mode&0o7777 != want.Mode || st.Uid != want.Uid || st.Gid != want.Gid {
				t.Errorf("%s has mode %o and belongs to %d:%d, want %o, %d:%d", path, st.Mode&0o7777, st.Uid, st.Gid, want.Mode, want.Uid, want.Gid)
			}
		}
	}
}

func TestHolds(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	one, two := w.sandbox("a", nil), w.sandbox("a", nil)
	v := got(w.holds.Attach(ctx, "a", "data", one))(t) // created by attaching it
	if v.Account != "a" || v.Name != "data" || v.Sandbox != one || v.UsedAt.IsZero() {
		t.Errorf("held %+v", v)
	}
	if again := got(w.holds.Attach(ctx, "a", string(v.ID), one))(t); again.ID != v.ID || !again.UsedAt.Equal(v.UsedAt) {
		t.Errorf("held again %+v", again)
	}
	_, err := w.holds.Attach(ctx, "a", "data", two)
	wants(t, err, caisson.Conflict, string(one))
	_, err = w.holds.Attach(ctx, "b", string(v.ID), two)
	wants(t, err, caisson.NotFound, string(v.ID))
	if got(w.holds.Attach(ctx, "b", "data", two))(t).ID == v.ID {
		t.Error("another account got the volume")
	}
	wants(t, w.service.RemoveVolume(w.as("a"), "data"), caisson.Conflict, "caisson sandbox rm "+string(one))
	_, err = w.holds.Attach(ctx, "a", "vl-aaaaaaaaaaaaaaaa", two)
	wants(t, err, caisson.NotFound, "vl-")

	m := got(w.holds.Open(ctx, v.ID, one))(t)
	var opened, data unix.Stat_t
	must(t, errors.Join(unix.Fstat(int(m.Source.Fd()), &opened), unix.Lstat(w.data(v), &data), m.Source.Close()))
	if opened.Ino != data.Ino || !m.Writable || m.Target != "" || m.Overlay != nil {
		t.Errorf("opened %+v", m)
	}
	_, err = w.holds.Open(ctx, v.ID, two)
	wants(t, err, caisson.Conflict, string(two))
	_, err = w.holds.Open(ctx, "vl-aaaaaaaaaaaaaaaa", one)
	wants(t, err, caisson.Conflict, "not exist")

	must(t, w.holds.Detach(ctx, v.ID, two)) // no effect: the volume is not attached to this sandbox
	if w.get("a", "data").Sandbox != one {
		t.Error("a sandbox left another's volume")
	}
	must(t, w.holds.Detach(ctx, v.ID, one))
	must(t, w.holds.Detach(ctx, v.ID, one))
	must(t, w.holds.Detach(ctx, "vl-aaaaaaaaaaaaaaaa", one))
	if v := w.get("a", "data"); v.Sandbox != "" || !v.UsedAt.After(v.CreatedAt) {
		t.Errorf("left %+v", v)
	}
	_, err = w.holds.Open(ctx, v.ID, one)
	wants(t, err, caisson.Conflict, string(one))
	got(w.holds.Attach(ctx, "a", "data", two))(t)
	want := []string{"volume.created", "volume.taken " + string(one), "volume.left " + string(one), "volume.taken " + string(two)}
	if got := w.told(v); !slices.Equal(got, want) {
		t.Errorf("the events are %q", got)
	}
}

// TestHoldAtOnce checks that exactly one of many concurrent requests for a volume, new or not, gets it, and that a concurrent
// removal either removes it or fails.
func TestHoldAtOnce(t *testing.T) {
	w := newWorld(t)
	for round, name := range []string{"new", "old", "removed"} {
		if round > 0 {
			w.create("a", name)
		}
		var wg sync.WaitGroup
		var won atomic.Int32
		var removed error
		for range 8 {
			id := w.sandbox("a", nil)
			wg.Go(func() {
				if v, err := w.holds.Attach(t.Context(), "a", name, id); err == nil {
					won.Add(1)
					if v.Sandbox != id {
						t.Errorf("%s got a volume that is %s's", id, v.Sandbox)
					}
				} else if caisson.KindOf(err) != caisson.Conflict {
					t.Error(err)
				}
			})
		}
		if name == "removed" {
			wg.Go(func() { removed = w.service.RemoveVolume(w.as("a"), name) })
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Errorf("%d sandboxes got the volume %s", won.Load(), name)
		}
		if removed != nil && caisson.KindOf(removed) != caisson.Conflict {
			t.Error(removed)
		}
		if v := w.get("a", name); v.Sandbox == "" {
			t.Errorf("nobody has %+v", v)
		}
	}
}

func TestTooMany(t *testing.T) {
	w := newWorld(t)
	w.create("a", "first")
	for i := range 999 {
		must(t, w.store.Volumes().Insert(t.Context(), &caisson.Volume{ID: caisson.NewID(caisson.VolumePrefix), Account: "a", Name: fmt.Sprint("v", i)}))
	}
	_, err := w.holds.Attach(t.Context(), "a", "more", "sb-aaaaaaaaaaaaaaaa")
	wants(t, err, caisson.Exhausted, "remove some")
	w.create("b", "more")
	got(w.holds.Attach(t.Context(), "a", "first", "sb-aaaaaaaaaaaaaaaa"))(t)
}
