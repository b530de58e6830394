package volumes_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

var errInjected = errors.New("injected")

// TestCreateFails checks that a volume that could not be stored leaves nothing behind, and that its name is free.
func TestCreateFails(t *testing.T) {
	w := newWorld(t)
	w.store.failNext("insert", errInjected)
	if _, err := w.service.CreateVolume(w.as("a"), caisson.VolumeRequest{Name: "data"}); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	w.dirs()
	w.store.failNext("insert", errInjected)
	if _, err := w.holds.Attach(t.Context(), "a", "data", "sb-aaaaaaaaaaaaaaaa"); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	w.dirs(w.create("a", "data"))
}

// TestRemoveFails checks that a volume whose record could not be deleted is intact.
func TestRemoveFails(t *testing.T) {
	w := newWorld(t)
	v := w.create("a", "data")
	must(t, os.WriteFile(w.data(v, "file"), []byte("x"), 0o644))
	w.store.failNext("delete", errInjected)
	if err := w.service.RemoveVolume(w.as("a"), "data"); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	w.restart()
	if _, err := os.Stat(w.data(v, "file")); err != nil || slices.Contains(w.told(v), "volume.removed") {
		t.Errorf("%v; the events are %q", err, w.told(v))
	}
	must(t, w.service.RemoveVolume(w.as("a"), "data"))
	w.dirs()
}

