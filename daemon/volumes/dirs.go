package volumes

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/guesttree"
)

// Names of the directory of all volumes, and of the directory in a volume that guests see.
const (
	topDir  = "volumes"
	dataDir = "data"
)

// dir returns the path of the directory of a volume.
func (c *Core) dir(id caisson.ID) string { return filepath.Join(c.Dir, topDir, string(id)) }

// makeDir creates the directory of a new volume and syncs it to disk. base is the uid and gid of the guest's root.
func (c *Core) makeDir(id caisson.ID, base uint32) error {
	if err := os.Mkdir(c.dir(id), 0o700); err != nil {
		return durable.DiskFull(err)
	}
	data := filepath.Join(c.dir(id), dataDir)
	if err := os.Mkdir(data, 0o700); err != nil {
		return durable.DiskFull(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(data, int(base), int(base)); err != nil {
			return err
		}
	}
	// Chmod is independent of the umask. Every user of a sandbox can write to the volume; the guest's root may restrict that.
	if err := os.Chmod(data, 0o777); err != nil {
		return err
	}
	for _, dir := range []string{data, c.dir(id)} {
		if err := durable.Sync(dir); err != nil {
			return err
		}
	}
	return c.top.Sync()
}

// openData opens the data directory of a volume, which guests see. flags are added to those of openat, such as O_PATH.
func (c *Core) openData(id caisson.ID, flags int) (*os.File, error) {
	own, err := guesttree.OpenAt(c.top, string(id), unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer own.Close()
	return guesttree.OpenAt(own, dataDir, flags)
}

// removeDir removes the directory name, which belongs to no volume or to a removed one, with all its files.
func (c *Core) removeDir(ctx context.Context, name string) error {
	if err := guesttree.RemoveAt(ctx, c.top, name); err != nil {
		return err
	}
	return c.top.Sync()
}
