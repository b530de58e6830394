package fake

import (
	"io/fs"
	"os"
	"path"
	"syscall"
)

// Abs returns name as an absolute path inside the sandbox.
func (p *Proc) Abs(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join("/", p.dir, name)
}

// A File is what [Proc.Lstat] says of one.
type File struct {
	Mode     fs.FileMode
	UID, GID int // inside the sandbox
	Size     int64
	Target   string // of a symlink
}

// Lstat describes a file inside the sandbox; a symlink itself, not what it leads to.
func (p *Proc) Lstat(name string) (f File, err error) {
	name = p.Abs(name)
	if stepErr := p.Step(func() { f, err = p.sandbox.tree.lstat(name) }); stepErr != nil {
		return File{}, stepErr
	}
	return f, err
}

// Chmod sets the permissions of a file, set-id and sticky bits included.
func (p *Proc) Chmod(name string, mode fs.FileMode) error {
	return p.change(name, func(root *os.Root, rel string) error { return root.Chmod(rel, mode) })
}

// Remove removes a file or tree.
func (p *Proc) Remove(name string) error {
	return p.change(name, func(root *os.Root, rel string) error {
		if _, err := root.Lstat(rel); err != nil {
			return err
		}
		return root.RemoveAll(rel)
	})
}

// Symlink makes a symlink to target.
func (p *Proc) Symlink(target, name string) error {
	return p.change(name, func(root *os.Root, rel string) error {
		if err := root.Symlink(target, rel); err != nil {
			return err
		}
		p.sandbox.tree.setOwner(root, rel, p.user)
		return nil
	})
}

// change does something to a file inside the sandbox, in one step.
func (p *Proc) change(name string, f func(root *os.Root, rel string) error) (err error) {
	root, rel, writable := p.sandbox.tree.at(p.Abs(name))
	if !writable {
		return syscall.EROFS
	}
	if stepErr := p.Step(func() { err = f(root, rel) }); stepErr != nil {
		return stepErr
	}
	return err
}

// ReadFile reads a file inside the sandbox.
func (p *Proc) ReadFile(name string) (b []byte, err error) {
	name = p.Abs(name)
	if stepErr := p.Step(func() { b, err = p.sandbox.tree.readFile(name) }); stepErr != nil {
		return nil, stepErr
	}
	return b, err
}

// WriteFile writes b instead of what a file inside the sandbox holds, or at its end. At the disk limit it writes what
// fits, and the error is ENOSPC.
func (p *Proc) WriteFile(name string, b []byte, appending bool) (n int, err error) {
	name = p.Abs(name)
	f := func() { n, err = p.sandbox.tree.writeFile(name, b, appending, 0o644, p.user) }
	if stepErr := p.Step(f); stepErr != nil {
		return 0, stepErr
	}
	return n, err
}
