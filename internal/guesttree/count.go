// Package guesttree is what the host does itself with directories in which guests write, who may mean harm: it counts and removes what is in
// them, of any depth and width. Whatever looks into files is done by jobs without privileges.
package guesttree

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrDeep ends a count: there are more directories in one another than it follows.
var ErrDeep = errors.New("there are too many directories in one another to count")

// A Tally is what was found.
type Tally struct {
	Files int64 // and directories, but for the one that was counted
	Bytes int64 // that they take on disk; a file with several names counts once

	device uint64
	linked map[uint64]bool // files with more than one name, by inode
}

// Count counts what is in dir, on the same file system, down to depth directories in one another, each of which is open meanwhile. It
// follows no symlink. What goes away meanwhile does not count. With an error, such as ctx's, the count is what it had come to: there
// is at least so much.
func Count(ctx context.Context, dir *os.File, depth int) (Tally, error) {
	c := Tally{linked: map[uint64]bool{}}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return c, os.NewSyscallError("fstat", err)
	}
	c.device = st.Dev
	err := c.add(ctx, dir, depth)
	c.linked = nil
	return c, err
}

func (c *Tally) add(ctx context.Context, dir *os.File, depth int) error {
	if depth == 0 {
		return ErrDeep
	}
	for {
		names, err := dir.Readdirnames(batch)
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := c.addEntry(ctx, dir, name, depth); err != nil {
				return err
			}
		}
	}
}

func (c *Tally) addEntry(ctx context.Context, dir *os.File, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if st.Dev != c.device || !isDir && c.linked[st.Ino] {
		return nil
	}
	if !isDir && st.Nlink > 1 {
		c.linked[st.Ino] = true
	}
	c.Files++
	c.Bytes += st.Blocks * 512
	if !isDir {
		return nil
	}
	sub, err := openAt(dir, name)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil // it is something else by now
	case err != nil:
		return err
	}
	defer sub.Close()
	return c.add(ctx, sub, depth-1)
}
