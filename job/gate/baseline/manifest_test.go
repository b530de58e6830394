package baseline

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
)

// scanned scans a directory and opens the manifest.
func scanned(t testing.TB, dir string, hide []string) (ScanResult, *Manifest) {
	t.Helper()
	mask, err := NewMask(hide, nil)
	gatetest.Must(t, err)
	file, err := os.Create(t.TempDir() + "/manifest")
	gatetest.Must(t, err)
	t.Cleanup(func() { file.Close() })
	result, err := Scan(t.Context(), gatetest.OpenDir(t, dir), mask, file)
	gatetest.Must(t, err)
	m, err := OpenManifest(file)
	gatetest.Must(t, err)
	return result, m
}

func TestScan(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		for j := range 20 {
			gatetest.Write(t, fmt.Sprintf("%s/%d/%d.txt", dir, i, j), "x")
		}
	}
	for _, name := range []string{"new\nline", "\x1b[31mred", "\xff\xfe", "-rf", "1.a", "1-"} {
		gatetest.Write(t, dir+"/"+name, name)
	}
	gatetest.Write(t, dir+"/.ssh/id", "secret")
	gatetest.Write(t, dir+"/3/.ENV", "secret")
	gatetest.Must(t, os.Symlink("/", dir+"/link"))
	gatetest.Must(t, gatetest.Mkfifo(dir+"/fifo"))
	big, err := os.Create(dir + "/big")
	gatetest.Must(t, err)
	gatetest.Must(t, big.Truncate(50<<30))
	gatetest.Must(t, big.Close())

	result, m := scanned(t, dir, DefaultHidden())
	if result.Files != 410 || result.Dirs != 21 || result.Bytes < 50<<30 || result.Cut || result.Closed != 0 {
		t.Errorf("%+v", result)
	}
	if result.HiddenCount != 2 || !slices.Equal(result.Hidden, []string{".ssh", "3/.ENV"}) {
		t.Errorf("hidden: %q", result.Hidden)
	}
	var all []Record
	for r, err := range m.Below("") {
		gatetest.Must(t, err)
		all = append(all, r)
	}
	if len(all) != 431 || !slices.IsSortedFunc(all, func(a, b Record) int { return fsat.Compare(a.Path, b.Path) }) {
		t.Errorf("%d records", len(all))
	}
	for _, want := range all {
		got, found, known, err := m.Lookup(want.Path)
		if err != nil || !found || !known || got != want {
			t.Errorf("%q: %+v, %v, %v", want.Path, got, found, err)
		}
		var st unix.Stat_t
		gatetest.Must(t, unix.Lstat(dir+"/"+want.Path, &st))
		if want.Type != fsat.TypeOf(st.Mode) || want.Mode != st.Mode&fsat.ModeBits ||
			want.Type == fsat.TypeFile && (want.Size != st.Size || want.Inode != st.Ino || want.Mtime != st.Mtim.Nano() || want.Ctime != st.Ctim.Nano()) {
			t.Errorf("%q: %+v", want.Path, want)
		}
	}
	for path, known := range map[string]bool{"nothing": true, "1/nothing": true, "1/1.txt/x": true, ".ssh/id": false, "zzz": true, "\x00": true} {
		if _, found, k, err := m.Lookup(path); found || k != known || err != nil {
			t.Errorf("%q: found %v, known %v, %v", path, found, k, err)
		}
	}
	n := 0
	for r, err := range m.Below("1") {
		gatetest.Must(t, err)
		if n++; !strings.HasPrefix(r.Path, "1/") {
			break
		}
	}
	if n != 20 {
		t.Errorf("%d records below a directory", n)
	}
}

