package tree

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

func open(t testing.TB, dir string) *os.Root {
	t.Helper()
	r, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// archive creates a tar archive from arbitrary headers.
func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = "content"
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, content)
	}
	w.Close()
	return b.Bytes()
}

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
func dir(name string) tar.Header  { return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755} }
func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

// snapshot describes everything below dir.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += " " + string(b)
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			text += " -> " + target
		}
		rel, _ := filepath.Rel(dir, p)
		all[rel] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func wantKind(t *testing.T, err error, kind caisson.Kind) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind {
		t.Errorf("error is %v (%s), want %s", err, caisson.KindOf(err), kind)
	}
}

func TestThereAndBack(t *testing.T) {
	syscall.Umask(0o022)
	src, dst := t.TempDir(), t.TempDir()
	long := strings.Repeat("long", 50)
	for name, content := range map[string]string{
		"t/a": "1", "t/a.b": "2", "t/a-c/x": "3", "t/sub/" + long + "/" + long: "4", "t/\xff\xfe \n\x1b": "5", "t/empty": "",
	} {
		os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755)
		if err := os.WriteFile(filepath.Join(src, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	os.Symlink("../a", filepath.Join(src, "t/sub/link"))
	os.Mkdir(filepath.Join(src, "t/readonly"), 0o755)
	os.WriteFile(filepath.Join(src, "t/readonly/x"), nil, 0o400)
	os.Chmod(filepath.Join(src, "t/readonly"), 0o500)
	want := snapshot(t, filepath.Join(src, "t"))
	syscall.Mkfifo(filepath.Join(src, "t/fifo"), 0o644) // Left out.
	stamp := time.Unix(1_000_000_000, 0)
	os.Chtimes(filepath.Join(src, "t/a"), stamp, stamp)

	var packed, copied bytes.Buffer
	if err := Pack(open(t, src), "t", "", &packed); err != nil {
		t.Fatal(err)
	}
	if err := Copy(&copied, bytes.NewReader(packed.Bytes()), "t"); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(packed.Bytes(), copied.Bytes()) {
		t.Error("Copy changed what Pack wrote")
	}
	if err := Unpack(&copied, open(t, dst), Options{Name: "renamed"}); err != nil {
		t.Fatal(err)
	}
	if got := snapshot(t, filepath.Join(dst, "renamed")); !maps.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if info, err := os.Stat(filepath.Join(dst, "renamed/a")); err != nil || !info.ModTime().Equal(stamp) {
		t.Errorf("time of a: %v, %v", info, err)
	}
	os.Chmod(filepath.Join(src, "t/readonly"), 0o700)
	os.Chmod(filepath.Join(dst, "renamed/readonly"), 0o700)
}

// TestLargerThan: a tree is measured as it would be packed, without its hidden files, and without reading it.
func TestLargerThan(t *testing.T) {
	top := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(filepath.Join(top, "a/b"), 0o755), os.WriteFile(filepath.Join(top, "a/b/f"), make([]byte, 1000), 0o600),
		os.Symlink("f", filepath.Join(top, "a/b/l")), os.WriteFile(filepath.Join(top, "huge"), nil, 0o600), os.Truncate(filepath.Join(top, "huge"), 1<<42),
	); err != nil {
		t.Fatal(err)
	}
	root := open(t, top)
	hides := func(name string) bool { return name == "huge" }
	var packed bytes.Buffer
	if err := PackVisible(root, ".", "x", hides, &packed); err != nil {
		t.Fatal(err)
	}
	const end = 1024 // what ends an archive
	for most, want := range map[int]bool{packed.Len() - end: false, packed.Len() - end - 1: true, 0: true} {
		if got, err := LargerThan(root, ".", hides, int64(most)); err != nil || got != want {
			t.Errorf("%v, %v for %d of %d", got, err, most, packed.Len())
		}
	}
	if got, err := LargerThan(root, ".", func(string) bool { return false }, 1<<40); err != nil || !got {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := LargerThan(root, "none", hides, 1); caisson.KindOf(err) != caisson.NotFound {
		t.Error(err)
	}
}

func TestPackRefuses(t *testing.T) {
	src := t.TempDir()
	syscall.Mkfifo(filepath.Join(src, "fifo"), 0o644)
	wantKind(t, Pack(open(t, src), "fifo", "", io.Discard), caisson.Conflict)
	wantKind(t, Pack(open(t, src), "none", "", io.Discard), caisson.NotFound)
	wantKind(t, Pack(open(t, src), ".", "", io.Discard), caisson.Invalid) // It has no name.
	if err := Pack(open(t, src), ".", "name", io.Discard); err != nil {
		t.Error(err)
	}
}

func TestPackLeavesOutKernelFileSystems(t *testing.T) {
	var b bytes.Buffer
	if err := Pack(open(t, "/"), "proc", "", &b); err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(&b)
	if h, err := r.Next(); err != nil || h.Name != "proc/" {
		t.Fatalf("%v, %v", h, err)
	}
	if h, err := r.Next(); err != io.EOF {
		t.Fatalf("something of /proc: %v, %v", h, err)
	}
}

func TestCopyRefuses(t *testing.T) {
	cut := archive(t, dir("t/"), file("t/a"))
	hard := tar.Header{Typeflag: tar.TypeLink, Name: "t/a", Linkname: "/etc/passwd"}
	dev := tar.Header{Typeflag: tar.TypeChar, Name: "t/a", Devmajor: 1}
	fifo := tar.Header{Typeflag: tar.TypeFifo, Name: "t/a"}
	for name, b := range map[string][]byte{
		"nothing":              {},
		"no entry":             archive(t),
		"garbage":              bytes.Repeat([]byte("garbage"), 1000),
		"cut":                  cut[:1030],
		"absolute":             archive(t, dir("/t")),
		"another tree":         archive(t, dir("x")),
		"second tree":          archive(t, dir("t"), dir("u")),
		"dots":                 archive(t, dir("t"), file("t/../x")),
		"dots first":           archive(t, dir("../t")),
		"dot":                  archive(t, dir("t"), file("t/./x")),
		"double slash":         archive(t, dir("t"), file("t//x")),
		"twice":                archive(t, dir("t"), file("t/a"), file("t/a")),
		"base twice":           archive(t, dir("t"), dir("t")),
		"file, then directory": archive(t, dir("t"), file("t/a"), dir("t/a")),
		"below a symlink":      archive(t, dir("t"), link("t/a", "/etc"), file("t/a/x")),
		"below a file":         archive(t, dir("t"), file("t/a"), file("t/a/x")),
		"without its parent":   archive(t, dir("t"), file("t/a/x")),
		"not in order":         archive(t, dir("t"), file("t/b"), file("t/a")),
		"back again":           archive(t, dir("t"), dir("t/a"), dir("t/b"), file("t/a/x")),
		"again, deeper":        archive(t, dir("t"), dir("t/a"), dir("t/a/b"), file("t/a/b/c"), dir("t/a")),
		"hard link":            archive(t, dir("t"), hard),
		"device":               archive(t, dir("t"), dev),
		"fifo":                 archive(t, dir("t"), fifo),
		"long name":            archive(t, dir("t"), file("t/"+strings.Repeat("x", 256))),
		"long path":            archive(t, dir("t/"+strings.Repeat("x/", 3000))),
		"no target":            archive(t, dir("t"), link("t/a", "")),
		"sparse":               sparseArchive(t),
		"endless":              append(slices.Clone(cut), make([]byte, padding+2)...),
	} {
		t.Run(name, func(t *testing.T) {
			wantKind(t, Copy(io.Discard, bytes.NewReader(b), "t"), caisson.Invalid)
		})
	}
}

// sparseArchive returns a few kilobytes that represent an exabyte of zeros.
func sparseArchive(t testing.TB) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	records := "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
	records += record("GNU.sparse.name", "t") + record("GNU.sparse.realsize", "1152921504606846976")
	// The tar package does not write such headers, so the extended header is written manually.
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Size: int64(len(records)), Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, records)
	w.Flush()
	raw := b.Bytes()
	raw[156] = tar.TypeXHeader
	copy(raw[148:156], "        ")
	sum := 0
	for _, c := range raw[:512] {
		sum += int(c)
	}
	copy(raw[148:156], fmt.Sprintf("%06o\x00 ", sum))
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "t", Size: 512, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	w.Write(append([]byte("1\n0\n0\n"), make([]byte, 506)...))
	w.Close()
	return b.Bytes()
}

