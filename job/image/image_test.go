package image

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/workertest"
)

func newDriver(t *testing.T, change ...func(*Config)) *Driver {
	t.Helper()
	cfg := Config{Dir: filepath.Join(t.TempDir(), "images"), Worker: workertest.Runner(t)}
	for _, c := range change {
		c(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// entry describes one entry of a test's archive.
type entry struct {
	name string
	kind byte // type flag of the tar header; 0 is a regular file
	body string
	link string
	mode int64
	uid  int
	pax  map[string]string
	dev  int64
}

func file(name, body string) entry        { return entry{name: name, body: body, mode: 0o644} }
func dir(name string) entry               { return entry{name: name, kind: tar.TypeDir, mode: 0o755} }
func symlink(name, to string) entry       { return entry{name: name, kind: tar.TypeSymlink, link: to} }
func hardlink(name, to string) entry      { return entry{name: name, kind: tar.TypeLink, link: to} }
func device(name string, dev int64) entry { return entry{name: name, kind: tar.TypeChar, dev: dev} }

func archiveOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		hdr := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Uid: e.uid, Gid: e.uid,
			Size: int64(len(e.body)), PAXRecords: e.pax, Devmajor: e.dev, Devminor: e.dev, ModTime: time.Unix(1_000_000_000, 0)}
		if e.kind == 0 {
			hdr.Typeflag = tar.TypeReg
		}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// listing describes a tree: one line for each file below dir, sorted by path.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		b.WriteString(rel)
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		switch {
		case isWhiteout(st):
			b.WriteString(" whiteout")
		case e.IsDir():
			b.WriteString("/")
			if v, err := xattr(p, opaqueAttr); err == nil {
				b.WriteString(" opaque=" + v)
			}
		case e.Type() == fs.ModeSymlink:
			to, _ := os.Readlink(p)
			b.WriteString(" -> " + to)
		case e.Type() == 0:
			data, _ := os.ReadFile(p)
			b.WriteString("=" + string(data))
		default:
			b.WriteString(" " + e.Type().String())
		}
		b.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func xattr(p, name string) (string, error) {
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(p, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func wantKind(t *testing.T, err error, kind caisson.Kind) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind {
		t.Errorf("got error %v, want one of kind %s", err, kind)
	}
}

type handle struct{ *os.File }

func openHandle(t *testing.T, path string) caisson.Handle {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return handle{f}
}

func newCancel(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	t.Cleanup(cancel)
	return ctx, cancel
}

func ownerOf(fi fs.FileInfo) uint32 {
	st, _ := fi.Sys().(*syscall.Stat_t)
	return st.Uid
}
