// Package guesttree counts and removes the contents of directories in which untrusted guests write. The directories may
// have any depth and width. Reading file contents is left to worker jobs without privileges.
package guesttree

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrDeep is returned by Count if directories are nested more deeply than its limit.
var ErrDeep = errors.New("there are too many directories in one another to count")

// A Tally is the number and the disk usage of the files and directories in a directory.
type Tally struct {
	Files int64 // Number of files and directories, without the counted directory itself.
	Bytes int64 // Disk usage in bytes. A file with several names counts once.

	device uint64          // Device number of the file system of the counted directory.
	linked map[uint64]bool // Inode numbers of the files with more than one name that were counted.
}

// Count counts the contents of dir on the same file system, down to depth nested directories, each of which is kept
// open. It does not follow symlinks. Entries that are removed meanwhile are not counted. With an error, such as that of
// ctx, the result is the count so far, which is a lower bound.
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

// add counts everything in dir.
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

// addEntry counts the entry name of dir and, if it is a directory, everything in it.
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
	sub, err := OpenAt(dir, name, unix.O_RDONLY)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil // The directory was replaced by another file after its status was read.
	case err != nil:
		return err
	}
	defer sub.Close()
	return c.add(ctx, sub, depth-1)
}
