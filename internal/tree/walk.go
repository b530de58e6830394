package tree

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/errno"
)

// openEvery and openLast define which directories a walk keeps open: every 16th, and the last 16. So at most about 150 are open
// for a name of length [maxPath]. A step up opens two directories on average; without the open directories it would open all
// directories from the root down.
const (
	openEvery = 16
	openLast  = 16
)

// A dirWalk traverses the directories below a root. It has a current directory, and changes to another one through their
// common ancestor.
type dirWalk struct {
	root        *os.Root // the directory below which the walk stays
	followLinks bool     // follow symlinks in place of directories; see Options.FollowLinks
	// levels are the directories from below the root down to the current directory, which is last. It is empty if the root is
	// the current directory.
	levels []level
}

// level is a directory between the root and the current directory.
type level struct {
	name string   // path of the directory relative to the root
	dir  *os.Root // the open directory, or nil if it is not kept open
}

// dir returns the current directory. The caller must not close it.
func (w *dirWalk) dir() *os.Root {
	if n := len(w.levels); n > 0 {
		return w.levels[n-1].dir
	}
	return w.root
}

// changeTo changes the current directory to name, which is relative to the root. missing, unless it is nil, is called for
// each directory on the way that does not exist and must create it in the current directory.
func (w *dirWalk) changeTo(name string, missing func(name string) error) error {
	if name == "." {
		return w.up(0)
	}
	common := len(w.levels)
	for common > 0 && w.levels[common-1].name != name && !strings.HasPrefix(name, w.levels[common-1].name+"/") {
		common--
	}
	if err := w.up(common); err != nil {
		return err
	}
	above := ""
	if common > 0 {
		above = w.levels[common-1].name
	}
	for len(above) < len(name) {
		rest := strings.TrimPrefix(name[len(above):], "/")
		element, _, _ := strings.Cut(rest, "/")
		above = path.Join(above, element)
		err := w.enter(above)
		if missing != nil && errors.Is(err, fs.ErrNotExist) {
			if err = missing(above); err == nil {
				err = w.enter(above)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check returns nil if name, in the current directory, is a directory or a symlink to a directory that may be followed.
func (w *dirWalk) check(name string) error {
	info, err := w.dir().Lstat(path.Base(name))
	if err != nil || info.IsDir() {
		return err
	}
	dir, err := w.open(w.dir(), name)
	if err == nil {
		dir.Close()
	}
	return err
}

// enter changes the current directory to its subdirectory with the path name, relative to the root.
func (w *dirWalk) enter(name string) error {
	dir, err := w.open(w.dir(), name)
	if err != nil {
		return err
	}
	w.levels = append(w.levels, level{name, dir})
	if i := len(w.levels) - 1 - openLast; i >= 0 && i%openEvery != 0 && w.levels[i].dir != nil {
		w.levels[i].dir.Close()
		w.levels[i].dir = nil
	}
	return nil
}

// open opens the directory with the path name, relative to the root, which is an entry of the directory in. A symlink is
// resolved from the root and must not lead out of it.
func (w *dirWalk) open(in *os.Root, name string) (*os.Root, error) {
	info, err := in.Lstat(path.Base(name))
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return in.OpenRoot(path.Base(name))
	case info.Mode().Type() != fs.ModeSymlink || !w.followLinks:
		return nil, caisson.Errorf(caisson.Conflict, "%s exists and is not a directory", name)
	}
	dir, err := w.root.OpenRoot(name)
	if err == nil {
		return dir, nil
	}
	switch caisson.KindOf(errno.Wrap(err)) {
	case caisson.Denied, caisson.Exhausted:
		return nil, err
	}
	// The symlink leads out of the root, to nothing, or in a circle.
	return nil, caisson.Wrap(err, caisson.Conflict, "%s is a symlink and leads to no directory below the one that is unpacked to", name)
}

// up leaves all directories but the first n in levels. The last of these n, or the root if n is 0, becomes the current
// directory and is opened if it was not kept open.
func (w *dirWalk) up(n int) error {
	for _, l := range w.levels[n:] {
		if l.dir != nil {
			l.dir.Close()
		}
	}
	w.levels = w.levels[:n]
	kept := n
	for kept > 0 && w.levels[kept-1].dir == nil {
		kept--
	}
	for i := kept; i < n; i++ {
		in := w.root
		if i > 0 {
			in = w.levels[i-1].dir
		}
		dir, err := w.open(in, w.levels[i].name)
		if err != nil {
			return err
		}
		w.levels[i].dir = dir
	}
	return nil
}

// close closes all open directories.
func (w *dirWalk) close() {
	for _, l := range w.levels {
		if l.dir != nil {
			l.dir.Close()
		}
	}
	w.levels = nil
}
