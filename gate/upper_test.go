package gate

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
)

func TestFreeze(t *testing.T) {
	o := newOverlay(t, func(host string) {
		write(t, host+"/keep", "keep\n")
		write(t, host+"/edit", "old\n")
		write(t, host+"/gone", "gone\n")
		write(t, host+"/dir/a", "a\n")
		write(t, host+"/opaque/old", "old\n")
		write(t, host+"/swapped/x", "x\n")
	})
	write(t, o.box+"/edit", "new\n")
	check(t, os.Remove(o.box+"/gone"))
	write(t, o.box+"/dir/b", "same\n")
	write(t, o.box+"/dir/c", "same\n")
	check(t, os.Link(o.box+"/dir/c", o.box+"/dir/linked"))
	check(t, os.RemoveAll(o.box+"/opaque"))
	check(t, os.Mkdir(o.box+"/opaque", 0o700))
	write(t, o.box+"/opaque/new", "new\n")
	check(t, os.RemoveAll(o.box+"/swapped"))
	check(t, os.Symlink("../elsewhere", o.box+"/swapped"))
	check(t, unix.Mkfifo(o.box+"/fifo", 0o644))
	check(t, unix.Mknod(o.box+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	check(t, unix.Mknod(o.box+"/block", unix.S_IFBLK|0o666, 0))
	huge, err := os.Create(o.box + "/huge")
	check(t, err)
	check(t, huge.Truncate(50<<30))
	check(t, huge.Close())
	holes, err := os.Create(o.box + "/holes")
	check(t, err)
	_, err = holes.WriteAt([]byte("middle"), 3<<20)
	check(t, err)
	check(t, holes.Truncate(8<<20))
	check(t, holes.Close())

	dst, f := o.freeze(FreezeLimits{})
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
		if e.Type == typeFile && e.Denied == "" && e.Path != "holes" {
			want, err := os.ReadFile(filepath.Join(o.box, e.Path))
			check(t, err)
			if text := contentOf(t, f, e.Hash); text != string(want) {
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
	check(t, err)
	if len(objects) != 1 {
		t.Errorf("%d objects: %v", len(objects), objects)
	}
	if small, err := os.ReadFile(filepath.Join(dst.Name(), "pack")); err != nil || string(small) != "same\nnew\n" {
		t.Errorf("small contents %q, %v", small, err)
	}
	e, _ := f.Lookup("holes")
	var st unix.Stat_t
	check(t, unix.Stat(filepath.Join(dst.Name(), "objects", e.Content), &st))
	if st.Size != 8<<20 || st.Blocks*512 > 1<<20 {
		t.Errorf("a file with holes became one of %d bytes on disk", st.Blocks*512)
	}
	if text := contentOf(t, f, e.Hash); len(text) != 8<<20 || text[3<<20:3<<20+6] != "middle" {
		t.Error("a file with holes has another content")
	}
	// What was reviewed does not change any more.
	write(t, o.box+"/edit", "newer\n")
	e, _ = f.Lookup("edit")
	if text := contentOf(t, f, e.Hash); text != "new\n" {
		t.Errorf("the copy changed to %q", text)
	}
	// And if it does, nobody takes it for what was reviewed.
	check(t, os.WriteFile(filepath.Join(dst.Name(), "pack"), []byte("evil\nevil\nevil\n"), 0o644))
	r, err := f.Object(e.Hash)
	check(t, err)
	defer r.Close()
	if _, err := io.ReadAll(r); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("a changed object: %v", err)
	}
	if _, err := f.Object("sha256:00"); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("an unknown object: %v", err)
	}
}