func record(k, v string) string {
	n := len(k) + len(v) + 3
	s := fmt.Sprintf("%d %s=%s\n", n+1, k, v)
	for len(s) != n+1 {
		n = len(s) - 1
		s = fmt.Sprintf("%d %s=%s\n", len(s), k, v)
	}
	return s
}

func TestCopyStripsWhatIsNotMeant(t *testing.T) {
	h := file("t")
	h.Mode, h.Uid, h.Gid, h.Uname = 0o104755, 1000, 1000, "root"
	h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "x"}
	h.ModTime = time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	if err := Copy(&out, bytes.NewReader(archive(t, h)), "t"); err != nil {
		t.Fatal(err)
	}
	got, err := tar.NewReader(&out).Next()
	if err != nil || got.Mode != 0o755 || got.Uid != 0 || got.Gid != 0 || got.Uname != "" || len(got.PAXRecords) != 0 || got.ModTime.Unix() != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCopyDoesNotHideACut(t *testing.T) {
	b := archive(t, dir("t/"), file("t/a"))
	broken := errors.New("broken")
	var out bytes.Buffer
	err := Copy(&out, io.MultiReader(bytes.NewReader(b), failing{broken}), "t")
	if !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
	if bytes.HasSuffix(out.Bytes(), make([]byte, 1024)) {
		t.Error("the copy looks complete")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestUnpackStaysInside(t *testing.T) {
	for name, row := range map[string]struct {
		kind    caisson.Kind // "" for success
		entries []tar.Header
		want    []string // Below the root; the symlinks "pre" and "abs" exist before.
	}{
		"absolute":            {caisson.Invalid, []tar.Header{file("/x")}, nil},
		"dots":                {caisson.Invalid, []tar.Header{file("../x")}, nil},
		"dots within":         {caisson.Invalid, []tar.Header{file("a/../../x")}, nil},
		"through relative":    {caisson.Conflict, []tar.Header{file("pre/x")}, nil},
		"through absolute":    {caisson.Conflict, []tar.Header{file("abs/x")}, nil},
		"directory on link":   {caisson.Conflict, []tar.Header{dir("pre"), file("pre/x")}, nil},
		"file on link":        {"", []tar.Header{file("pre")}, []string{"pre"}},
		"its own link":        {caisson.Conflict, []tar.Header{dir("t"), dir("t/d"), link("t/l", "d"), file("t/l/x")}, []string{"t", "t/d", "t/l"}},
		"links that stay":     {"", []tar.Header{link("t/d/l", "../a"), link("t/m", "./d/l")}, []string{"t", "t/d", "t/d/l", "t/m"}},
		"absolute link":       {"", []tar.Header{dir("t"), link("t/l", "/etc")}, []string{"t"}},
		"link out":            {"", []tar.Header{dir("t"), link("t/l", "../x")}, []string{"t"}},
		"link out of tree":    {"", []tar.Header{dir("t"), dir("t/d"), link("t/d/l", "../..")}, []string{"t", "t/d"}},
		"top link":            {"", []tar.Header{link("t", "x")}, nil},
		"out by way of links": {"", []tar.Header{link("t/p/q/up", "../.."), link("t/p/q/out", "up/../../x")}, []string{"t", "t/p", "t/p/q", "t/p/q/up"}},
		"hard link":           {caisson.Invalid, []tar.Header{{Typeflag: tar.TypeLink, Name: "x", Linkname: "abs/y"}}, nil},
		"device":              {caisson.Invalid, []tar.Header{{Typeflag: tar.TypeBlock, Name: "x"}}, nil},
		"setuid":              {"", []tar.Header{{Typeflag: tar.TypeReg, Name: "x", Mode: 0o6755}}, []string{"x"}},
		"file on directory":   {caisson.Conflict, []tar.Header{dir("t"), dir("t/d"), file("t/d")}, []string{"t", "t/d"}},
		"control characters":  {"", []tar.Header{file("a\x1b[2J\n")}, []string{"a\x1b[2J\n"}},
		"leading dot":         {"", []tar.Header{dir("./"), file("./x")}, []string{"x"}},
	} {
		t.Run(name, func(t *testing.T) {
			outer := t.TempDir()
			root := filepath.Join(outer, "root")
			os.MkdirAll(filepath.Join(outer, "root/real"), 0o755)
			os.Mkdir(filepath.Join(outer, "outside"), 0o755)
			os.Symlink("real", filepath.Join(root, "pre"))
			os.Symlink(filepath.Join(outer, "outside"), filepath.Join(root, "abs"))
			err := Unpack(bytes.NewReader(archive(t, row.entries...)), open(t, root), Options{})
			if row.kind == "" && err != nil {
				t.Error(err)
			} else if row.kind != "" {
				wantKind(t, err, row.kind)
			}
			want := append([]string{"outside", "root", "root/abs", "root/pre", "root/real"}, row.want...)
			for i := 5; i < len(want); i++ {
				want[i] = "root/" + want[i]
			}
			slices.Sort(want)
			all := snapshot(t, outer)
			if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, slices.Compact(want)) {
				t.Errorf("got %q, want %q", got, want)
			}
			if mode := all["root/x"]; strings.HasPrefix(mode, "u") {
				t.Errorf("x is %s", mode)
			}
		})
	}
}

func TestUnpackFollowsOnlyWithin(t *testing.T) {
	outer := t.TempDir()
	root := filepath.Join(outer, "root")
	os.MkdirAll(filepath.Join(root, "real"), 0o755)
	os.Symlink("real", filepath.Join(root, "in"))
	os.Symlink("..", filepath.Join(root, "out"))
	o := Options{FollowLinks: true, KeepLinks: true}
	if err := Unpack(bytes.NewReader(archive(t, dir("in"), file("in/x"), link("l", "/etc"))), open(t, root), o); err != nil {
		t.Error(err)
	}
	if err := Unpack(bytes.NewReader(archive(t, link("in/to", "../real"), dir("in/to"), file("in/to/y"), file("in/to/y"))), open(t, root), o); err != nil {
		t.Error(err)
	}
	os.Remove(filepath.Join(root, "real/to"))
	os.Remove(filepath.Join(root, "real/y"))
	// A symlink that leads elsewhere is a fault of the archive, and is reported as such.
	for name, entries := range map[string][]tar.Header{
		"out": {file("out/x")}, "out/way": {link("out/way", "/etc")}, "l": {file("l/x")}, "m": {link("m", ".."), file("m/x")}, "n": {link("n", "none"), dir("n/d")},
		"o": {link("o", "o"), dir("o")}, "p": {link("p", "in/x"), file("p/x")}, "in/q": {link("in/q", "/etc"), file("in/q/passwd")},
	} {
		err := Unpack(bytes.NewReader(archive(t, entries...)), open(t, root), o)
		wantKind(t, err, caisson.Conflict)
		if said := caisson.MessageOf(err); err != nil && !strings.HasPrefix(said, strings.TrimSuffix(name, "/way")+" ") {
			t.Errorf("%s: the error does not name the path: %s", name, said)
		}
		os.Remove(filepath.Join(root, strings.TrimPrefix(name, "out/")))
		os.Remove(filepath.Join(root, "real/q"))
		os.Symlink("..", filepath.Join(root, "out"))
		os.Symlink("/etc", filepath.Join(root, "l"))
	}
	want := []string{"root", "root/in", "root/l", "root/out", "root/real", "root/real/x"}
	if got := slices.Sorted(maps.Keys(snapshot(t, outer))); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// deep returns an archive of nested directories, with the files in them on the way back up.
func deep(t *testing.T, levels int, mode int64) []byte {
	t.Helper()
	var headers []tar.Header
	for n := 1; n <= levels; n++ {
		headers = append(headers, tar.Header{Typeflag: tar.TypeDir, Name: strings.Repeat("d/", n), Mode: mode})
	}
	for n := levels; n > 0; n-- {
		headers = append(headers, file(strings.Repeat("d/", n)+"z"))
	}
	return archive(t, headers...)
}

// TestUnpackDeep tests that a deep tree is unpacked completely with few open descriptors.
func TestUnpackDeep(t *testing.T) {
	const levels = 600
	dir := t.TempDir()
	root := open(t, dir)
	most := 0
	r := &counting{Reader: bytes.NewReader(deep(t, levels, 0o511)), read: func() {
		if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
			most = max(most, len(fds))
		}
	}}
	if err := Unpack(r, root, Options{}); err != nil {
		t.Fatal(err)
	}
	if most > 150 {
		t.Errorf("%d descriptors were open", most)
	}
	at := root
	for n := 1; n <= levels; n++ {
		info, err := at.Stat("d/z")
		if err != nil || info.Size() == 0 {
			t.Fatalf("level %d: %v", n, err)
		}
		if info, err = at.Stat("d"); err != nil || info.Mode().Perm() != 0o511 {
			t.Fatalf("level %d: %v, %v", n, info.Mode(), err)
		}
		below, err := at.OpenRoot("d")
		if err != nil {
			t.Fatal(err)
		}
		if at != root {
			at.Close()
		}
		at = below
	}
	at.Close()
}

// A counting reader calls read at intervals while it is read from.
type counting struct {
	io.Reader
	n    int
	read func()
}

func (c *counting) Read(p []byte) (int, error) {
	if c.n++; c.n%50 == 0 {
		c.read()
	}
	return c.Reader.Read(p)
}

// TestUnpackDeepWork tests that the work for an entry does not depend on its depth. It counts how often a directory is
// opened.
func TestUnpackDeepWork(t *testing.T) {
	const levels = 400
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", levels)), 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for n := range levels + 1 {
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(dir, strings.Repeat("d/", n)), unix.IN_OPEN|unix.IN_ONLYDIR); err != nil {
			t.Fatal(err)
		}
	}
	if err := Unpack(bytes.NewReader(deep(t, levels, 0o755)), open(t, dir), Options{FollowLinks: true}); err != nil {
		t.Fatal(err)
	}
	opened := 0
	for buf := make([]byte, 1<<16); ; {
		n, err := unix.Read(fd, buf)
		if err != nil {
			break // No more events.
		}
		for at := 0; at < n; {
			mask, size := binary.NativeEndian.Uint32(buf[at+4:]), binary.NativeEndian.Uint32(buf[at+12:])
			if mask&unix.IN_Q_OVERFLOW != 0 {
				opened += 1 << 20
			}
			if mask&unix.IN_ISDIR != 0 {
				opened++
			}
			at += unix.SizeofInotifyEvent + int(size)
		}
	}
	if entries := 2 * levels; opened < levels || opened > 8*entries {
		t.Errorf("directories were opened %d times for %d entries", opened, entries)
	}
}

