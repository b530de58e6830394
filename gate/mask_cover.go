package gate

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// Cover makes the layer that hides what a scan has found to be hidden: in layer, an empty directory, a whiteout for each hidden
// path of the manifest and the directories above it. A merged directory looks like the topmost one, so these get the permissions
// that the host's have; their owner is that of layer. It needs the rights of that owner and no others.
func Cover(ctx context.Context, manifest, layer *os.File) error {
	defer keepAlive(layer)
	m, err := OpenManifest(manifest)
	if err != nil {
		return err
	}
	c := &coverer{layer: int(layer.Fd()), modes: map[string]uint32{}}
	var above []Record // the directories above the record that Below has come to
	var failed error
	err = m.Below("", func(r Record) bool {
		if failed = ctx.Err(); failed != nil {
			return false
		}
		for len(above) > 0 && !below(r.Path, above[len(above)-1].Path) {
			above = above[:len(above)-1]
		}
		if r.Hidden {
			failed = c.hide(&r, above)
		} else if r.typ == typeDir {
			above = append(above, r)
		}
		return failed == nil
	})
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return c.finish()
}

type coverer struct {
	layer int
	modes map[string]uint32 // of the directories that were made
	order []string          // the same, in the order in which they were made
}

func (c *coverer) hide(r *Record, above []Record) error {
	for _, dir := range above {
		if _, made := c.modes[dir.Path]; made {
			continue
		}
		if err := c.make(dir.Path, func(parent int, name string) error { return unix.Mkdirat(parent, name, 0o700) }); err != nil {
			return err
		}
		c.modes[dir.Path] = dir.mode
		c.order = append(c.order, dir.Path)
	}
	return c.make(r.Path, func(parent int, name string) error { return unix.Mknodat(parent, name, unix.S_IFCHR, 0) })
}

func (c *coverer) make(path string, do func(parent int, name string) error) error {
	parent, err := openUnder(c.layer, parentOf(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open the directory of %s: %w", safetext.Path(path), err)
	}
	defer unix.Close(parent)
	if err := do(parent, path[len(parentOf(path)):][btoi(parentOf(path) != ""):]); err != nil {
		return fmt.Errorf("hide %s: %w", safetext.Path(path), err)
	}
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// finish sets the permissions, from the leaves up: they may forbid to go into a directory.
func (c *coverer) finish() error {
	for i := len(c.order) - 1; i >= 0; i-- {
		path := c.order[i]
		fd, err := openUnder(c.layer, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", safetext.Path(path), err)
		}
		err = unix.Fchmod(fd, c.modes[path])
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("chmod of %s: %w", safetext.Path(path), err)
		}
	}
	return nil
}
