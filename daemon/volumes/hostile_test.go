package volumes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// deep creates nested directories below a path, deeper than the limits of a path's length or of a process's descriptors.
func deep(t *testing.T, path string, n int) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_PATH, 0)
	must(t, err)
	for range n {
		must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_PATH, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
}

// hostile fills a volume with entries that a guest can create. It returns a directory outside of the volume, which must not be
// reached.
func hostile(t *testing.T, w *world, v *caisson.Volume) (outside string) {
	t.Helper()
	outside = filepath.Join(t.TempDir(), "outside")
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "file"), []byte("the host's"), 0o644))
	for name, target := range map[string]string{"dir": outside, "up": "../../..", "self": ".", "loop": "loop", "none": "/nonexistent", "root": "/"} {
		must(t, os.Symlink(target, w.data(v, name)))
	}
	must(t, os.Mkdir(w.data(v, "closed"), 0))
	must(t, os.Mkdir(w.data(v, "moved-1"), 0o755)) // a name that a removal uses
	must(t, os.WriteFile(w.data(v, "moved-1", "moved-2"), nil, 0o444))
	must(t, os.WriteFile(w.data(v, "name with\nnewline \xff"), nil, 0))
	must(t, unix.Mkfifo(w.data(v, "fifo"), 0o644))
	must(t, unix.Mknod(w.data(v, "socket"), unix.S_IFSOCK|0o644, 0))
	must(t, os.Mkdir(w.data(v, "wide"), 0o755))
	for i := range 1500 { // more than one read of a directory returns
		p := w.data(v, "wide", fmt.Sprint(i))
		if i%2 == 0 {
			must(t, os.Mkdir(p, 0o755))
		} else {
			must(t, os.WriteFile(p, nil, 0o644))
		}
	}
	return outside
}

func TestHostileRemoval(t *testing.T) {
	w := newWorld(t)
	v := w.create("a", "data")
	outside := hostile(t, w, v)
	deep(t, w.data(v), 2500) // longer than the maximum length of a path
	must(t, w.service.RemoveVolume(w.as("a"), "data"))
	w.dirs()
	if b, err := os.ReadFile(filepath.Join(outside, "file")); err != nil || string(b) != "the host's" {
		t.Errorf("a file out of the volume holds %q, %v", b, err)
	}
}

func TestCount(t *testing.T) {
	w := newWorld(t)
	w.core.SetCountTime(patience)
	if v := w.create("a", "empty"); w.get("a", "empty").CountedAt.IsZero() || w.get("a", "empty").Files != 0 || w.get("a", "empty").Bytes != 0 {
		t.Errorf("empty: %+v", v)
	}
	v := w.create("a", "data")
	hostile(t, w, v)
	must(t, os.WriteFile(w.data(v, "big"), make([]byte, 1<<20), 0o644))
	must(t, os.Link(w.data(v, "big"), w.data(v, "same"))) // counted once
	must(t, os.Truncate(w.data(v, "moved-1", "moved-2"), 1<<40))
	counted := w.get("a", "data")
	if want := int64(6 + 1 + 2 + 1 + 2 + 1501 + 1); counted.Files != want || counted.CountedAt.IsZero() {
		t.Errorf("counted %+v, want %d files", counted, want)
	}
	if b := counted.Bytes; b < 1<<20 || b > 16<<20 {
		t.Errorf("counted %d bytes", b)
	}
	must(t, os.WriteFile(w.data(v, "later"), nil, 0o644))
	if again := w.get("a", "data"); again.Files != counted.Files || !again.CountedAt.Equal(counted.CountedAt) {
		t.Errorf("counted again at once: %+v", again)
	}
	if u := got(w.core.Usage(t.Context()))(t); u.Count != 2 || u.Size != counted.Bytes {
		t.Errorf("together they take %+v, want %v", u, counted.Bytes)
	}
	if page, _, err := w.service.ListVolumes(w.as("a"), caisson.Filter{Name: "data"}); err != nil || page[0].Files != counted.Files {
		t.Errorf("listed %+v, %v", page, err)
	}
}

// TestTooMuchToCount checks that a volume that is too deep, or takes too long to count, keeps its last count.
func TestTooMuchToCount(t *testing.T) {
	w := newWorld(t)
	w.core.SetCountTime(0)
	long := w.create("a", "long")
	must(t, os.WriteFile(w.data(long, "file"), nil, 0o644))
	if got := w.get("a", "long"); got.Files != 0 || !got.CountedAt.IsZero() {
		t.Errorf("counted %+v", got)
	}
	must(t, w.service.RemoveVolume(w.as("a"), "long"))
	w.core.SetCountTime(patience)
	v := w.create("a", "data")
	deep(t, w.data(v), 300)
	if got := w.get("a", "data"); got.Files != 0 || !got.CountedAt.IsZero() {
		t.Errorf("counted %+v", got)
	}
	must(t, w.service.RemoveVolume(w.as("a"), "data"))
	w.dirs()
}
