package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

var roomy = unpackArgs{MaxIn: 64 << 20, MaxOut: 64 << 20, MaxEntries: 1000}

// unpackHere unpacks in the test process, into a directory with a sibling that must never change.
func unpackHere(t testing.TB, archive []byte, args unpackArgs) (string, *unpackResult, error) {
	t.Helper()
	testneed.Root(t)
	top := t.TempDir()
	root := filepath.Join(top, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(top, "outside"), []byte("safe"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	u, err := unpack(f, bytes.NewReader(archive), args, nil)
	entries, rerr := os.ReadDir(top)
	body, ferr := os.ReadFile(filepath.Join(top, "outside"))
	var st unix.Stat_t
	if rerr != nil || ferr != nil || len(entries) != 2 || string(body) != "safe" || unix.Stat(filepath.Join(top, "outside"), &st) != nil ||
		st.Mode&0o7777 != 0o600 || st.Nlink != 1 {
		t.Fatalf("something outside was touched: %v %q %v %v", entries, body, rerr, ferr)
	}
	return root, u, err
}

func TestUnpack(t *testing.T) {
	opaque := map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
	tests := []struct {
		name    string
		entries []entry
		frozen  bool
		want    string
	}{
		{name: "files", entries: []entry{dir("a/"), file("a/b", "1"), file("./c", "2")}, want: "a/\na/b=1\nc=2\n"},
		{name: "missing parents", entries: []entry{file("a/b/c", "1")}, want: "a/\na/b/\na/b/c=1\n"},
		{name: "absolute", entries: []entry{file("/a", "1"), file("//b", "2")}, want: "a=1\nb=2\n"},
		{name: "dots", entries: []entry{file("../../outside", "1"), file("x/../../y", "2")}, want: "outside=1\ny=2\n"},
		{name: "later wins", entries: []entry{file("a", "1"), file("a", "2")}, want: "a=2\n"},
		{name: "file for directory", entries: []entry{dir("a"), file("a/b", "1"), file("a", "2")}, want: "a=2\n"},
		{name: "directory for file", entries: []entry{file("a", "1"), dir("a"), file("a/b", "2")}, want: "a/\na/b=2\n"},
		{name: "directory again", entries: []entry{dir("a"), file("a/b", "1"), dir("a")}, want: "a/\na/b=1\n"},
		{name: "symlink for directory", entries: []entry{dir("a"), file("a/b", "1"), symlink("a", "/etc")}, want: "a -> /etc\n"},
		{name: "symlinks stay", entries: []entry{symlink("a", "../../outside"), symlink("b", "/outside")},
			want: "a -> ../../outside\nb -> /outside\n"},
		{name: "file for symlink", entries: []entry{symlink("a", "../outside"), file("a", "1")}, want: "a=1\n"},
		{name: "hard link", entries: []entry{file("a", "1"), hardlink("b", "a"), hardlink("c", "/a")}, want: "a=1\nb=1\nc=1\n"},
		{name: "hard link to symlink", entries: []entry{symlink("a", "../outside"), hardlink("b", "a")},
			want: "a -> ../outside\nb -> ../outside\n"},
		{name: "devices left out", entries: []entry{device("null", 1), device("zero", 0), file("a", "1")}, want: "a=1\n"},
		{name: "fifo", entries: []entry{{name: "p", kind: tar.TypeFifo, mode: 0o600}}, want: "p p---------\n"},
		{name: "whiteout", entries: []entry{file("a/.wh.b", "")}, want: "a/\na/b whiteout\n"},
		{name: "opaque", entries: []entry{dir("a"), file("a/.wh..wh..opq", ""), file("a/b", "1")}, want: "a/ opaque=y\na/b=1\n"},
		{name: "opaque first", entries: []entry{file("a/.wh..wh..opq", ""), dir("a")}, want: "a/ opaque=y\n"},
		{name: "whiteout of own file", entries: []entry{file("a", "1"), file(".wh.a", "")}, want: "a=1\n"},
		{name: "whiteout before own file", entries: []entry{file(".wh.a", ""), file("a", "1")}, want: "a=1\n"},
		{name: "whiteout before own directory", entries: []entry{file(".wh.a", ""), dir("a"), file("a/b", "1")}, want: "a/ opaque=y\na/b=1\n"},
		{name: "whiteout of own directory", entries: []entry{dir("a"), file(".wh.a", "")}, want: "a/ opaque=y\n"},
		{name: "remains of aufs", entries: []entry{file(".wh..wh.plnk", ""), dir(".wh..wh.aufs")}, want: ""},
		{name: "frozen", frozen: true, entries: []entry{dir("./"), {name: "./d/", kind: tar.TypeDir, mode: 0o755, pax: opaque},
			device("./gone", 0), device("./null", 1), file("./.wh.x", "1"), file("./d/f", "2"), hardlink("./d/g", "./d/f")},
			want: ".wh.x=1\nd/ opaque=y\nd/f=2\nd/g=2\ngone whiteout\n"},
		{name: "opaque attribute from a stranger", entries: []entry{{name: "d/", kind: tar.TypeDir, mode: 0o755, pax: map[string]string{
			"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.overlay.opaque": "y"}}}, want: "d/\n"},
		{name: "opaque attribute from inside", frozen: true, entries: []entry{{name: "d/", kind: tar.TypeDir, mode: 0o755,
			pax: map[string]string{"SCHILY.xattr.user.overlay.opaque": "y"}}}, want: "d/\n"},
		{name: "long names", entries: []entry{file(strings.Repeat(strings.Repeat("d", 200)+"/", 10)+"f", "1")},
			want: longListing(10) + strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 200)+"/", 10), "") + "f=1\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := roomy
			args.Frozen = tt.frozen
			root, _, err := unpackHere(t, archiveOf(t, tt.entries...), args)
			if err != nil {
				t.Fatal(err)
			}
			if got := listing(t, root); got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
}

func longListing(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		b.WriteString(strings.Repeat(strings.Repeat("d", 200)+"/", i) + "\n")
	}
	return b.String()
}

