package fake

import (
	"io/fs"
	"path"
)

// Abs returns name as an absolute path inside the sandbox.
func (p *Proc) Abs(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join("/", p.dir, name)
}

// A File is the status of a file, as returned by [Proc.Lstat].
type File struct {
	Mode     fs.FileMode
	UID, GID int    // owner, as seen in the sandbox
	Size     int64  // in bytes
	Target   string // target of a symlink, else ""
}

// Lstat returns the status of a file inside the sandbox without following symlinks.
func (p *Proc) Lstat(name string) (f File, err error) {
	name = p.Abs(name)
	if stepErr := p.Step(func() { f, err = p.sandbox.tree.lstat(name) }); stepErr != nil {
		return File{}, stepErr
	}
	return f, err
}

// ReadFile reads a file inside the sandbox.
func (p *Proc) ReadFile(name string) (b []byte, err error) {
	name = p.Abs(name)
	if stepErr := p.Step(func() { b, err = p.sandbox.tree.readFile(name) }); stepErr != nil {
		return nil, stepErr
	}
	return b, err
}

// WriteFile replaces the content of a file inside the sandbox by b, or appends b to it. At the disk limit it writes as much as
// fits and returns ENOSPC.
func (p *Proc) WriteFile(name string, b []byte, appending bool) (n int, err error) {
	name = p.Abs(name)
	f := func() { n, err = p.sandbox.tree.writeFile(name, b, appending, 0o644, p.user) }
	if stepErr := p.Step(f); stepErr != nil {
		return 0, stepErr
	}
	return n, err
}
