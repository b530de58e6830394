package sentry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A LaunchOverlay says what a [LaunchMount] is the lower layer of.
type LaunchOverlay struct {
	DirFD       int    // detached mount of the directory that has both layers
	Upper, Work string // names in it
	MaskFD      int    // detached mount of the layer that hides names; -1: none
	// Hide and Show are patterns of names that the gofer hides when they appear later.
	Hide, Show []string
}

// overlayError is why a workspace could not be mounted.
type overlayError struct {
	target string
	err    error
}

func (e *overlayError) Error() string { return fmt.Sprintf("workspace at %s: %v", e.target, e.err) }
func (e *overlayError) Unwrap() error { return e.err }

// refusedTarget returns where the workspace was to be whose mount the kernel refused, or "".
func refusedTarget(err error) string {
	if e, ok := errors.AsType[*overlayError](err); ok {
		return e.target
	}
	return ""
}

// overlayOptions keep what is written in the plain format that package gate reads: a removed name is a character device 0:0, a
// replaced directory has trusted.overlay.opaque, and nothing points elsewhere. Attributes of overlayfs's own are in trusted.*,
// which no guest can set; what it sets in user.overlay.* means nothing. With xino a file keeps its inode number when it is
// first written, where the layers are not on one file system.
const overlayOptions = "redirect_dir=off,metacopy=off,index=off,nfs_export=off,xino=auto"

// mountOverlay mounts a workspace on dir, with its layers beside it.
func (o *LaunchOverlay) mountOverlay(lower int, dir string) error {
	layers := map[string]int{"lower": lower, "dir": o.DirFD}
	lowers := dir + "-lower"
	if o.MaskFD >= 0 {
		layers["mask"] = o.MaskFD
		lowers = dir + "-mask:" + lowers
	}
	for name, fd := range layers {
		at := dir + "-" + name
		if err := os.Mkdir(at, 0o711); err != nil {
			return err
		}
		if err := attach(fd, at); err != nil {
			return err
		}
	}
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,%s",
		lowers, filepath.Join(dir+"-dir", o.Upper), filepath.Join(dir+"-dir", o.Work), overlayOptions)
	if err := unix.Mount("caisson", dir, "overlay", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	return nil
}
