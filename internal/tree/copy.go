package tree

import (
	"archive/tar"
	"io"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Copy reads the archive of one tree called base from r and writes a new archive to w. Only data that conforms to this
// package's form gets from r to w. It is for archives from within a sandbox. The end of the archive is written only
// after r has ended without an error, so a truncated archive is detected.
//
// Memory is bounded for any input. Copy returns Invalid if r does not have the form; other errors are those of r or w.
func Copy(w io.Writer, r io.Reader, base string) error {
	out, check := tar.NewWriter(w), orderChecker{base: base}
	keep := func(name string, dir bool) (bool, error) { return true, check.checkNext(name, dir) }
	err := copyEntries(out, r, (*tar.Reader).Next, keep)
	if err != nil {
		return err
	}
	if check.last == "" {
		return caisson.Errorf(caisson.Invalid, "the archive is empty")
	}
	if err := readPadding(r); err != nil {
		return err
	}
	return out.Close()
}

// CopyVisible reads an archive from r that [Unpack] accepts, of files, directories and symlinks in any order, and writes
// a new one to w without the entries that are hidden. hides is called with the path of each entry. The end of the
// archive is written only after r has ended without an error.
//
// Memory is bounded for any input. CopyVisible returns Invalid if r is not such an archive; other errors are those of r or w.
func CopyVisible(w io.Writer, r io.Reader, hides func(path string) bool) error {
	out := tar.NewWriter(w)
	if err := copyEntries(out, r, nextEntry, func(name string, _ bool) (bool, error) { return !hides(name), nil }); err != nil {
		return err
	}
	if err := readPadding(r); err != nil {
		return err
	}
	return out.Close()
}

// copyEntries copies the entries that next returns from the archive r to out, until next returns io.EOF. It copies only entries
// for which keep returns true, and removes the header fields that [sanitize] does not keep.
func copyEntries(
	out *tar.Writer, r io.Reader, next func(*tar.Reader) (*tar.Header, error), keep func(name string, dir bool) (bool, error),
) error {
	in, buf := tar.NewReader(r), make([]byte, chunkSize)
	for {
		h, err := next(in)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return malformed(err)
		}
		clean, err := sanitize(h)
		if err != nil {
			return err
		}
		kept, err := keep(strings.TrimSuffix(clean.Name, "/"), clean.Typeflag == tar.TypeDir)
		if err != nil {
			return err
		}
		if !kept {
			continue
		}
		if err := out.WriteHeader(clean); err != nil {
			return err
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, buf); err != nil {
			return malformed(err)
		}
	}
}

// nextEntry returns the next entry of an untrusted archive, without a leading "./", or io.EOF.
func nextEntry(in *tar.Reader) (*tar.Header, error) {
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil, err
		}
		if err != nil {
			return nil, malformed(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue // An archive of git begins with a comment entry, which is skipped.
		}
		if h.Name = strings.TrimPrefix(h.Name, "./"); h.Name != "" && h.Name != "." {
			return h, nil
		}
	}
}

// readPadding reads what follows the end of an archive, up to io.EOF. It returns Invalid if that is more than 1 MiB.
func readPadding(r io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(r, padding+1))
	if err == nil && n > padding {
		return caisson.Errorf(caisson.Invalid, "the archive has data after its end")
	}
	return err
}

// sanitize returns a header with only those fields of h that this package's archives have, so without owners, for example.
func sanitize(h *tar.Header) (*tar.Header, error) {
	name, err := checkName(h.Name)
	if err != nil {
		return nil, err
	}
	clean := &tar.Header{Typeflag: h.Typeflag, Name: name, Mode: h.Mode & permBits, ModTime: modTime(h.ModTime)}
	switch {
	case isSparse(h):
		return nil, caisson.Errorf(caisson.Invalid, "the archive has a sparse file %.80q, which is not supported", name)
	case h.Typeflag == tar.TypeReg:
		clean.Size = h.Size
	case h.Typeflag == tar.TypeDir:
		clean.Name = name + "/"
	case h.Typeflag == tar.TypeSymlink:
		clean.Linkname = h.Linkname
		return clean, checkTarget(name, h.Linkname)
	default:
		return nil, caisson.Errorf(caisson.Invalid, "the archive has %.80q, which is neither a file, a directory nor a symlink", name)
	}
	return clean, nil
}

// orderChecker checks that entries are in depth-first order, those of each directory sorted by name. It stores only the names of
// the last entry and of the directories above it.
type orderChecker struct {
	base string   // required name of the first entry
	open []string // the parent directories of last, outermost first, and last itself if it is a directory
	last string   // the name of the last entry; "" before the first entry
}

// checkNext returns an Invalid error if the entry name may not follow the last entry. dir means that it is a directory.
func (o *orderChecker) checkNext(name string, dir bool) error {
	bad := func() error {
		return caisson.Errorf(caisson.Invalid, "the archive has %.80q in an invalid position", name)
	}
	if o.last == "" {
		if name != o.base {
			return bad()
		}
	} else {
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return bad() // The entry is the beginning of a second tree.
		}
		for len(o.open) > 0 && o.open[len(o.open)-1] != name[:i] {
			o.open = o.open[:len(o.open)-1]
		}
		if len(o.open) == 0 {
			return bad()
		}
		// The previous entry in this directory is the element of last that follows the name of the directory.
		if before := strings.TrimPrefix(o.last[len(name[:i]):], "/"); before != "" {
			before, _, _ = strings.Cut(before, "/")
			if name[i+1:] <= before {
				return bad()
			}
		}
	}
	if dir {
		o.open = append(o.open, name)
	}
	o.last = name
	return nil
}
