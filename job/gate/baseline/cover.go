package baseline

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// Cover creates the overlay layer that hides the hidden files of a scan. In layer, an empty directory, it creates a whiteout
// for each hidden path of the manifest, and its parent directories. overlayfs shows a directory with the permissions that it
// has in the topmost layer, so the parent directories get the permissions that they have on the host. Their owner is that of
// layer. Cover needs the rights of that owner and no others.
func Cover(ctx context.Context, manifest, layer *os.File) error {
	defer fsat.KeepAlive(layer)
	m, err := OpenManifest(manifest)
	if err != nil {
		return err
	}
	c := &Coverer{Layer: int(layer.Fd()), Modes: map[string]uint32{}}
	var above []Record // the parent directories of the current record, outermost first
	for r, err := range m.Below("") {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		for len(above) > 0 && !fsat.Below(r.Path, above[len(above)-1].Path) {
			above = above[:len(above)-1]
		}
		if r.Hidden {
			if err := c.hide(&r, above); err != nil {
				return err
			}
		} else if r.Type == fsat.TypeDir {
			above = append(above, r)
		}
	}
	return c.Finish()
}

// A Coverer creates whiteouts, directories and other entries in a layer of an overlay.
type Coverer struct {
	Layer int               // file descriptor of the layer
	Modes map[string]uint32 // permissions, by path, that the created directories get from Finish
	Order []string          // paths of the created directories in the order of creation
}

// hide creates a whiteout for the path of r. Before it, hide creates the directories in above, the parent directories of r,
// that do not exist.
func (c *Coverer) hide(r *Record, above []Record) error {
	for _, dir := range above {
		if _, made := c.Modes[dir.Path]; made {
			continue
		}
		if err := c.CreateAt(dir.Path, func(parent int, name string) error { return unix.Mkdirat(parent, name, 0o700) }); err != nil {
			return err
		}
		c.Modes[dir.Path] = dir.Mode
		c.Order = append(c.Order, dir.Path)
	}
	return c.CreateAt(r.Path, func(parent int, name string) error { return unix.Mknodat(parent, name, unix.S_IFCHR, 0) })
}

// CreateAt opens the parent directory of path in the layer, and calls do with its file descriptor and the last element of path.
// do creates the entry.
func (c *Coverer) CreateAt(path string, do func(parent int, name string) error) error {
	parent, err := fsat.Open(c.Layer, fsat.Parent(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open the directory of %s: %w", safetext.Path(path), err)
	}
	defer unix.Close(parent)
	if err := do(parent, path[len(fsat.Parent(path)):][btoi(fsat.Parent(path) != ""):]); err != nil {
		return fmt.Errorf("hide %s: %w", safetext.Path(path), err)
	}
	return nil
}

// btoi returns 1 if b is true, and 0 otherwise.
func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Finish sets the permissions of the created directories, from the leaves up, because the permissions of a directory may forbid
// access to the entries below it.
func (c *Coverer) Finish() error {
	for i := len(c.Order) - 1; i >= 0; i-- {
		path := c.Order[i]
		fd, err := fsat.Open(c.Layer, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", safetext.Path(path), err)
		}
		err = unix.Fchmod(fd, c.Modes[path])
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("chmod of %s: %w", safetext.Path(path), err)
		}
	}
	return nil
}
