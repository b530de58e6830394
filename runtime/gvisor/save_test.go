package gvisor

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// TestCopySparse checks that blocks of zeroes use no disk space, that the copy equals the input, and that the limit is enforced.
func TestCopySparse(t *testing.T) {
	t.Parallel()
	data := append(bytes.Repeat([]byte("x"), 100_000), make([]byte, 10<<20)...)
	data = append(append(data, "end"...), make([]byte, 70_000)...)
	path := filepath.Join(t.TempDir(), "copy")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := copySparse(f, bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes came out of %d, %v", len(got), len(data), err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if used := st.Blocks * 512; used > 1<<20 {
		t.Errorf("10 MiB of zeroes take %d bytes on disk", used)
	}
	g, err := os.Create(filepath.Join(t.TempDir(), "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := copySparse(g, strings.NewReader(strings.Repeat("y", 200_000)), 100_000); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("more than the limit: %v", err)
	}
}

// TestSaveSparseFiles checks that a guest's sparse files do not fill the host's disk when they are saved.
func TestSaveSparseFiles(t *testing.T) {
	t.Parallel()
	r := open(t)
	id := caisson.NewID("sb")
	spec := newSpec(t, r, id)
	spec.Resources.Memory, spec.Resources.Disk = 1<<30, 64<<20
	if err := r.Create(t.Context(), id, spec); err != nil {
		t.Fatal(err)
	}
	save := func() (int64, error) {
		f, err := os.Create(filepath.Join(t.TempDir(), "files.tar"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		err = r.SaveFiles(t.Context(), id, f)
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512, err
	}
	run(t, r, id, "/bin/sh", "-c", "truncate -s 200M /root/hole; echo kept > /root/file")
	if used, err := save(); err != nil || used > 2<<20 {
		t.Errorf("saving a sparse file: %d bytes on disk, %v", used, err)
	}
	run(t, r, id, "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7; do truncate -s 200M /root/hole$i; done")
	if used, err := save(); caisson.KindOf(err) != caisson.Exhausted || used > 4<<20 {
		t.Errorf("saving more than the limit: %d bytes on disk, %v", used, err)
	}
	if out, status := run(t, r, id, "cat", "/root/file"); !status.Success() || out != "kept\n" {
		t.Errorf("after a refused save the sandbox says %q, %v", out, status)
	}
}

// TestSaveLargeFile checks that a file within the disk limit but larger than the memory limit can be saved, and that the memory
// limit is raised by at most the disk limit for that.
func TestSaveLargeFile(t *testing.T) {
	t.Parallel()
	r := open(t)
	id := caisson.NewID("sb")
	spec := newSpec(t, r, id)
	spec.Resources.Memory, spec.Resources.Disk = 128<<20, 1<<30
	if err := r.Create(t.Context(), id, spec); err != nil {
		t.Fatal(err)
	}
	if out, status := run(t, r, id, "/bin/sh", "-c", "head -c 300M /dev/urandom > /root/large"); !status.Success() {
		t.Fatalf("%v: %s", status, out)
	}
	for range 2 { // the second while the limit that was raised for the first is being restored
		f, err := os.Create(filepath.Join(t.TempDir(), "files.tar"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := r.SaveFiles(t.Context(), id, f); err != nil {
			t.Fatal(err)
		}
		if info, err := f.Stat(); err != nil || info.Size() < 300<<20 {
			t.Errorf("%d bytes were saved, %v", info.Size(), err)
		}
	}
	s, err := r.get(id)
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.group()
	if err != nil {
		t.Fatal(err)
	}
	if limit, err := g.MemoryLimit(); err != nil || limit > 128<<20+1<<30 {
		t.Errorf("the memory limit is %d afterwards, %v", limit, err)
	}
}
