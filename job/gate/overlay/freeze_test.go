package overlay_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

func TestFreeze(t *testing.T) {
	o := overlaytest.New(t, func(host string) {
		gatetest.Write(t, host+"/keep", "keep\n")
		gatetest.Write(t, host+"/edit", "old\n")
		gatetest.Write(t, host+"/gone", "gone\n")
		gatetest.Write(t, host+"/dir/a", "a\n")
		gatetest.Write(t, host+"/opaque/old", "old\n")
		gatetest.Write(t, host+"/swapped/x", "x\n")
	})
	gatetest.Write(t, o.Box+"/edit", "new\n")
	gatetest.Must(t, os.Remove(o.Box+"/gone"))
	gatetest.Write(t, o.Box+"/dir/b", "same\n")
	gatetest.Write(t, o.Box+"/dir/c", "same\n")
	gatetest.Must(t, os.Link(o.Box+"/dir/c", o.Box+"/dir/linked"))
	gatetest.Must(t, os.RemoveAll(o.Box+"/opaque"))
	gatetest.Must(t, os.Mkdir(o.Box+"/opaque", 0o700))
	gatetest.Write(t, o.Box+"/opaque/new", "new\n")
	gatetest.Must(t, os.RemoveAll(o.Box+"/swapped"))
	gatetest.Must(t, os.Symlink("../elsewhere", o.Box+"/swapped"))
	gatetest.Must(t, unix.Mkfifo(o.Box+"/fifo", 0o644))
	gatetest.Must(t, unix.Mknod(o.Box+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	gatetest.Must(t, unix.Mknod(o.Box+"/block", unix.S_IFBLK|0o666, 0))
	huge, err := os.Create(o.Box + "/huge")
	gatetest.Must(t, err)
	gatetest.Must(t, huge.Truncate(50<<30))
	gatetest.Must(t, huge.Close())
	holes, err := os.Create(o.Box + "/holes")
	gatetest.Must(t, err)
	_, err = holes.WriteAt([]byte("middle"), 3<<20)
	gatetest.Must(t, err)
	gatetest.Must(t, holes.Truncate(8<<20))
	gatetest.Must(t, holes.Close())

	dst, f := o.Freeze(overlay.FreezeLimits{})
	var got []string
	for _, e := range f.Entries() {
		line := fmt.Sprintf("%s %s %o %d", e.Path, e.Type, e.Mode, e.Size)
		for what, on := range map[string]bool{" removed": e.Removed, " opaque": e.Opaque, " denied": e.Denied != ""} {
			if on {
				line += what
			}
		}
		if e.Link != "" {
			line += " -> " + e.Link
		}
		got = append(got, line)
		if e.Type == fsat.TypeFile && e.Denied == "" && e.Path != "holes" {
			want, err := os.ReadFile(filepath.Join(o.Box, e.Path))
			gatetest.Must(t, err)
			if text := overlaytest.Content(t, f, e.Hash); text != string(want) {
				t.Errorf("%s: %q", e.Path, text)
			}
		}
	}
	want := []string{
		"block device 644 0 denied", "dir dir 755 0", "dir/b file 644 5", "dir/c file 644 5", "dir/linked file 644 5",
		"edit file 644 4", "fifo fifo 644 0 denied", "gone none 0 0 removed", "holes file 644 8388608", "huge file 644 53687091200 denied",
		"null device 644 0 denied", "opaque dir 700 0 opaque", "opaque/new file 644 4", "swapped symlink 777 0 -> ../elsewhere",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The same content is kept once, and holes stay holes.
	objects, err := os.ReadDir(filepath.Join(dst.Name(), "objects"))
	gatetest.Must(t, err)
	if len(objects) != 1 {
		t.Errorf("%d objects: %v", len(objects), objects)
	}
	if small, err := os.ReadFile(filepath.Join(dst.Name(), "pack")); err != nil || string(small) != "same\nnew\n" {
		t.Errorf("small contents %q, %v", small, err)
	}
	e, _ := f.Lookup("holes")
	var st unix.Stat_t
	gatetest.Must(t, unix.Stat(filepath.Join(dst.Name(), "objects", e.Content), &st))
	if st.Size != 8<<20 || st.Blocks*512 > 1<<20 {
		t.Errorf("a file with holes became one of %d bytes on disk", st.Blocks*512)
	}
	if text := overlaytest.Content(t, f, e.Hash); len(text) != 8<<20 || text[3<<20:3<<20+6] != "middle" {
		t.Error("a file with holes has another content")
	}
	// Later changes in the sandbox do not change the copy under review.
	gatetest.Write(t, o.Box+"/edit", "newer\n")
	e, _ = f.Lookup("edit")
	if text := overlaytest.Content(t, f, e.Hash); text != "new\n" {
		t.Errorf("the copy changed to %q", text)
	}
	// A copy that is modified on disk is refused with Conflict.
	gatetest.Must(t, os.WriteFile(filepath.Join(dst.Name(), "pack"), []byte("evil\nevil\nevil\n"), 0o644))
	r, err := f.Object(e.Hash)
	gatetest.Must(t, err)
	defer r.Close()
	if _, err := io.ReadAll(r); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("a changed object: %v", err)
	}
	if _, err := f.Object("sha256:00"); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("an unknown object: %v", err)
	}
}
