package gate

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
)

// scanned scans a directory and opens the manifest.
func scanned(t testing.TB, dir string, hide []string) (ScanResult, *Manifest) {
	t.Helper()
	mask, err := NewMask(hide, nil)
	check(t, err)
	file, err := os.Create(t.TempDir() + "/manifest")
	check(t, err)
	t.Cleanup(func() { file.Close() })
	result, err := Scan(t.Context(), openTestDir(t, dir), mask, file)
	check(t, err)
	m, err := OpenManifest(file)
	check(t, err)
	return result, m
}

func TestScan(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		for j := range 20 {
			write(t, fmt.Sprintf("%s/%d/%d.txt", dir, i, j), "x")
		}
	}
	for _, name := range []string{"new\nline", "\x1b[31mred", "\xff\xfe", "-rf", "1.a", "1-"} {
		write(t, dir+"/"+name, name)
	}
	write(t, dir+"/.ssh/id", "secret")
	write(t, dir+"/3/.ENV", "secret")
	check(t, os.Symlink("/", dir+"/link"))
	check(t, mkfifo(dir+"/fifo"))
	big, err := os.Create(dir + "/big")
	check(t, err)
	check(t, big.Truncate(50<<30))
	check(t, big.Close())

	result, m := scanned(t, dir, DefaultHidden())
	if result.Files != 410 || result.Dirs != 21 || result.Bytes < 50<<30 || result.Cut || result.Closed != 0 {
		t.Errorf("%+v", result)
	}
	if result.HiddenCount != 2 || !slices.Equal(result.Hidden, []string{".ssh", "3/.ENV"}) {
		t.Errorf("hidden: %q", result.Hidden)
	}
	var all []Record
	check(t, m.Below("", func(r Record) bool { all = append(all, r); return true }))
	if len(all) != 431 || !slices.IsSortedFunc(all, func(a, b Record) int { return comparePaths(a.Path, b.Path) }) {
		t.Errorf("%d records", len(all))
	}
	for _, want := range all {
		got, found, known, err := m.Lookup(want.Path)
		if err != nil || !found || !known || got != want {
			t.Errorf("%q: %+v, %v, %v", want.Path, got, found, err)
		}
		var st unix.Stat_t
		check(t, unix.Lstat(dir+"/"+want.Path, &st))
		if want.typ != typeOf(st.Mode) || want.mode != st.Mode&modeBits ||
			want.typ == typeFile && (want.size != st.Size || want.inode != st.Ino || want.mtime != st.Mtim.Nano() || want.ctime != st.Ctim.Nano()) {
			t.Errorf("%q: %+v", want.Path, want)
		}
	}
	for path, known := range map[string]bool{"nothing": true, "1/nothing": true, "1/1.txt/x": true, ".ssh/id": false, "zzz": true, "\x00": true} {
		if _, found, k, err := m.Lookup(path); found || k != known || err != nil {
			t.Errorf("%q: found %v, known %v, %v", path, found, k, err)
		}
	}
	n := 0
	check(t, m.Below("1", func(r Record) bool { n++; return strings.HasPrefix(r.Path, "1/") }))
	if n != 20 {
		t.Errorf("%d records below a directory", n)
	}
}

