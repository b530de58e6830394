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

// TestPackLinked: a file that grew within a tick of its file system's clock is not taken for what another name of it had.
func TestPackLinked(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	check(t, err)
	defer dir.Close()
	p, err := newPacking(dir)
	check(t, err)
	write(t, dir.Name()+"/a", "old\n")
	check(t, os.Link(dir.Name()+"/a", dir.Name()+"/b"))
	k := newKeeper(int(dir.Fd()), FreezeLimits{}.withDefaults())
	k.pack = p
	keep := func(name string) Entry {
		t.Helper()
		st, err := lookAt(int(dir.Fd()), name)
		check(t, err)
		e := Entry{Path: name}
		e.Content, e.Size, e.Denied, err = k.keep(int(dir.Fd()), name, &st)
		check(t, err)
		return e
	}
	entries := []Entry{keep("a")}
	write(t, dir.Name()+"/a", "grown\n")
	now, err := lookAt(int(dir.Fd()), "b")
	check(t, err)
	for inode, l := range k.linked {
		l.ctime = now.ctime
		k.linked[inode] = l
	}
	entries = append(entries, keep("b"))
	write(t, dir.Name()+"/c", "last\n")
	entries = append(entries, keep("c"))
	check(t, p.close())
	read, err := openPack(dir, entries)
	check(t, err)
	defer read.close()
	for i, want := range []string{"old\n", "grown\n", "last\n"} {
		got, err := io.ReadAll(read.open(entries[i].Content))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", entries[i].Path, got, err, want)
		}
	}
}