func TestPromise4UnpackRefuses(t *testing.T) {
	good := archiveOf(t, file("a", strings.Repeat("x", 4000)))
	tests := []struct {
		name    string
		archive []byte
		args    unpackArgs
		kind    caisson.Kind
	}{
		{"write beneath symlink", archiveOf(t, symlink("a", ".."), file("a/outside", "bad")), roomy, caisson.Invalid},
		{"write beneath symlink inside", archiveOf(t, dir("b"), symlink("a", "b"), file("a/x", "bad")), roomy, caisson.Invalid},
		{"directory replaced by symlink", archiveOf(t, dir("a"), file("a/x", "1"), symlink("a", ".."), file("a/outside", "bad")), roomy, caisson.Invalid},
		{"chain of symlinks", archiveOf(t, symlink("a", "."), symlink("a/b", ".."), file("a/b/outside", "bad")), roomy, caisson.Invalid},
		{"whiteout beneath symlink", archiveOf(t, symlink("a", ".."), file("a/.wh.outside", "")), roomy, caisson.Invalid},
		{"opaque symlink", archiveOf(t, symlink("a", ".."), file("a/.wh..wh..opq", "")), roomy, caisson.Invalid},
		{"opaque root", archiveOf(t, file(".wh..wh..opq", "")), roomy, caisson.Invalid},
		{"whiteout of nothing", archiveOf(t, file(".wh.", "")), roomy, caisson.Invalid},
		{"whiteout of parent", archiveOf(t, file("a/.wh...", "")), roomy, caisson.Invalid},
		{"beneath a file", archiveOf(t, file("a", "1"), file("a/b", "2")), roomy, caisson.Invalid},
		{"hard link outside", archiveOf(t, hardlink("a", "../outside")), roomy, caisson.Invalid},
		{"hard link through symlink", archiveOf(t, symlink("s", ".."), hardlink("a", "s/outside")), roomy, caisson.Invalid},
		{"hard link to directory", archiveOf(t, dir("d"), hardlink("a", "d")), roomy, caisson.Invalid},
		{"hard link to whiteout", archiveOf(t, file(".wh.w", ""), hardlink("a", "w")), roomy, caisson.Invalid},
		{"hard link to own parent", archiveOf(t, file("d/f", "1"), hardlink("d", "d/f")), roomy, caisson.Invalid},
		{"symlink to nothing", archiveOf(t, symlink("a", "")), roomy, caisson.Invalid},
		{"root is a file", archiveOf(t, symlink("/", "x")), roomy, caisson.Invalid},
		{"foreign owner", archiveOf(t, entry{name: "a", uid: 65536}), roomy, caisson.Invalid},
		{"long component", archiveOf(t, file(strings.Repeat("x", 256), "")), roomy, caisson.Invalid},
		{"long path", archiveOf(t, file(strings.Repeat("xx/", 1500)+"f", "")), roomy, caisson.Invalid},
		{"deep path", archiveOf(t, file(strings.Repeat("x/", 200)+"f", "")), roomy, caisson.Invalid},
		{"truncated", good[:1000], roomy, caisson.Invalid},
		{"truncated gzip", zipped(t, good)[:40], roomy, caisson.Invalid},
		{"damaged gzip", flip(zipped(t, good), 30), roomy, caisson.Invalid},
		{"xz", []byte("\xfd7zXZ\x00 and so on"), roomy, caisson.Invalid},
		{"junk", bytes.Repeat([]byte("junk"), 1000), roomy, caisson.Invalid},
		{"too many", archiveOf(t, file("a", ""), file("b", ""), file("c", "")), unpackArgs{MaxIn: 1 << 20, MaxOut: 1 << 20, MaxEntries: 2}, caisson.Exhausted},
		{"too large", good, unpackArgs{MaxIn: 1 << 20, MaxOut: 3000, MaxEntries: 2}, caisson.Exhausted},
		{"too large to come in", good, unpackArgs{MaxIn: 3000, MaxOut: 1 << 20, MaxEntries: 2}, caisson.Exhausted},
		{"bomb", zipped(t, archiveOf(t, file("a", strings.Repeat("\x00", 8<<20)))), unpackArgs{MaxIn: 1 << 20, MaxOut: 1 << 20, MaxEntries: 2}, caisson.Exhausted},
		{"bomb after the end", zipped(t, append(archiveOf(t, file("a", "")), make([]byte, 8<<20)...)), unpackArgs{MaxIn: 1 << 20, MaxOut: 1 << 20, MaxEntries: 2}, caisson.Exhausted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := unpackHere(t, tt.archive, tt.args)
			wantKind(t, err, tt.kind)
		})
	}
}

func zipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func flip(b []byte, i int) []byte {
	b[i] ^= 0xff
	return b
}

func TestUnpackKeepsMetadata(t *testing.T) {
	root, _, err := unpackHere(t, archiveOf(t,
		entry{name: "listed/nowhere", mode: 0o600, uid: 5},
		entry{name: "d/", kind: tar.TypeDir, mode: 0o1555, uid: 7},
		entry{name: "d/su", body: "x", mode: 0o4755, uid: 3, pax: map[string]string{
			"SCHILY.xattr.user.colour": "red", "SCHILY.xattr.security.capability": "x", "SCHILY.xattr.trusted.x": "y",
			"SCHILY.xattr.user.overlay.redirect": "/etc"}},
		entry{name: "s", kind: tar.TypeSymlink, link: "d", uid: 9},
	), roomy)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"d": "1555 7 1000000000", "d/su": "4755 3 1000000000", "s": "777 9 1000000000", "listed/nowhere": "600 5 1000000000"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%o %d %d", st.Mode&0o7777, st.Uid, st.Mtim.Sec); got != want || st.Uid != st.Gid {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	if fi, err := os.Stat(filepath.Join(root, "listed")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("a missing parent: %v, %v", fi.Mode(), err)
	}
	su := filepath.Join(root, "d/su")
	if v, err := xattr(su, "user.colour"); err != nil || v != "red" {
		t.Errorf("user.colour: %q, %v", v, err)
	}
	for _, name := range []string{"security.capability", "trusted.x", "user.overlay.redirect"} {
		if v, err := xattr(su, name); err == nil {
			t.Errorf("%s was kept: %q", name, v)
		}
	}
}

func TestUnpackCompressions(t *testing.T) {
	plain := archiveOf(t, file("a", "1"))
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var diffID string
	for name, b := range map[string][]byte{"plain": plain, "gzip": zipped(t, plain), "zstd": enc.EncodeAll(plain, nil)} {
		root, u, err := unpackHere(t, b, roomy)
		if err != nil || listing(t, root) != "a=1\n" {
			t.Fatalf("%s: %v", name, err)
		}
		if diffID == "" {
			diffID = u.DiffID
		}
		if u.DiffID != diffID || u.InSize != int64(len(b)) {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archiveOf(f, symlink("a", ".."), file("a/outside", "bad")), false)
	f.Add(archiveOf(f, dir("a"), file("a/.wh.b", ""), hardlink("c", "../outside"), device("d", 0)), true)
	f.Add(zipped(f, archiveOf(f, file("../x", "1"), file(".wh..wh..opq", ""))), false)
	f.Add([]byte("BZh9"), false)
	f.Fuzz(func(t *testing.T, b []byte, frozen bool) {
		args := unpackArgs{MaxIn: 1 << 20, MaxOut: 1 << 20, MaxEntries: 100, Frozen: frozen}
		_, u, err := unpackHere(t, b, args)
		if err == nil && u.Size > 2<<20 {
			t.Errorf("unpacked %d bytes", u.Size)
		}
	})
}

func FuzzCleanPath(f *testing.F) {
	for _, s := range []string{"", "/", "a", "../a", "a/../../b", "./", "a//b", ".wh.x", "\x00", strings.Repeat("a/", 500)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := cleanPath(s)
		if err != nil {
			return
		}
		if !filepath.IsLocal(p) || p != filepath.Clean(p) || strings.HasPrefix(p, "..") && (len(p) == 2 || p[2] == '/') {
			t.Errorf("%q became %q", s, p)
		}
		if again, err := cleanPath(p); err != nil || again != p {
			t.Errorf("%q became %q, then %q, %v", s, p, again, err)
		}
	})
}
