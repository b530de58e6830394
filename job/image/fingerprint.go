package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// packageDatabases lists the files that package managers update with every change to the installed packages.
var packageDatabases = []string{
	"var/lib/dpkg/status", "var/lib/rpm/rpmdb.sqlite", "var/lib/rpm/Packages", "usr/lib/sysimage/rpm/rpmdb.sqlite",
	"usr/lib/sysimage/rpm/Packages.db", "lib/apk/db/installed", "usr/lib/apk/db/installed", "var/lib/pacman/local",
}

// programDirs maps each directory with programs and libraries to the number of levels below it that fingerprint reads.
var programDirs = map[string]int{
	"usr": 1, "usr/bin": 1, "usr/sbin": 1, "usr/lib": 2, "usr/lib32": 1, "usr/lib64": 1, "usr/libexec": 1,
	"bin": 1, "sbin": 1, "lib": 2, "lib32": 1, "lib64": 1, "usr/local": 0,
}

// fingerprint returns a digest of the metadata of the package databases, and of the programs and libraries in programDirs.
func (h *hostImage) fingerprint() (string, error) {
	sum := sha256.New()
	err := h.visitFiles(func(p string, st *syscall.Stat_t) {
		fmt.Fprintf(sum, "%q %o %d %d %d\n", p, st.Mode, st.Size, st.Mtim.Nano(), st.Ino)
	}, true)
	return digestOf(sum), err
}

// cheapFingerprint returns a digest that takes less time than fingerprint. It covers the metadata of the package databases, of
// the program directories but not of the files in them, and of the files of /etc that the image contains.
func (h *hostImage) cheapFingerprint() (string, error) {
	sum := sha256.New()
	note := func(p string, st *syscall.Stat_t) {
		fmt.Fprintf(sum, "%q %o %d %d %d\n", p, st.Mode, st.Size, st.Ctim.Nano(), st.Ino)
	}
	if err := h.visitFiles(note, false); err != nil {
		return "", err
	}
	for _, p := range hostFiles {
		if err := statInto(filepath.Join(h.root, "etc", p), note); err != nil {
			return "", err
		}
	}
	return digestOf(sum), nil
}

// visitFiles calls note with the path and status of each package database and program directory and, if files is set, of the
// files in the program directories.
func (h *hostImage) visitFiles(note func(string, *syscall.Stat_t), files bool) error {
	for _, p := range packageDatabases {
		if err := statInto(filepath.Join(h.root, p), note); err != nil {
			return err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(programDirs)) {
		path := filepath.Join(h.root, p)
		if err := statInto(path, note); err != nil {
			return err
		}
		if fi, err := os.Lstat(path); err != nil || !fi.IsDir() || !files {
			continue
		}
		if err := walkInto(path, programDirs[p], note); err != nil {
			return err
		}
	}
	return nil
}

// walkInto calls note with the path and status of everything below dir, down to depth levels.
func walkInto(dir string, depth int, note func(string, *syscall.Stat_t)) error {
	if depth == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		if err := statInto(p, note); err != nil {
			return err
		}
		if e.IsDir() {
			if err := walkInto(p, depth-1, note); err != nil {
				return err
			}
		}
	}
	return nil
}

// statInto calls note with the path p and its status if p exists.
func statInto(p string, note func(string, *syscall.Stat_t)) error {
	var st syscall.Stat_t
	err := syscall.Lstat(p, &st)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err == nil {
		note(p, &st)
	}
	return err
}