// TestCrashes checks that after a crash at any point, the next daemon has complete volumes only.
func TestCrashes(t *testing.T) {
	w := newWorld(t)
	kept, taken := w.create("a", "kept"), w.create("a", "taken")
	must(t, os.WriteFile(w.data(kept, "file"), []byte("kept"), 0o644))
	top := filepath.Join(w.dir, "volumes")
	// Crashes during the creation of a volume: an incomplete directory, or a complete one without a record.
	for _, dir := range []string{"vl-aaaaaaaaaaaaaaab", "vl-aaaaaaaaaaaaaaac/data/left/deep"} {
		must(t, os.MkdirAll(filepath.Join(top, dir), 0o700))
	}
	// Crash during a removal: some directories have been moved up already, under names that the next removal would use.
	for _, dir := range []string{"moved-1/a/b", "moved-2", "moved-9", "data/c/d/e"} {
		must(t, os.MkdirAll(filepath.Join(top, "vl-aaaaaaaaaaaaaaad", dir), 0o700))
		must(t, os.WriteFile(filepath.Join(top, "vl-aaaaaaaaaaaaaaad", dir, "file"), nil, 0o600))
	}
	// Entries with names of volumes that are not volumes.
	must(t, os.WriteFile(filepath.Join(top, "vl-aaaaaaaaaaaaaaae"), nil, 0o600))
	must(t, os.Symlink(w.data(kept), filepath.Join(top, "vl-aaaaaaaaaaaaaaaf")))
	// Crashes after a volume was attached but before the sandbox's spec has it, and before a removed sandbox has detached it.
	known := w.sandbox("a", taken)
	got(w.holds.Attach(t.Context(), "a", "taken", known))(t)
	for name, sb := range map[string]caisson.ID{"unknown": w.sandbox("a", nil), "others": w.sandbox("a", kept), "gone": "sb-aaaaaaaaaaaaaaaa"} {
		got(w.holds.Attach(t.Context(), "a", name, sb))(t)
	}
	w.restart()
	all, _, err := w.service.ListVolumes(w.as("a"), caisson.Filter{})
	must(t, err)
	w.dirs(all...)
	if len(all) != 5 {
		t.Errorf("there are %d volumes", len(all))
	}
	for _, v := range all {
		if want := map[string]caisson.ID{"taken": known}[v.Name]; v.Sandbox != want {
			t.Errorf("volume %s is %q's, want %q", v.Name, v.Sandbox, want)
		}
	}
	if b, err := os.ReadFile(w.data(kept, "file")); err != nil || string(b) != "kept" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

// TestLostFiles checks that a volume whose files are lost is not replaced by an empty one.
func TestLostFiles(t *testing.T) {
	w := newWorld(t)
	v := w.create("a", "data")
	sb := w.sandbox("a", v)
	got(w.holds.Attach(t.Context(), "a", "data", sb))(t)
	must(t, os.RemoveAll(filepath.Dir(w.data(v))))
	w.restart()
	_, err := w.holds.Open(t.Context(), v.ID, sb)
	wants(t, err, caisson.Conflict, "gone from disk")
	if w.get("a", "data").ID != v.ID {
		t.Error("it is another volume")
	}
	must(t, w.holds.Detach(t.Context(), v.ID, sb))
	// fails as long as a sandbox could not start with the volume
	_, err = w.holds.Attach(t.Context(), "a", "data", "sb-aaaaaaaaaaaaaaaa")
	wants(t, err, caisson.Conflict, "gone from disk")
	must(t, w.service.RemoveVolume(w.as("a"), "data"))
	w.dirs(w.create("a", "data"))
}

// TestRemovalGoesOn checks that the next daemon completes an interrupted removal.
func TestRemovalGoesOn(t *testing.T) {
	w := newWorld(t)
	v := w.create("a", "data")
	for _, dir := range []string{"a", "b"} {
		must(t, os.MkdirAll(w.data(v, dir, strings.Repeat("d/", 50)), 0o755))
	}
	must(t, w.core.Close()) // no background work starts any more
	must(t, w.service.RemoveVolume(w.as("a"), "data"))
	if _, err := os.Stat(w.data(v)); err != nil {
		t.Error("a daemon that has ended has removed files:", err)
	}
	w.open()
	w.dirs()
}

// TestAside checks that entries that this package has not created are not removed.
func TestAside(t *testing.T) {
	w := newWorld(t)
	v := w.create("a", "data")
	must(t, os.WriteFile(w.data(v, "file"), []byte("x"), 0o644))
	aside := filepath.Join(w.dir, "volumes", string(v.ID)+".old")
	must(t, os.Rename(filepath.Dir(w.data(v)), aside))
	garbage := filepath.Join(w.dir, "volumes", "vl-aaaaaaaaaaaaaaab")
	must(t, os.Mkdir(garbage, 0o700))
	w.restart()
	poll.Until(t, patience, func() bool { _, err := os.Lstat(garbage); return err != nil })
	must(t, w.core.Close()) // all removals have finished
	w.open()
	must(t, os.Rename(aside, filepath.Dir(w.data(v))))
	if b, err := os.ReadFile(w.data(v, "file")); err != nil || string(b) != "x" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

// TestUnended checks that a volume stays attached while processes of its sandbox run, even if nothing else of the sandbox is
// left.
func TestUnended(t *testing.T) {
	w := newWorld(t)
	const sb = "sb-aaaaaaaaaaaaaaaa"
	for name, c := range map[string]struct {
		runs bool
		err  error
		want caisson.ID
	}{"runs": {true, nil, sb}, "unknown": {false, errInjected, sb}, "ended": {false, nil, ""}} {
		w.runs = func(context.Context, caisson.ID) (bool, error) { return c.runs, c.err }
		got(w.holds.Attach(t.Context(), "a", name, sb))(t)
		w.restart()
		if v := w.get("a", name); v.Sandbox != c.want {
			t.Errorf("%s: the volume is %q's, want %q", name, v.Sandbox, c.want)
		}
		w.runs = nil
		w.restart()
	}
}

// TestGone checks that a volume of a sandbox that is gone without detaching it can be attached and removed, once no process of
// the sandbox runs.
func TestGone(t *testing.T) {
	w := newWorld(t)
	const gone = "sb-aaaaaaaaaaaaaaaa"
	var runs bool
	w.runs = func(context.Context, caisson.ID) (bool, error) { return runs, nil }
	w.restart()
	for _, name := range []string{"given", "removed"} {
		got(w.holds.Attach(t.Context(), "a", name, gone))(t)
	}
	next := w.sandbox("a", nil)
	runs = true
	_, err := w.holds.Attach(t.Context(), "a", "given", next)
	wants(t, err, caisson.Conflict, gone)
	wants(t, w.service.RemoveVolume(w.as("a"), "removed"), caisson.Conflict, gone)
	runs = false
	if v := got(w.holds.Attach(t.Context(), "a", "given", next))(t); v.Sandbox != next {
		t.Errorf("the volume is %q's", v.Sandbox)
	}
	must(t, w.service.RemoveVolume(w.as("a"), "removed"))
}