func TestScanCloses(t *testing.T) {
	testneed.Root(t)
	dir := t.TempDir()
	check(t, os.Mkdir(dir+"/other", 0o755))
	check(t, unix.Mount("caisson-test", dir+"/other", "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(dir+"/other", unix.MNT_DETACH) })
	write(t, dir+"/other/x", "x")
	check(t, os.MkdirAll(dir+"/"+strings.Repeat("d/", 300), 0o755))
	long := dir
	for range 15 {
		long += "/" + strings.Repeat("l", 250)
	}
	check(t, os.MkdirAll(long, 0o755))
	fd, err := unix.Open(long, unix.O_DIRECTORY, 0)
	check(t, err)
	for range 5 {
		check(t, unix.Mkdirat(fd, strings.Repeat("m", 250), 0o755))
		next, err := unix.Openat(fd, strings.Repeat("m", 250), unix.O_DIRECTORY, 0)
		check(t, err)
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
		write(t, fmt.Sprintf("%s/a/%d", dir, i), "x")
		write(t, fmt.Sprintf("%s/b/%d", dir, i), "x")
	}
	mask, err := NewMask(nil, nil)
	check(t, err)
	for limit := range 22 {
		var out bytes.Buffer
		result, err := scanUpTo(t.Context(), openTestDir(t, dir), mask, &out, limit)
		check(t, err)
		m, err := parseManifest(bytes.NewReader(out.Bytes()), int64(out.Len()))
		check(t, err)
		if _, found, known, _ := m.Lookup("zzz"); !result.Cut || found || known {
			t.Errorf("limit %d: %+v, found %v, known %v", limit, result, found, known)
		}
	}
}

func TestBase(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/old", "old\n")
	check(t, os.Chtimes(dir+"/old", unixTime(1), unixTime(1)))
	write(t, dir+"/new", "new\n")
	write(t, dir+"/bin", "\x00")
	write(t, dir+"/moved", "before\n")
	write(t, dir+"/.env", "secret\n")
	write(t, dir+"/large", strings.Repeat("x", 1<<20+1))
	check(t, mkfifo(dir+"/fifo"))
	mask, err := NewMask(DefaultHidden(), nil)
	check(t, err)
	manifest, err := os.Create(t.TempDir() + "/manifest")
	check(t, err)
	defer manifest.Close()
	_, err = Scan(t.Context(), openTestDir(t, dir), mask, manifest)
	check(t, err)
	write(t, dir+"/moved", "after!\n")
	for limit, want := range map[caisson.Size][]string{0: {"new", "old"}, 6: {"new"}} {
		dst := openTestDir(t, t.TempDir())
		check(t, Base(t.Context(), openTestDir(t, dir), manifest, dst, BaseLimits{Bytes: limit}))
		s, err := openBase(dst)
		check(t, err)
		defer s.close()
		var got []string
		for path, e := range s.entries {
			got = append(got, path)
			if string(s.text(e)) != path+"\n" {
				t.Errorf("%s: %q", path, s.text(e))
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
	write(f, dir+"/a/b", "x")
	write(f, dir+"/c", "x")
	mask, err := NewMask([]string{"c"}, []string{"d"})
	check(f, err)
	var out bytes.Buffer
	root, err := os.Open(dir)
	check(f, err)
	defer root.Close()
	_, err = Scan(f.Context(), root, mask, &out)
	check(f, err)
	f.Add(out.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseManifest(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		last := ""
		err = m.Below("", func(r Record) bool {
			if !validPath(r.Path) {
				t.Fatalf("%q", r.Path)
			}
			last = r.Path
			return true
		})
		if _, found, _, lookupErr := m.Lookup(last); err == nil && last != "" && lookupErr == nil && !found {
			// Blocks whose paths overlap are possible; they must only not crash anything.
			t.Skip()
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	var out bytes.Buffer
	mask, err := NewMask(nil, nil)
	check(b, err)
	w := newManifestWriter(&out, mask, 1)
	var paths []string
	for i := range 100_000 {
		paths = append(paths, fmt.Sprintf("dir%03d/sub%02d/file%d.txt", i/1000, i/100%10, i))
	}
	slices.SortFunc(paths, comparePaths)
	for _, p := range paths {
		w.add(&Record{Path: p, stat: stat{typ: typeFile, mode: 0o644, size: 10, mtime: 1e18, ctime: 1e18, inode: 1}})
	}
	check(b, w.close(false))
	b.ReportMetric(float64(out.Len())/float64(len(paths)), "bytes/record")
	for b.Loop() {
		m, err := parseManifest(bytes.NewReader(out.Bytes()), int64(out.Len()))
		check(b, err)
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
		s := &baseStore{entries: map[string]*baseEntry{}}
		if s.parse(withSum(base)) != nil {
			return
		}
		for path, e := range s.entries {
			if !validPath(path) || e.length > smallFile {
				t.Errorf("%q", path)
			}
		}
	})
}
