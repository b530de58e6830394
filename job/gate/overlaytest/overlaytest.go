// Package overlaytest mounts workspaces for tests, and freezes and compares them.
package overlaytest

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
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// Workspace is a workspace for tests: an overlay of a host directory, the layer that hides its hidden files, and an upper layer.
type Workspace struct {
	T        testing.TB
	Top      string   // directory that contains the other directories of the workspace
	Host     string   // the host directory
	Upper    string   // the upper layer
	Box      string   // mount point of the overlay: the directory that the sandbox sees
	Manifest *os.File // the manifest of Host
	reviews  int      // number of frozen copies that Freeze has made
}

// New makes a workspace of a directory that prepare fills.
func New(t testing.TB, prepare func(host string)) *Workspace {
	t.Helper()
	testneed.Root(t)
	// t.TempDir is not used, because its names can contain characters that have a meaning in mount options.
	top, err := os.MkdirTemp("", "caisson-gate")
	gatetest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	o := &Workspace{T: t, Top: top, Host: top + "/host", Upper: top + "/upper", Box: top + "/box"}
	for _, name := range []string{"host", "upper", "work", "mask", "box", "base"} {
		gatetest.Must(t, os.Mkdir(filepath.Join(top, name), 0o755))
	}
	prepare(o.Host)
	o.Manifest, err = os.Create(top + "/manifest")
	gatetest.Must(t, err)
	t.Cleanup(func() { o.Manifest.Close() })
	mask, err := baseline.NewMask(baseline.DefaultHidden(), nil)
	gatetest.Must(t, err)
	_, err = baseline.Scan(t.Context(), o.Dir("host"), mask, o.Manifest)
	gatetest.Must(t, err)
	gatetest.Must(t, baseline.SaveBase(t.Context(), o.Dir("host"), o.Manifest, o.Dir("base"), baseline.Limits{}))
	gatetest.Must(t, baseline.Cover(t.Context(), o.Manifest, o.Dir("mask")))
	options := fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s,redirect_dir=off,metacopy=off,index=off,nfs_export=off",
		top+"/mask", o.Host, o.Upper, top+"/work")
	if err = unix.Mount("caisson-test", o.Box, "overlay", 0, options); err == unix.ENODEV || err == unix.EPERM {
		testneed.Skip(t, "overlayfs", "cannot mount one: "+err.Error())
	}
	gatetest.Must(t, err)
	t.Cleanup(func() { unix.Unmount(o.Box, unix.MNT_DETACH) })
	return o
}

// Dir opens the directory name in Top.
func (o *Workspace) Dir(name string) *os.File {
	o.T.Helper()
	return gatetest.OpenDir(o.T, filepath.Join(o.Top, name))
}

// Freeze makes a frozen copy of the upper directory. It returns the directory of the copy, and the open copy.
func (o *Workspace) Freeze(limits overlay.FreezeLimits) (*os.File, *overlay.Frozen) {
	o.T.Helper()
	o.reviews++
	name := fmt.Sprintf("review%d", o.reviews)
	gatetest.Must(o.T, os.Mkdir(filepath.Join(o.Top, name), 0o755))
	dst := o.Dir(name)
	var marked bytes.Buffer
	gatetest.Must(o.T, overlay.Mark(o.T.Context(), o.Dir("upper"), &marked))
	f, err := overlay.Freeze(o.T.Context(), o.Dir("upper"), &marked, dst, limits)
	gatetest.Must(o.T, err)
	o.T.Cleanup(func() { f.Close() })
	return dst, f
}

// Compare freezes the upper directory and returns the differences and the frozen copy.
func (o *Workspace) Compare(opts compare.Options) ([]compare.Difference, *overlay.Frozen) {
	o.T.Helper()
	dst, _ := o.Freeze(overlay.FreezeLimits{})
	return o.CompareWith(dst, opts)
}

// CompareWith compares the existing frozen copy in the directory dst, and returns the differences and the frozen copy.
func (o *Workspace) CompareWith(dst *os.File, opts compare.Options) ([]compare.Difference, *overlay.Frozen) {
	o.T.Helper()
	merged, err := overlay.OpenMerged(dst)
	gatetest.Must(o.T, err)
	defer merged.Close()
	result, err := compare.Changes(o.T.Context(), o.Dir("host"), o.Manifest, o.Dir("base"), dst, merged, opts)
	gatetest.Must(o.T, err)
	f, err := overlay.OpenFrozen(dst)
	gatetest.Must(o.T, err)
	o.T.Cleanup(func() { f.Close() })
	return result.Differences, f
}

// Summary returns a text with one line for each difference, to be compared in tests.
func Summary(diffs []compare.Difference) string {
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
		if c.HostChanged {
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

// Content returns the content that f.Object opens for this hash.
func Content(t testing.TB, f *overlay.Frozen, hash string) string {
	t.Helper()
	r, err := f.Object(hash)
	gatetest.Must(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	gatetest.Must(t, err)
	return string(b)
}

// PrepareHost returns a function for [New] that creates a small tree with text files, a symlink and files that are hidden.
func PrepareHost(t testing.TB) func(string) {
	return func(host string) {
		gatetest.Write(t, host+"/a.txt", gatetest.Seven)
		gatetest.Write(t, host+"/dir/b.txt", "b\n")
		gatetest.Write(t, host+"/dir/c.txt", strings.Repeat("c\n", 99))
		gatetest.Write(t, host+"/dir/sub/d.txt", "d\n")
		gatetest.Write(t, host+"/conf/deep/server.pem", "secret\n")
		gatetest.Write(t, host+"/conf/x", "x\n")
		gatetest.Write(t, host+"/.env", "SECRET=1\n")
		gatetest.Must(t, os.Mkdir(host+"/shared", 0o755))
		gatetest.Must(t, os.Chmod(host+"/shared", 0o775|os.ModeSetgid))
		gatetest.Must(t, os.Symlink("a.txt", host+"/link"))
	}
}
