package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

func pullPath(t *testing.T, d *Driver, kind, path string) (*caisson.Image, error) {
	t.Helper()
	return d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: kind + ":" + path, Source: openHandle(t, path)}, "alice", nil)
}

// frozen makes a layer of an archive.
func frozen(t *testing.T, d *Driver, archive []byte) (Layer, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(path, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	return frozenFile(t, d, path)
}

func frozenFile(t *testing.T, d *Driver, path string) (Layer, error) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return d.Layer(testContext(t), "alice", f)
}

func TestPullDir(t *testing.T) {
	d := newDriver(t)
	src := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(filepath.Join(src, "a/b"), 0o755),
		os.WriteFile(filepath.Join(src, "a/f"), []byte("1"), 0o600),
		os.Link(filepath.Join(src, "a/f"), filepath.Join(src, "a/g")),
		os.Symlink("../../../etc/shadow", filepath.Join(src, "s")),
		unix.Mkfifo(filepath.Join(src, "p"), 0o600),
		unix.Mknod(filepath.Join(src, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mknod(filepath.Join(src, "sock"), unix.S_IFSOCK|0o666, 0),
		os.Lchown(filepath.Join(src, "a/f"), 1234, 1234),
		os.Chmod(filepath.Join(src, "a/f"), 0o711|os.ModeSetuid),
	); err != nil {
		t.Fatal(err)
	}
	img, err := pullPath(t, d, "dir", src)
	if err != nil {
		t.Fatal(err)
	}
	layer := img.Rootfs.Layers[0]
	if got := listing(t, layer); got != "a/\na/b/\na/f=1\na/g=1\np p---------\ns -> ../../../etc/shadow\n" {
		t.Errorf("got\n%s", got)
	}
	fi, err := os.Lstat(filepath.Join(layer, "a/f"))
	if err != nil || ownerOf(fi) != caisson.LayerUIDBase || fi.Mode() != 0o711|os.ModeSetuid {
		t.Errorf("%v, %v", fi, err)
	}

	again, err := pullPath(t, d, "dir", src)
	if err != nil || again.Digest != img.Digest {
		t.Errorf("the same directory: %v, %v", again, err)
	}
	if err := os.WriteFile(filepath.Join(src, "a/f"), []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	changed, err := pullPath(t, d, "dir", src)
	if err != nil || changed.Digest == img.Digest {
		t.Errorf("a changed directory: %v, %v", changed, err)
	}
}

func TestPullDirReadsAsItsOwner(t *testing.T) {
	d := newDriver(t)
	src := filepath.Join(t.TempDir(), "src")
	if err := errors.Join(
		os.Mkdir(src, 0o700),
		os.WriteFile(filepath.Join(src, "mine"), []byte("1"), 0o600),
		os.Chown(src, 1234, 1234),
		os.Chown(filepath.Join(src, "mine"), 1234, 1234),
	); err != nil {
		t.Fatal(err)
	}
	img, err := pullPath(t, d, "dir", src)
	if err != nil || listing(t, img.Rootfs.Layers[0]) != "mine=1\n" {
		t.Fatalf("%v, %v", img, err)
	}
	if err := os.WriteFile(filepath.Join(src, "root's"), []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = pullPath(t, d, "dir", src)
	wantKind(t, err, caisson.Denied)
}

func TestPullTar(t *testing.T) {
	d := newDriver(t)
	path := filepath.Join(t.TempDir(), "x.tar.gz")
	if err := os.WriteFile(path, zipped(t, archiveOf(t, file("a", "1"))), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := pullPath(t, d, "tar", path)
	if err != nil || listing(t, img.Rootfs.Layers[0]) != "a=1\n" {
		t.Fatalf("%v, %v", img, err)
	}
	_, err = pullPath(t, d, "dir", path)
	wantKind(t, err, caisson.Invalid)
	_, err = pullPath(t, d, "tar", t.TempDir())
	wantKind(t, err, caisson.Invalid)
	if err := os.WriteFile(path, []byte(strings.Repeat("junk", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = pullPath(t, d, "tar", path)
	wantKind(t, err, caisson.Invalid)
}

func TestLayerFromFrozenArchive(t *testing.T) {
	d := newDriver(t)
	archive := archiveOf(t, dir("./"), device("./gone", 0), hardlink("./gone too", "./gone"), file("./.wh.x", "1"), entry{name: "./f", body: "2", uid: 1000, mode: 0o644})
	l, err := frozen(t, d, archive)
	if err != nil || listing(t, l.Path) != ".wh.x=1\nf=2\ngone whiteout\ngone too whiteout\n" {
		t.Fatalf("%v, %v", l, err)
	}
	again, err := frozen(t, d, archive)
	if err != nil || again != l {
		t.Errorf("%v, %v", again, err)
	}
	_, err = frozen(t, d, archive[:700])
	wantKind(t, err, caisson.Invalid)
	_, err = frozenFile(t, d, t.TempDir()) // which cannot be read
	wantKind(t, err, caisson.Internal)
}
