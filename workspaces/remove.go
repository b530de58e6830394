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

// droppedDir has what is being dropped, on its way out of the layer.
const droppedDir = "dropped"

// removeTree removes what is at a path of Caisson's own, in which a sandbox may have written. It is not given up in the midst.
func removeTree(name string) error { return guesttree.Remove(context.Background(), name) }

// removeIn removes what is at name in root. It is gone from there at once, and then from aside, a path of Caisson's own on the same file
// system: what is left of it when the daemon dies is no part of root any more.
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

// emptyIn removes all that is in root, each entry as removeIn does: a removal that does not come to its end leaves nothing there that the
// sandbox has not made, which would be taken for its changes.
func emptyIn(root *os.Root, aside string) error {
	for {
		dir, err := root.Open(".") // from the beginning: entries go
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
