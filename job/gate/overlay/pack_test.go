package overlay_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

// TestPack freezes contents on both sides of what goes into a pack, and reads them as jobs do; also from a copy without a pack, as
// earlier versions have made them.
func TestPack(t *testing.T) {
	o := overlaytest.New(t, func(string) {})
	texts := map[string]string{
		"a": "", "b": "b\n", "c": strings.Repeat("c", fsat.MaxSmallFile), "d": strings.Repeat("d", fsat.MaxSmallFile+1), "e": "b\n", "f": "f\n",
	}
	for name, text := range texts {
		gatetest.Write(t, o.Box+"/"+name, text)
	}
	dst, f := o.Freeze(overlay.FreezeLimits{})
	size := func(want int64) {
		t.Helper()
		if st, err := os.Stat(filepath.Join(dst.Name(), overlay.FrozenPack)); err != nil || st.Size() != want {
			t.Errorf("the pack: %v, %v, want %d bytes", st, err, want)
		}
	}
	size(int64(len("b\n") + fsat.MaxSmallFile + len("f\n")))
	compare := func() {
		t.Helper()
		again, err := overlay.OpenFrozen(dst)
		gatetest.Must(t, err)
		defer again.Close()
		all, err := overlay.OpenContents(dst)
		gatetest.Must(t, err)
		defer all.Close()
		for name, text := range texts {
			e, _ := again.Lookup(name)
			if got := overlaytest.Content(t, again, e.Hash); got != text {
				t.Errorf("%s: %.20q", name, got)
			}
			r, err := all.Open(e.Content)
			gatetest.Must(t, err)
			got, err := io.ReadAll(r)
			r.Close()
			if err != nil || string(got) != text {
				t.Errorf("%s: %.20q, %v", name, got, err)
			}
		}
	}
	compare()
	for name, text := range texts {
		e, _ := f.Lookup(name)
		gatetest.Write(t, filepath.Join(dst.Name(), overlay.FrozenObjects, e.Content), text)
	}
	gatetest.Must(t, os.Remove(filepath.Join(dst.Name(), overlay.FrozenPack)))
	compare()
	// A pack that is too short is not what was reviewed.
	gatetest.Write(t, filepath.Join(dst.Name(), overlay.FrozenPack), "b")
	short, err := overlay.OpenFrozen(dst)
	gatetest.Must(t, err)
	defer short.Close()
	for _, name := range []string{"b", "c", "f"} {
		e, _ := short.Lookup(name)
		r, err := short.Object(e.Hash)
		gatetest.Must(t, err)
		if _, err := io.ReadAll(r); err == nil {
			t.Errorf("%s was read from a pack without it", name)
		}
		r.Close()
	}
}
