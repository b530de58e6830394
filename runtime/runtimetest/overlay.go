package runtimetest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

var overlayTests = []test{
	{"Overlay", testOverlay},
	{"OverlayWithoutMask", testOverlayWithoutMask},
	{"OverlayOfRoot", testOverlayOfRoot},
	{"OverlayCheckpoint", testOverlayCheckpoint},
	{"OverlayForks", testOverlayForks},
}

// hostOwner is the uid and gid on the host that own the directories of workspaces in the tests.
const hostOwner = 1000

// A workspace is a host directory and the overlay with which it is mounted in a sandbox.
type workspace struct {
	t         *testing.T
	host, dir string               // the host directory; the directory that contains the overlay's directories upper, work and mask
	mount     caisson.RuntimeMount // the mount for the sandbox's spec
}

// newWorkspace creates a host directory, and an overlay with which it is mounted at /mnt/write. files maps the names of files in
// the host directory to their contents. Files whose names are in hide are hidden from the sandbox by the layer mask.
func newWorkspace(b *box, files map[string]string, hide ...string) *workspace {
	b.t.Helper()
	w := &workspace{t: b.t, host: b.t.TempDir(), dir: b.t.TempDir()}
	for name, content := range files {
		p := filepath.Join(w.host, name)
		must(w.t, "make a directory", os.MkdirAll(filepath.Dir(p), 0o755))
		must(w.t, "write a file", os.WriteFile(p, []byte(content), 0o640))
	}
	w.chown(w.host, hostOwner)
	for _, name := range []string{"upper", "work", "mask"} {
		must(w.t, "make a directory", os.Mkdir(filepath.Join(w.dir, name), 0o755))
	}
	for _, name := range hide {
		must(w.t, "mknod", unix.Mknod(filepath.Join(w.dir, "mask", name), unix.S_IFCHR, 0))
	}
	w.chown(w.dir, int(b.spec.UIDBase))
	w.mount = caisson.RuntimeMount{
		Source: openPath(b.t, w.host), Target: "/mnt/write",
		Overlay: &caisson.RuntimeOverlay{
			Upper: openPath(b.t, filepath.Join(w.dir, "upper")), Work: openPath(b.t, filepath.Join(w.dir, "work")),
			Mask: openPath(b.t, filepath.Join(w.dir, "mask")),
		},
	}
	return w
}

// chown sets the uid and gid of dir and of all files in it to id. It does nothing unless the test runs as root.
func (w *workspace) chown(dir string, id int) {
	w.t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	must(w.t, "chown", filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(p, id, id)
		}
		return err
	}))
}

// describeDir returns a text with the inode number, mode, owner, times and content of each file in a host directory.
func (w *workspace) describeDir(dir string) string {
	w.t.Helper()
	var out strings.Builder
	must(w.t, "describe", filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(p, &st)
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(&out, p, st.Ino, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim, st.Ctim)
		if d.Type().IsRegular() {
			content, err := os.ReadFile(p)
			fmt.Fprintf(&out, "%q %v\n", content, err)
		}
		return nil
	}))
	return out.String()
}

// describeUpper returns a description of the file name in the overlay's upper layer: "nothing" if it does not exist, "gone" if it
// is a whiteout, otherwise its type and content.
func (w *workspace) describeUpper(name string) string {
	p := filepath.Join(w.dir, "upper", name)
	var st unix.Stat_t
	if unix.Lstat(p, &st) != nil {
		return "nothing"
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		if st.Rdev == 0 {
			return "gone"
		}
	case unix.S_IFREG:
		content, _ := os.ReadFile(p)
		return "file " + string(content)
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		target, _ := os.Readlink(p)
		return "link " + target
	}
	return fmt.Sprintf("mode %o", st.Mode)
}

