// Package durable writes files of the data directory so that they survive a crash of the host.
package durable

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Part is the suffix of the name of a file that is being written. A crash can leave such a file.
const Part = ".part"

// Write calls save to write the file path, and syncs it to disk. Afterwards, and after a crash, the file exists either
// completely or as it was before. If the disk is full, it returns an Exhausted error.
func Write(path string, save func(*os.File) error) error {
	f, err := os.OpenFile(path+Part, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return DiskFull(err)
	}
	if err = save(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+Part, path)
	}
	if err != nil {
		os.Remove(path + Part)
		return DiskFull(err)
	}
	return Sync(filepath.Dir(path))
}

// WriteJSON writes v as JSON to the file path, in the same way as [Write].
func WriteJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Write(path, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// Sync syncs a file or a directory to disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// DiskFull returns an Exhausted error if err was caused by a full disk or an exceeded quota, and err otherwise.
func DiskFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return caisson.Wrap(err, caisson.Exhausted, "the disk is full; free some space in the data directory")
	}
	return err
}