func TestUnpackLimits(t *testing.T) {
	b := archive(t, dir("t"), file("t/a"), file("t/b"), file("t/c"))
	root := open(t, t.TempDir())
	wantKind(t, Unpack(bytes.NewReader(b), root, Options{MaxEntries: 3}), caisson.Exhausted)
	wantKind(t, Unpack(bytes.NewReader(b), root, Options{MaxBytes: 20}), caisson.Exhausted)
	wantKind(t, Unpack(bytes.NewReader(b), root, Options{Name: "a/b"}), caisson.Invalid)
	wantKind(t, Unpack(bytes.NewReader(archive(t, dir("t"), dir("u"))), root, Options{Name: "x"}), caisson.Invalid)
	wantKind(t, Unpack(bytes.NewReader(sparseArchive(t)), root, Options{}), caisson.Invalid)
	if err := Unpack(bytes.NewReader(b), root, Options{MaxEntries: 4, MaxBytes: 21}); err != nil {
		t.Error(err)
	}
	var skipped []string
	err := Unpack(bytes.NewReader(archive(t, link("t/l", "/x"))), root, Options{Skipped: func(n, to string) { skipped = append(skipped, n, to) }})
	if err != nil || !slices.Equal(skipped, []string{"t/l", "/x"}) {
		t.Errorf("skipped %q, %v", skipped, err)
	}
}

