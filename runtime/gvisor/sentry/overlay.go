package sentry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// overlayError reports that a workspace could not be mounted.
type overlayError struct {
	target string // mount point of the workspace in the sandbox
	err    error
}

func (e *overlayError) Error() string { return fmt.Sprintf("workspace at %s: %v", e.target, e.err) }
func (e *overlayError) Unwrap() error { return e.err }

// refusedTarget returns the target of the workspace whose mount failed with err, or "" if err has another cause.
func refusedTarget(err error) string {
	if e, ok := errors.AsType[*overlayError](err); ok {
		return e.target
	}
	return ""
}

// overlayOptions make overlayfs write the simple format that the gate reads: a removed name is a character device 0:0, a
// replaced directory has trusted.overlay.opaque, and there are no redirects. overlayfs uses the attributes trusted.overlay.*,
// which no guest can set; user.overlay.*, which a guest can set, has no effect. With xino, a file keeps its inode number when it
// is copied up even if the layers are on different file systems.
const overlayOptions = "redirect_dir=off,metacopy=off,index=off,nfs_export=off,xino=auto"

// mountOverlay mounts a workspace on dir. Its layers are attached to directories beside dir.
func mountOverlay(o *protocol.LaunchOverlay, lower int, dir string) error {
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
		if err := attachMount(fd, at); err != nil {
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
