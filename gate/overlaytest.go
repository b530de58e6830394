package gate

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// overlay is a workspace: a host directory under a mask and an upper layer, mounted as a sandbox has it.
type overlay struct {
	t        testing.TB
	top      string // has all the others
	host     string
	upper    string
	box      string // what the sandbox sees
	manifest *os.File
	reviews  int
}

// newOverlay makes a workspace of a directory that prepare fills.
func newOverlay(t testing.TB, prepare func(host string)) *overlay {
	t.Helper()
	testneed.Root(t)
	// Not t.TempDir: its names have characters that mean something in mount options.
	top, err := os.MkdirTemp("", "caisson-gate")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	o := &overlay{t: t, top: top, host: top + "/host", upper: top + "/upper", box: top + "/box"}
	for _, name := range []string{"host", "upper", "work", "mask", "box", "base"} {
		check(t, os.Mkdir(filepath.Join(top, name), 0o755))
	}
	prepare(o.host)
	o.manifest, err = os.Create(top + "/manifest")
	check(t, err)
	t.Cleanup(func() { o.manifest.Close() })
	mask, err := NewMask(DefaultHidden(), nil)
	check(t, err)
	_, err = Scan(t.Context(), o.dir("host"), mask, o.manifest)
	check(t, err)
	check(t, Base(t.Context(), o.dir("host"), o.manifest, o.dir("base"), BaseLimits{}))
	check(t, Cover(t.Context(), o.manifest, o.dir("mask")))
	options := fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s,redirect_dir=off,metacopy=off,index=off,nfs_export=off",
		top+"/mask", o.host, o.upper, top+"/work")
	if err = unix.Mount("caisson-test", o.box, "overlay", 0, options); err == unix.ENODEV || err == unix.EPERM {
		testneed.Skip(t, "overlayfs", "cannot mount one: "+err.Error())
	}
	check(t, err)
	t.Cleanup(func() { unix.Unmount(o.box, unix.MNT_DETACH) })
	return o
}

// dir opens one of the workspace's directories.
func (o *overlay) dir(name string) *os.File {
	o.t.Helper()
	return openTestDir(o.t, filepath.Join(o.top, name))
}

// freeze makes a review and returns its directory.
func (o *overlay) freeze(limits FreezeLimits) (*os.File, *Frozen) {
	o.t.Helper()
	o.reviews++
	name := fmt.Sprintf("review%d", o.reviews)
	check(o.t, os.Mkdir(filepath.Join(o.top, name), 0o755))
	dst := o.dir(name)
	var marked bytes.Buffer
	check(o.t, Mark(o.t.Context(), o.dir("upper"), &marked))
	f, err := Freeze(o.t.Context(), o.dir("upper"), &marked, dst, limits)
	check(o.t, err)
	o.t.Cleanup(func() { f.Close() })
	return dst, f
}

// compare returns what has changed, and the copy of it.
func (o *overlay) compare(opts CompareOptions) ([]Difference, *Frozen) {
	o.t.Helper()
	dst, _ := o.freeze(FreezeLimits{})
	return o.compareWith(dst, opts)
}

func (o *overlay) compareWith(dst *os.File, opts CompareOptions) ([]Difference, *Frozen) {
	o.t.Helper()
	merged, err := MergedDir(dst)
	check(o.t, err)
	defer merged.Close()
	result, err := Compare(o.t.Context(), o.dir("host"), o.manifest, o.dir("base"), dst, merged, opts)
	check(o.t, err)
	f, err := OpenFrozen(dst)
	check(o.t, err)
	o.t.Cleanup(func() { f.Close() })
	return result.Differences, f
}

// summary is one line for each difference.
func summary(diffs []Difference) string {
	var lines []string
	for _, d := range diffs {
		c := d.Change
		line := c.Kind + " " + c.Path
		if c.OldPath != "" {
			line = c.Kind + " " + c.OldPath + " " + c.Path
		}
		if c.OldType != c.Type && c.Kind == caisson.ChangeType {
			line += " " + c.OldType + " " + c.Type
		}
		if c.Mode != c.OldMode && c.Kind == caisson.ChangeMode {
			line += fmt.Sprintf(" %o %o", c.OldMode, c.Mode)
		}
		if c.Moved {
			line += " moved"
		}
		if c.Merge {
			line += " merge"
		}
		if c.Verdict != "" {
			line += " " + c.Verdict
		}
		if (c.Verdict == "") != (len(d.Steps) > 0) {
			line += fmt.Sprintf(" with %d steps", len(d.Steps))
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func contentOf(t testing.TB, f *Frozen, hash string) string {
	t.Helper()
	r, err := f.Object(hash)
	check(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	check(t, err)
	return string(b)
}

func prepareHost(t testing.TB) func(string) {
	return func(host string) {
		write(t, host+"/a.txt", seven)
		write(t, host+"/dir/b.txt", "b\n")
		write(t, host+"/dir/c.txt", strings.Repeat("c\n", 99))
		write(t, host+"/dir/sub/d.txt", "d\n")
		write(t, host+"/conf/deep/server.pem", "secret\n")
		write(t, host+"/conf/x", "x\n")
		write(t, host+"/.env", "SECRET=1\n")
		check(t, os.Mkdir(host+"/shared", 0o755))
		check(t, os.Chmod(host+"/shared", 0o775|os.ModeSetgid))
		check(t, os.Symlink("a.txt", host+"/link"))
	}
}
