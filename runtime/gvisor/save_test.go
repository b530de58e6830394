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

// TestCopySparse: zeroes take no room on disk, what is copied is what was read, and too much is refused.
func TestCopySparse(t *testing.T) {
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

// TestSaveSparseFiles: a guest's sparse files do not fill the host's disk when they are saved.
func TestSaveSparseFiles(t *testing.T) {
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
