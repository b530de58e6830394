package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// Layer writes plan as the upper layer of an overlay into the empty directory layer, so that above the host's directory, which
// manifest has recorded just now, everything looks as it would after an [Apply]. read opens contents by their hash; all of it belongs to
// the owner of layer, whose rights are enough. The directories above what is in plan get the permissions that the host's have.
//
// It is a Conflict if the host's directory is not as plan needs it.
func Layer(ctx context.Context, plan *Plan, manifest, layer *os.File, read func(hash string) (io.ReadCloser, error)) error {
	defer keepAlive(layer)
	if err := plan.Validate(); err != nil {
		return err
	}
	m, err := OpenManifest(manifest)
	if err != nil {
		return err
	}
	l := &layerer{coverer: coverer{layer: int(layer.Fd()), modes: map[string]uint32{}}, host: m, read: read, gone: map[string]bool{}}
	for _, s := range plan.sorted() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.step(ctx, &s); err != nil {
			return err
		}
	}
	return l.finish()
}

// layerer makes a layer; of the coverer it has the directories.
type layerer struct {
	coverer
	host *Manifest
	read func(hash string) (io.ReadCloser, error)
	gone map[string]bool // paths that are no directories any more
}

func (l *layerer) step(ctx context.Context, s *Step) error {
	for dir := parentOf(s.Path); dir != ""; dir = parentOf(dir) {
		if l.gone[dir] {
			return nil // it went with the directory
		}
	}
	if err := l.above(parentOf(s.Path)); err != nil {
		return err
	}
	if s.After.Type != nodeDir {
		l.gone[s.Path] = true
	}
	switch s.After.Type {
	case nodeDir:
		return l.dir(s.Path, s.After.Mode)
	case nodeLink:
		return l.make(s.Path, func(parent int, name string) error { return unix.Symlinkat(string(s.After.Link), parent, name) })
	case nodeFile:
		return l.file(ctx, s.Path, s.After)
	}
	if s.Before.none() {
		return nil
	}
	return l.make(s.Path, func(parent int, name string) error { return unix.Mknodat(parent, name, unix.S_IFCHR, 0) })
}

// above makes the directory path, which is the host's, and those above it, unless they are there already.
func (l *layerer) above(path string) error {
	if _, made := l.modes[path]; path == "" || made {
		return nil
	}
	if err := l.above(parentOf(path)); err != nil {
		return err
	}
	r, found, _, err := l.host.Lookup(path)
	if err != nil {
		return err
	}
	if !found || r.typ != typeDir || r.Hidden {
		return caisson.Errorf(caisson.Conflict, "%.200q is no directory any more; look at the changes again", safetext.Path(path))
	}
	return l.dir(path, r.mode)
}

func (l *layerer) dir(path string, mode uint32) error {
	if err := l.make(path, func(parent int, name string) error { return unix.Mkdirat(parent, name, 0o700) }); err != nil {
		return err
	}
	l.modes[path] = mode & permissions
	l.order = append(l.order, path)
	return nil
}

func (l *layerer) file(ctx context.Context, path string, n Node) error {
	in, err := l.read(n.Hash)
	if err != nil {
		return fmt.Errorf("open the content of %s: %w", safetext.Path(path), err)
	}
	defer in.Close()
	fd, err := openUnder(l.layer, path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", safetext.Path(path), err)
	}
	out := os.NewFile(uintptr(fd), path)
	sum, err := hashTo(ctx, out, in)
	if err == nil && sum != n.Hash {
		err = caisson.Errorf(caisson.Internal, "the frozen copy of %.200q is damaged; look at the changes again", safetext.Path(path))
	}
	if err == nil {
		err = os.NewSyscallError("fchmod", unix.Fchmod(fd, n.Mode&permissions))
	}
	return errors.Join(err, out.Close())
}
