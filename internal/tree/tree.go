// Package tree transfers files, directories and symlinks as tar archives in a form that is safe to unpack. [Pack]
// writes the form, [Copy] rejects everything else, and [Unpack] does not rely on either.
//
// The form: one tree per archive, in depth-first order, the entries of a directory sorted by name. So a directory
// precedes its contents, no name occurs twice, and no entry is below a symlink. There are no hard links, devices,
// sparse files, owners, or set-id bits.
package tree

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

const (
	maxPath   = 4095     // maximum length of a path in bytes: PATH_MAX without its NUL
	maxName   = 255      // maximum length of one path element in bytes: NAME_MAX
	permBits  = 0o777    // mode bits that are archived
	maxYear   = 9999     // the last year of modification times, the greatest that time formats can express
	padding   = 1 << 20  // maximum number of padding bytes after the end of an archive
	chunkSize = 64 << 10 // number of bytes of a file that are copied at a time
)

// checkName returns name without a trailing slash, or an error if it is not a clean relative path.
func checkName(name string) (string, error) {
	name = strings.TrimSuffix(name, "/")
	switch {
	case name == "" || name == "." || name[0] == '/' || path.Clean(name) != name || strings.HasPrefix(name, "../") || name == "..":
		return "", caisson.Errorf(caisson.Invalid, "the archive has an entry named %.80q, which is not a clean relative path", name)
	case len(name) > maxPath || strings.ContainsRune(name, 0):
		return "", caisson.Errorf(caisson.Invalid, "the archive has an entry named %.80q, which is too long or has a NUL in it", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxName {
			return "", caisson.Errorf(caisson.Invalid, "the archive has an entry named %.80q, which is too long", part)
		}
	}
	return name, nil
}

// checkTarget validates the target of a symlink as text. It does not check where the target leads.
func checkTarget(name, target string) error {
	if target == "" || len(target) > maxPath || strings.ContainsRune(target, 0) {
		return caisson.Errorf(caisson.Invalid, "the archive has a symlink %.80q without a valid target", name)
	}
	return nil
}

// isSparse reports whether h is a sparse file, for which a few bytes of archive can represent any number of bytes of file.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse") {
			return true
		}
	}
	return false
}

// modTime returns the modification time t in whole seconds, which need no extended header, or the Unix epoch if t is outside of
// the range that archives can contain.
func modTime(t time.Time) time.Time {
	if t.Unix() < 0 || t.Year() > maxYear {
		return time.Unix(0, 0)
	}
	return time.Unix(t.Unix(), 0)
}

// malformed converts errors of the tar reader about the archive to Invalid errors; errors of the underlying stream are
// not changed.
func malformed(err error) error {
	if _, said := errors.AsType[*caisson.Error](err); said {
		return err
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return caisson.Wrap(err, caisson.Invalid, "the archive is malformed or cut short")
	}
	return err
}
