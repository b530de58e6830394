package workspaces

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/guesttree"
)

// droppedDir is the name of the directory with files that are being removed from the layer.
const droppedDir = "dropped"

// removeTree removes a file or directory of Caisson, below which a sandbox may have written. It cannot be cancelled.
func removeTree(name string) error { return guesttree.Remove(context.Background(), name) }

// removeIn removes the file or directory name in root. It first renames it to aside, a path outside root on the same file
// system, so that an incomplete removal leaves nothing in root if the daemon stops.
func removeIn(root *os.Root, name, aside string) error {
	if err := removeTree(aside); err != nil {
		return err
	}
	above, err := root.OpenRoot(path.Dir(name))
	if err != nil {
		return err
	}
	defer above.Close()
	dir, err := above.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Renameat(int(dir.Fd()), path.Base(name), unix.AT_FDCWD, aside); err != nil {
		return &fs.PathError{Op: "rename", Path: name, Err: err}
	}
	return removeTree(aside)
}

// emptyIn removes all entries of root. It first renames each to aside, a path outside root on the same file system: if an entry
// were removed only in part, the rest would be taken for changes that the sandbox made.
func emptyIn(root *os.Root, aside string) error {
	for {
		dir, err := root.Open(".") // opened again for each batch, because entries are removed
		if err != nil {
			return err
		}
		names, err := dir.Readdirnames(1000)
		dir.Close()
		if len(names) == 0 && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := removeIn(root, name, aside); err != nil {
				return err
			}
		}
	}
}