// testOverlay makes all kinds of changes in a workspace and checks that the changes are in the upper layer of its overlay, and
// not in the host directory.
func testOverlay(t *testing.T, s *suite) {
	b := s.newBox(t)
	w := newWorkspace(b, map[string]string{
		"keep": "keep", "edit": "old", "gone": "gone", "from": "moved", "tree/leaf": "leaf", "tree/twig": "twig", ".env": "secret",
	}, ".env")
	before := w.describeDir(w.host)
	b.spec.Mounts = []caisson.RuntimeMount{w.mount}
	b.create()
	b.wantContent("/mnt/write/edit", "old")
	b.wantOutput("file 0640 0 0 3", "stat", "/mnt/write/edit")
	b.wantAbsent("/mnt/write/.env")
	b.write("/mnt/write/edit", "new", 0)
	b.write("/mnt/write/made", "made", 0o751)
	must(t, "remove a file", b.files().RemoveFile(b.ctx(), "/mnt/write/gone", false))
	must(t, "remove a directory", b.files().RemoveFile(b.ctx(), "/mnt/write/tree", true))
	must(t, "move a file", b.files().MoveFile(b.ctx(), "/mnt/write/from", "/mnt/write/to"))
	must(t, "make a directory", b.files().MakeDir(b.ctx(), "/mnt/write/new/deep", true))
	b.write("/mnt/write/new/deep/file", "deep", 0o644)
	if r := b.run("fill", "/mnt/write/filled", "5000"); !r.status.Success() {
		t.Errorf("fill: %+v", r)
	}
	want := map[string]string{
		"keep": "nothing", "edit": "file new", "made": "file made", "gone": "gone", "tree": "gone", "from": "gone", "to": "file moved",
		"new/deep/file": "file deep", "filled": "file " + strings.Repeat("\x00", 5000), ".env": "nothing",
	}
	for name, look := range want {
		b.waitUntil(name+" is in the upper layer what it should be", func() bool { return w.describeUpper(name) == look })
	}
	if info, err := os.Lstat(filepath.Join(w.dir, "upper", "made")); err != nil || info.Mode() != 0o751 {
		t.Errorf("a file that was made with mode 751 is %v, %v", info, err)
	}
	if os.Geteuid() == 0 {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(w.dir, "upper", "made"), &st); err != nil || st.Uid != b.spec.UIDBase || st.Gid != b.spec.UIDBase {
			t.Errorf("a file of the guest's root is %d:%d's in the upper layer, %v", st.Uid, st.Gid, err)
		}
	}
	must(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
	if after := w.describeDir(w.host); after != before {
		t.Errorf("the host's directory was\n%s\nand is\n%s", before, after)
	}
	b.create() // create the sandbox again with the same overlay, as a start after a stop does
	for name, content := range map[string]string{"keep": "keep", "edit": "new", "to": "moved", "new/deep/file": "deep"} {
		b.wantContent("/mnt/write/"+name, content)
	}
	for _, name := range []string{"gone", "tree", "from", ".env"} {
		b.wantAbsent("/mnt/write/" + name)
	}
	// Removed files and directories can be created again.
	must(t, "make a directory", b.files().MakeDir(b.ctx(), "/mnt/write/tree", false))
	b.write("/mnt/write/gone", "again", 0o644)
	b.wantAbsent("/mnt/write/tree/leaf")
	b.waitUntil("it is in the upper layer", func() bool { return w.describeUpper("gone") == "file again" && w.describeUpper("tree") == "directory" })
	must(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
	b.create()
	b.wantAbsent("/mnt/write/tree/leaf")
	if after := w.describeDir(w.host); after != before {
		t.Errorf("in the end the host's directory was\n%s\nand is\n%s", before, after)
	}
}

// testOverlayWithoutMask mounts a workspace whose overlay hides no files.
func testOverlayWithoutMask(t *testing.T, s *suite) {
	b := s.newBox(t)
	w := newWorkspace(b, map[string]string{".env": "seen"})
	w.mount.Overlay.Mask = nil
	w.mount.Target = "/made/for/it" // a directory that does not exist in any layer of the root file system
	b.spec.Mounts = []caisson.RuntimeMount{w.mount}
	b.create()
	b.wantContent("/made/for/it/.env", "seen")
}

// testOverlayOfRoot mounts a directory that the host's root owns, which is refused unless the mount permits it.
func testOverlayOfRoot(t *testing.T, s *suite) {
	if os.Geteuid() != 0 {
		t.Skip("needs directories of root's")
	}
	b := s.newBox(t)
	w := newWorkspace(b, map[string]string{"file": "root's"})
	w.chown(w.host, 0)
	before := entries(t, b.spec.Dir)
	b.spec.Mounts = []caisson.RuntimeMount{w.mount}
	wantKind(t, "a workspace of root's directory", s.Runtime.Create(b.ctx(), b.id, b.spec), caisson.Invalid)
	if after := entries(t, b.spec.Dir); len(after) != len(before) {
		t.Errorf("the sandbox's directory has %q, and had %q before", after, before)
	}
	w.mount.Overlay.Root = true
	b.create()
	b.wantOutput("file 0640 0 0 6", "stat", "/mnt/write/file")
}

// testOverlayCheckpoint checks that a restored sandbox continues with the files in the upper layer of its workspace.
func testOverlayCheckpoint(t *testing.T, s *suite) {
	c := s.checkpointer(t)
	b := s.newBox(t)
	w := newWorkspace(b, map[string]string{"keep": "keep"})
	b.spec.Mounts, b.spec.Command = []caisson.RuntimeMount{w.mount}, s.argv("counter", "/mnt/write/count")
	b.create()
	b.write("/mnt/write/made", "made", 0o644)
	b.waitUntil("it has counted", func() bool { return b.count("/mnt/write/count") >= 3 })
	dir := b.checkpoint(false)
	if got := w.describeUpper("made"); got != "file made" {
		t.Errorf("while the sandbox stands still, the upper layer has %q", got)
	}
	must(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
	var n int
	fmt.Sscanf(w.describeUpper("count"), "file %d", &n)
	must(t, "Restore", c.Restore(b.ctx(), b.id, b.spec, dir))
	b.waitUntil("it counts on", func() bool { return b.count("/mnt/write/count") > n })
	b.wantContent("/mnt/write/keep", "keep")
	b.wantContent("/mnt/write/made", "made")
}

// testOverlayForks captures a sandbox with an empty workspace, and restores forks of it, each with another directory as
// workspace.
func testOverlayForks(t *testing.T, s *suite) {
	c := s.checkpointer(t)
	b := s.newBox(t)
	b.spec.Mounts = []caisson.RuntimeMount{newWorkspace(b, nil).mount}
	b.spec.Command, b.spec.Workdir = s.argv("counter", "/count"), "/mnt/write"
	b.create()
	b.waitUntil("it has counted", func() bool { return b.count("/count") >= 3 })
	dir := b.checkpoint(true)
	for i := range 2 {
		fork := s.newBox(t)
		name := fmt.Sprint("file", i)
		w := newWorkspace(fork, map[string]string{name: name})
		fork.spec.Mounts = []caisson.RuntimeMount{w.mount}
		fork.spec.Command, fork.spec.Workdir = b.spec.Command, b.spec.Workdir
		must(t, "Restore with another directory", c.Restore(fork.ctx(), fork.id, fork.spec, dir))
		fork.wantContent("/mnt/write/"+name, name)
		fork.wantAbsent("/mnt/write/" + fmt.Sprint("file", 1-i))
		fork.write("/mnt/write/made", name, 0o644)
		fork.waitUntil("it is in the fork's upper layer", func() bool { return w.describeUpper("made") == "file "+name })
		n := fork.count("/count")
		fork.waitUntil("the fork counts on", func() bool { return fork.count("/count") > n })
	}
	b.wantAbsent("/mnt/write/made")
}
