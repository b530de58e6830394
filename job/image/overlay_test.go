package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testneed"
)

// The kernel's overlayfs must apply the whiteouts and opaque directories of the layers.
func TestLayersInAnOverlay(t *testing.T) {
	d := newDriver(t)
	bottom := freeze(t, d, "below")
	top, err := frozen(t, d, archiveOf(t, device("./gone", 0), file("./new", "2"),
		entry{name: "./d/", kind: '5', mode: 0o755, pax: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}}, file("./d/new", "3")))
	if err != nil {
		t.Fatal(err)
	}
	more, err := frozen(t, d, archiveOf(t, file("gone", "1"), file("d/old", "1")))
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "merged")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	options := "userxattr,lowerdir=" + strings.Join([]string{top.Path, more.Path, bottom.Path}, ":")
	if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		testneed.Skip(t, "overlay", err.Error())
	}
	defer unix.Unmount(at, unix.MNT_DETACH)
	if got := listing(t, at); got != "d/ opaque=y\nd/new=3\nf=below\nnew=2\n" && got != "d/\nd/new=3\nf=below\nnew=2\n" {
		t.Errorf("got\n%s", got)
	}
}