func FuzzCopy(f *testing.F) {
	f.Add(archive(f, dir("t/"), file("t/a"), link("t/b", "../../x"), dir("t/c"), file("t/c/x")))
	f.Add(archive(f, file("t")))
	f.Add(archive(f, dir("t"), link("t/a", "/etc"), file("t/a/x")))
	f.Add(sparseArchive(f))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		var out, again bytes.Buffer
		if Copy(&out, bytes.NewReader(in), "t") != nil {
			return
		}
		// Output has the form of this package, and a copy of it is identical.
		if err := Copy(&again, bytes.NewReader(out.Bytes()), "t"); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
			t.Fatalf("a copy cannot be copied: %v", err)
		}
		r := tar.NewReader(&out)
		made := map[string]byte{}
		for {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimSuffix(h.Name, "/")
			if !filepath.IsLocal(name) || made[name] != 0 || (name != "t" && made[filepath.Dir(name)] != tar.TypeDir) {
				t.Fatalf("let %q through", name)
			}
			made[name] = h.Typeflag
		}
	})
}

func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, dir("t/"), file("t/a"), link("t/b", "../../x"), dir("t/c"), file("t/b/x")))
	f.Add(archive(f, link("t/l", "p/../.."), file("t/l/x"), file("../x")))
	f.Fuzz(func(t *testing.T, in []byte) {
		outer := t.TempDir()
		os.Mkdir(filepath.Join(outer, "root"), 0o755)
		Unpack(bytes.NewReader(in), open(t, filepath.Join(outer, "root")), Options{MaxBytes: 1 << 20, MaxEntries: 100})
		entries, err := os.ReadDir(outer)
		if err != nil || len(entries) != 1 {
			t.Fatalf("outside: %v, %v", entries, err)
		}
		filepath.WalkDir(filepath.Join(outer, "root"), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type() == fs.ModeSymlink {
				if to, err := filepath.EvalSymlinks(p); err == nil && !strings.HasPrefix(to, filepath.Join(outer, "root")) {
					t.Fatalf("%s leads to %s", p, to)
				}
			}
			return nil
		})
	})
}
