package gate

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPack freezes contents on both sides of what goes into a pack, and reads them as jobs do; also from a copy without a pack, as
// earlier versions have made them.
func TestPack(t *testing.T) {
	o := newOverlay(t, func(string) {})
	texts := map[string]string{
		"a": "", "b": "b\n", "c": strings.Repeat("c", smallFile), "d": strings.Repeat("d", smallFile+1), "e": "b\n", "f": "f\n",
	}
	for name, text := range texts {
		write(t, o.box+"/"+name, text)
	}
	dst, f := o.freeze(FreezeLimits{})
	size := func(want int64) {
		t.Helper()
		if st, err := os.Stat(filepath.Join(dst.Name(), frozenPack)); err != nil || st.Size() != want {
			t.Errorf("the pack: %v, %v, want %d bytes", st, err, want)
		}
	}
	size(int64(len("b\n") + smallFile + len("f\n")))
	compare := func() {
		t.Helper()
		again, err := OpenFrozen(dst)
		check(t, err)
		defer again.Close()
		all, err := openFrozenContents(dst)
		check(t, err)
		defer all.close()
		for name, text := range texts {
			e, _ := again.Lookup(name)
			if got := contentOf(t, again, e.Hash); got != text {
				t.Errorf("%s: %.20q", name, got)
			}
			r, err := all.open(e.Content)
			check(t, err)
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
		write(t, filepath.Join(dst.Name(), frozenObjects, e.Content), text)
	}
	check(t, os.Remove(filepath.Join(dst.Name(), frozenPack)))
	compare()
	// A pack that is too short is not what was reviewed.
	write(t, filepath.Join(dst.Name(), frozenPack), "b")
	short, err := OpenFrozen(dst)
	check(t, err)
	defer short.Close()
	for _, name := range []string{"b", "c", "f"} {
		e, _ := short.Lookup(name)
		r, err := short.Object(e.Hash)
		check(t, err)
		if _, err := io.ReadAll(r); err == nil {
			t.Errorf("%s was read from a pack without it", name)
		}
		r.Close()
	}
}
