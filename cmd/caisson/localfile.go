package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

// localError converts err, an error about a path on this machine, to an Invalid error, so that all commands have the same exit
// code for it. It returns nil and a [*caisson.Error] unchanged. field is the name of the argument that contains the path.
func localError(field, path string, err error) error {
	_, known := errors.AsType[*caisson.Error](err)
	switch {
	case err == nil || known:
		return err
	case errors.Is(err, fs.ErrNotExist):
		return caisson.Invalidf(field, "%s does not exist", path)
	case errors.Is(err, unix.ENOTDIR):
		return caisson.Invalidf(field, "%s is not a directory", path)
	case errors.Is(err, fs.ErrPermission):
		return caisson.Invalidf(field, "this user is not allowed to open %s; run the command as a user who is", path)
	default:
		return caisson.Invalidf(field, "%s", err)
	}
}

// readSmall reads a regular file of at most maxConfigSize bytes.
func readSmall(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxConfigSize {
		return nil, fmt.Errorf("%s is not a regular file of at most %s", file, caisson.Size(maxConfigSize))
	}
	return os.ReadFile(file)
}

// readInput reads a file of at most maxConfigSize bytes, or standard input if file is "-".
func (a *app) readInput(file string) ([]byte, error) {
	if file != "-" {
		data, err := readSmall(file)
		return data, localError("file", file, err)
	}
	data, err := io.ReadAll(io.LimitReader(a.in, maxConfigSize+1))
	if err == nil && len(data) > maxConfigSize {
		err = caisson.Invalidf("file", "is larger than %s", caisson.Size(maxConfigSize))
	}
	return data, err
}

// readYAML decodes the YAML in a file, or in standard input if file is "-", into v. Errors in the YAML name the file.
func (a *app) readYAML(file string, v any) error {
	data, err := a.readInput(file)
	if err != nil {
		return err
	}
	if err := strictyaml.Decode(data, v); err != nil {
		return withFileName(file, err)
	}
	return nil
}

// absFrom returns path as an absolute path; a relative one is relative to dir.
func absFrom(dir, path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	return filepath.Abs(path)
}
