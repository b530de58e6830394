package overlay

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
)

func TestIndexIsStrict(t *testing.T) {
	e := Entry{Path: "a", Type: fsat.TypeFile, Mode: 0o644, Size: 1, Content: gate.HashText([]byte("a"))}
	e.Hash = HashOf(e.Type, e.Mode, e.Content, "")
	good := packIndex([]Entry{e, {Path: "b", Type: fsat.TypeNone, Removed: true, Hash: HashOf(fsat.TypeNone, 0, "", "")}}, true)
	entries, cut, err := parseIndex(good)
	if err != nil || len(entries) != 2 || entries[0] != e || !cut {
		t.Fatalf("%+v, %v, %v", entries, cut, err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if _, _, err := parseIndex(bad); err == nil {
			t.Errorf("byte %d does not matter", i)
		}
		if _, _, err := parseIndex(good[:i]); err == nil {
			t.Errorf("cut at %d", i)
		}
	}
	for name, list := range map[string][]Entry{
		"order":       {{Path: "b", Type: fsat.TypeDir, Hash: "x"}, {Path: "a", Type: fsat.TypeDir, Hash: "x"}},
		"twice":       {{Path: "a", Type: fsat.TypeDir, Hash: "x"}, {Path: "a", Type: fsat.TypeDir, Hash: "x"}},
		"absolute":    {{Path: "/a", Type: fsat.TypeDir, Hash: "x"}},
		"up":          {{Path: "a/../b", Type: fsat.TypeDir, Hash: "x"}},
		"nothing":     {{Path: "a", Type: fsat.TypeNone, Hash: "x"}},
		"no content":  {{Path: "a", Type: fsat.TypeFile, Hash: "x"}},
		"no link":     {{Path: "a", Type: fsat.TypeSymlink, Hash: "x"}},
		"kept denied": {{Path: "a", Type: fsat.TypeDir, Hash: "x", Denied: "x"}},
		"neither":     {{Path: "a", Type: fsat.TypeDir}},
	} {
		if _, _, err := parseIndex(packIndex(list, false)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestHashOf(t *testing.T) {
	all := map[string]string{}
	for _, args := range []struct {
		typ, content, link string
		mode               uint32
	}{
		{"file", "00", "", 0o644}, {"file", "00", "", 0o755}, {"file", "01", "", 0o644}, {"file", "00", "", 0o4755}, {"dir", "", "", 0o755},
		{"symlink", "", "a", 0}, {"symlink", "", "b", 0}, {"none", "", "", 0},
	} {
		h := HashOf(args.typ, args.mode, args.content, args.link)
		if all[h] != "" || !strings.HasPrefix(h, "sha256:") || len(h) != 71 {
			t.Errorf("%+v has the hash %s of %s", args, h, all[h])
		}
		all[h] = fmt.Sprintf("%+v", args)
	}
}

func FuzzIndex(f *testing.F) {
	e := Entry{Path: "a", Type: fsat.TypeFile, Mode: 0o644, Size: 1, Content: gate.HashText([]byte("a")), Hash: "x"}
	f.Add(packIndex([]Entry{e, {Path: "b", Type: fsat.TypeSymlink, Link: "x", Hash: "x"}, {Path: "c", Type: fsat.TypeDevice, Denied: "x"}}, false))
	f.Add(packIndex(nil, true))
	f.Fuzz(func(t *testing.T, data []byte) {
		// The checksum keeps a fuzzer out; it is no defence, so it is made right here.
		if len(data) > 32 {
			data = gatetest.WithSum(data[:len(data)-32])
		}
		entries, cut, err := parseIndex(data)
		if err != nil {
			return
		}
		for _, e := range entries {
			if !fsat.ValidPath(e.Path) || strings.ContainsRune(e.Link, 0) {
				t.Errorf("%+v", e)
			}
		}
		if again := packIndex(entries, cut); !bytes.Equal(again, data) {
			t.Errorf("%x was read as %x", data, again)
		}
	})
}

// TestPackLinked: a file that grew within a tick of its file system's clock is not taken for what another name of it had.
func TestPackLinked(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	gatetest.Must(t, err)
	defer dir.Close()
	p, err := newPacking(dir)
	gatetest.Must(t, err)
	gatetest.Write(t, dir.Name()+"/a", "old\n")
	gatetest.Must(t, os.Link(dir.Name()+"/a", dir.Name()+"/b"))
	k := NewKeeper(int(dir.Fd()), FreezeLimits{}.WithDefaults())
	k.pack = p
	keep := func(name string) Entry {
		t.Helper()
		st, err := fsat.Lstat(int(dir.Fd()), name)
		gatetest.Must(t, err)
		e := Entry{Path: name}
		e.Content, e.Size, e.Denied, err = k.keep(int(dir.Fd()), name, &st)
		gatetest.Must(t, err)
		return e
	}
	entries := []Entry{keep("a")}
	gatetest.Write(t, dir.Name()+"/a", "grown\n")
	now, err := fsat.Lstat(int(dir.Fd()), "b")
	gatetest.Must(t, err)
	for inode, l := range k.linked {
		l.ctime = now.Ctime
		k.linked[inode] = l
	}
	entries = append(entries, keep("b"))
	gatetest.Write(t, dir.Name()+"/c", "last\n")
	entries = append(entries, keep("c"))
	gatetest.Must(t, p.close())
	read, err := openPack(dir, entries)
	gatetest.Must(t, err)
	defer read.close()
	for i, want := range []string{"old\n", "grown\n", "last\n"} {
		got, err := io.ReadAll(read.open(entries[i].Content))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", entries[i].Path, got, err, want)
		}
	}
}

func FuzzMarks(f *testing.F) {
	f.Add([]byte(marksMagic + "\x00\x00"))
	f.Fuzz(func(t *testing.T, marked []byte) {
		m, err := readMarks(bytes.NewReader(gatetest.WithSum(marked)))
		if err != nil {
			return
		}
		for path := range m.byPath {
			if !fsat.ValidPath(path) {
				t.Errorf("%q", path)
			}
		}
	})
}
