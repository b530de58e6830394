package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// Layer writes plan into the empty directory layer, as the upper layer of an overlay over the host's directory. The overlay
// then looks as the host's directory would after [Apply]. manifest is a recent record of the host's directory (see
// [baseline.Scan]). read opens contents by their hash. All files belong to the owner of layer, and Layer needs only the rights
// of that user. Parent directories of the plan's paths get the permissions that they have on the host.
//
// Returns Conflict if a path of the host's directory is not in the state that plan expects.
func Layer(ctx context.Context, plan *gate.Plan, manifest, layer *os.File, read func(hash string) (io.ReadCloser, error)) error {
	defer fsat.KeepAlive(layer)
	if err := plan.Validate(); err != nil {
		return err
	}
	m, err := baseline.OpenManifest(manifest)
	if err != nil {
		return err
	}
	l := &layerer{Coverer: baseline.Coverer{Layer: int(layer.Fd()), Modes: map[string]uint32{}}, host: m, read: read, notDirs: map[string]bool{}}
	for _, s := range plan.Sorted() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.step(ctx, &s); err != nil {
			return err
		}
	}
	return l.Finish()
}

// layerer creates a layer. The embedded Coverer contains the directories that were created so far.
type layerer struct {
	baseline.Coverer
	host    *baseline.Manifest                       // the recent record of the host's directory
	read    func(hash string) (io.ReadCloser, error) // opens the new content of a file by its SHA-256
	notDirs map[string]bool                          // paths that are not directories after the plan was applied
}

// step creates the entry of the layer that makes the change of s visible in the overlay.
func (l *layerer) step(ctx context.Context, s *gate.Step) error {
	for dir := fsat.Parent(s.Path); dir != ""; dir = fsat.Parent(dir) {
		if l.notDirs[dir] {
			return nil // the layer replaces or hides a parent directory, and with it the entry that s removes
		}
	}
	if err := l.ensureDir(fsat.Parent(s.Path)); err != nil {
		return err
	}
	if s.After.Type != gate.NodeDir {
		l.notDirs[s.Path] = true
	}
	switch s.After.Type {
	case gate.NodeDir:
		return l.dir(s.Path, s.After.Mode)
	case gate.NodeLink:
		return l.CreateAt(s.Path, func(parent int, name string) error { return unix.Symlinkat(string(s.After.Link), parent, name) })
	case gate.NodeFile:
		return l.file(ctx, s.Path, s.After)
	}
	if s.Before.None() {
		return nil
	}
	return l.CreateAt(s.Path, func(parent int, name string) error { return unix.Mknodat(parent, name, unix.S_IFCHR, 0) })
}

// ensureDir creates the directory path, which exists on the host, and its parents in the layer, unless they exist already.
func (l *layerer) ensureDir(path string) error {
	if _, made := l.Modes[path]; path == "" || made {
		return nil
	}
	if err := l.ensureDir(fsat.Parent(path)); err != nil {
		return err
	}
	r, found, _, err := l.host.Lookup(path)
	if err != nil {
		return err
	}
	if !found || r.Type != fsat.TypeDir || r.Hidden {
		return caisson.Errorf(caisson.Conflict, "%.200q is no directory any more; look at the changes again", safetext.Path(path))
	}
	return l.dir(path, r.Mode)
}

// dir creates the directory path in the layer. Its permissions are set to mode by Finish.
func (l *layerer) dir(path string, mode uint32) error {
	if err := l.CreateAt(path, func(parent int, name string) error { return unix.Mkdirat(parent, name, 0o700) }); err != nil {
		return err
	}
	l.Modes[path] = mode & fsat.Permissions
	l.Order = append(l.Order, path)
	return nil
}

// file creates the file path in the layer with the content and the permissions of n.
func (l *layerer) file(ctx context.Context, path string, n gate.Node) error {
	in, err := l.read(n.Hash)
	if err != nil {
		return fmt.Errorf("open the content of %s: %w", safetext.Path(path), err)
	}
	defer in.Close()
	fd, err := fsat.Open(l.Layer, path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", safetext.Path(path), err)
	}
	out := os.NewFile(uintptr(fd), path)
	sum, err := hashTo(ctx, out, in)
	if err == nil && sum != n.Hash {
		err = caisson.Errorf(caisson.Internal, "the frozen copy of %.200q is damaged; look at the changes again", safetext.Path(path))
	}
	if err == nil {
		err = os.NewSyscallError("fchmod", unix.Fchmod(fd, n.Mode&fsat.Permissions))
	}
	return errors.Join(err, out.Close())
}