func TestScanCloses(t *testing.T) {
	testneed.Root(t)
	dir := t.TempDir()
	gatetest.Must(t, os.Mkdir(dir+"/other", 0o755))
	gatetest.Must(t, unix.Mount("caisson-test", dir+"/other", "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(dir+"/other", unix.MNT_DETACH) })
	gatetest.Write(t, dir+"/other/x", "x")
	gatetest.Must(t, os.MkdirAll(dir+"/"+strings.Repeat("d/", 300), 0o755))
	long := dir
	for range 15 {
		long += "/" + strings.Repeat("l", 250)
	}
	gatetest.Must(t, os.MkdirAll(long, 0o755))
	fd, err := unix.Open(long, unix.O_DIRECTORY, 0)
	gatetest.Must(t, err)
	for range 5 {
		gatetest.Must(t, unix.Mkdirat(fd, strings.Repeat("m", 250), 0o755))
		next, err := unix.Openat(fd, strings.Repeat("m", 250), unix.O_DIRECTORY, 0)
		gatetest.Must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	result, m := scanned(t, dir, nil)
	if result.Closed != 3 || result.Cut {
		t.Errorf("%+v", result)
	}
	for _, path := range []string{"other/x", strings.Repeat("d/", 260) + "d"} {
		if _, found, known, err := m.Lookup(path); found || known || err != nil {
			t.Errorf("%.20q: %v, %v, %v", path, found, known, err)
		}
	}
}

func TestScanIsCut(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		gatetest.Write(t, fmt.Sprintf("%s/a/%d", dir, i), "x")
		gatetest.Write(t, fmt.Sprintf("%s/b/%d", dir, i), "x")
	}
	mask, err := NewMask(nil, nil)
	gatetest.Must(t, err)
	for limit := range 22 {
		var out bytes.Buffer
		result, err := scanUpTo(t.Context(), gatetest.OpenDir(t, dir), mask, &out, limit)
		gatetest.Must(t, err)
		m, err := parseManifest(bytes.NewReader(out.Bytes()), int64(out.Len()))
		gatetest.Must(t, err)
		if _, found, known, _ := m.Lookup("zzz"); !result.Cut || found || known {
			t.Errorf("limit %d: %+v, found %v, known %v", limit, result, found, known)
		}
	}
}

func TestBase(t *testing.T) {
	dir := t.TempDir()
	gatetest.Write(t, dir+"/old", "old\n")
	gatetest.Must(t, os.Chtimes(dir+"/old", gatetest.UnixTime(1), gatetest.UnixTime(1)))
	gatetest.Write(t, dir+"/new", "new\n")
	gatetest.Write(t, dir+"/bin", "\x00")
	gatetest.Write(t, dir+"/moved", "before\n")
	gatetest.Write(t, dir+"/.env", "secret\n")
	gatetest.Write(t, dir+"/large", strings.Repeat("x", 1<<20+1))
	gatetest.Must(t, gatetest.Mkfifo(dir+"/fifo"))
	mask, err := NewMask(DefaultHidden(), nil)
	gatetest.Must(t, err)
	manifest, err := os.Create(t.TempDir() + "/manifest")
	gatetest.Must(t, err)
	defer manifest.Close()
	_, err = Scan(t.Context(), gatetest.OpenDir(t, dir), mask, manifest)
	gatetest.Must(t, err)
	gatetest.Write(t, dir+"/moved", "after!\n")
	for limit, want := range map[caisson.Size][]string{0: {"new", "old"}, 6: {"new"}} {
		dst := gatetest.OpenDir(t, t.TempDir())
		gatetest.Must(t, SaveBase(t.Context(), gatetest.OpenDir(t, dir), manifest, dst, Limits{Bytes: limit}))
		s, err := Open(dst)
		gatetest.Must(t, err)
		defer s.Close()
		var got []string
		for path, e := range s.Entries {
			got = append(got, path)
			if string(s.Text(e)) != path+"\n" {
				t.Errorf("%s: %q", path, s.Text(e))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("limit %v: %q", limit, got)
		}
	}
}

func FuzzManifest(f *testing.F) {
	dir := f.TempDir()
	gatetest.Write(f, dir+"/a/b", "x")
	gatetest.Write(f, dir+"/c", "x")
	mask, err := NewMask([]string{"c"}, []string{"d"})
	gatetest.Must(f, err)
	var out bytes.Buffer
	root, err := os.Open(dir)
	gatetest.Must(f, err)
	defer root.Close()
	_, err = Scan(f.Context(), root, mask, &out)
	gatetest.Must(f, err)
	f.Add(out.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseManifest(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		last := ""
		for r, e := range m.Below("") {
			if err = e; err != nil {
				break
			}
			if !fsat.ValidPath(r.Path) {
				t.Fatalf("%q", r.Path)
			}
			last = r.Path
		}
		if _, found, _, lookupErr := m.Lookup(last); err == nil && last != "" && lookupErr == nil && !found {
			// Blocks whose paths overlap are possible; they must only not crash anything.
			t.Skip()
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	var out bytes.Buffer
	mask, err := NewMask(nil, nil)
	gatetest.Must(b, err)
	w := newManifestWriter(&out, mask, 1)
	var paths []string
	for i := range 100_000 {
		paths = append(paths, fmt.Sprintf("dir%03d/sub%02d/file%d.txt", i/1000, i/100%10, i))
	}
	slices.SortFunc(paths, fsat.Compare)
	for _, p := range paths {
		w.add(&Record{Path: p, Stat: fsat.Stat{Type: fsat.TypeFile, Mode: 0o644, Size: 10, Mtime: 1e18, Ctime: 1e18, Inode: 1}})
	}
	gatetest.Must(b, w.close(false))
	b.ReportMetric(float64(out.Len())/float64(len(paths)), "bytes/record")
	for b.Loop() {
		m, err := parseManifest(bytes.NewReader(out.Bytes()), int64(out.Len()))
		gatetest.Must(b, err)
		for i := 0; i < len(paths); i += 100 {
			if _, found, _, err := m.Lookup(paths[i]); !found || err != nil {
				b.Fatal(paths[i], err)
			}
		}
	}
}

func FuzzBase(f *testing.F) {
	f.Add([]byte(baseMagic + "\x00"))
	f.Fuzz(func(t *testing.T, base []byte) {
		s := &Store{Entries: map[string]*Entry{}}
		if s.parse(gatetest.WithSum(base)) != nil {
			return
		}
		for path, e := range s.Entries {
			if !fsat.ValidPath(path) || e.length > fsat.MaxSmallFile {
				t.Errorf("%q", path)
			}
		}
	})
}
