package baseline

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// Scan records the entries of the directory root in a manifest, for [OpenManifest]. It walks the tree once, opens only
// directories, follows no symlinks and stays on root's file system. Directories that it cannot read are recorded as closed. At
// the limits of 5,000,000 entries, 256 levels, or paths of 4095 bytes it stops recording; the result then has Cut set, or
// counts closed directories.
//
// Returns errors of the file system and of writing to manifest.
func Scan(ctx context.Context, root *os.File, mask *Mask, manifest io.Writer) (ScanResult, error) {
	return scanUpTo(ctx, root, mask, manifest, maxRecords)
}

// scanUpTo does the work of [Scan], but records at most limit entries.
func scanUpTo(ctx context.Context, root *os.File, mask *Mask, manifest io.Writer, limit int) (ScanResult, error) {
	defer fsat.KeepAlive(root)
	own, err := fsat.Lstat(int(root.Fd()), "")
	if err != nil {
		return ScanResult{}, fmt.Errorf("stat of the directory: %w", err)
	}
	out := bufio.NewWriterSize(manifest, 256<<10)
	s := &scanner{ctx: ctx, root: int(root.Fd()), mask: mask, left: limit, dev: own.Dev}
	s.out = newManifestWriter(out, mask, own.Dev)
	children, _, err := fsat.ReadChildren(s.root, "", limit)
	if err != nil && !errors.Is(err, fsat.ErrTooMany) {
		return ScanResult{}, fmt.Errorf("read the directory: %w", err)
	}
	s.sum.Cut = err != nil
	if err := s.walk("", children, true); err != nil {
		return ScanResult{}, err
	}
	if err := s.out.close(s.sum.Cut); err != nil {
		return ScanResult{}, err
	}
	return s.sum, out.Flush()
}

// scanner is the state of one [Scan], which records the entries of a directory in a manifest.
type scanner struct {
	ctx  context.Context
	root int             // file descriptor of the directory
	mask *Mask           // decides which paths are hidden
	left int             // number of entries that may still be recorded
	dev  uint64          // device number of root
	out  *manifestWriter // writes the manifest
	sum  ScanResult      // the result so far
}

// walk records children, the entries of dir, and everything below them. own means that [IsOwnFile] is true for the path dir.
func (s *scanner) walk(dir string, children []fsat.Child, own bool) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	for _, c := range children {
		path := fsat.Join(dir, c.Name)
		if s.left == 0 {
			s.sum.Cut = true
			return nil
		}
		if len(path) > fsat.MaxPathLen {
			continue // a path that is too long is not recorded; the record of dir says that paths are missing
		}
		s.left--
		r := Record{Path: path, Stat: c.Stat, Hidden: s.mask.HidesName(path)}
		if r.Hidden {
			s.sum.HiddenCount++
			if len(s.sum.Hidden) < maxHiddenShown {
				s.sum.Hidden = append(s.sum.Hidden, safetext.Path(path))
			}
		}
		if c.Type != fsat.TypeDir {
			s.sum.Files++
			if own && !r.Hidden && countsAsOwn(c.Name) {
				s.sum.Own++
			}
			if c.Type == fsat.TypeFile {
				s.sum.Bytes += c.Size
				s.addIfSuspect(&r)
			}
			s.out.add(&r)
			continue
		}
		s.sum.Dirs++
		if r.Hidden {
			s.out.add(&r)
			continue
		}
		below, err := s.open(&r)
		if err != nil {
			return err
		}
		s.out.add(&r)
		if err := s.walk(path, below, own && countsAsOwn(c.Name)); err != nil {
			return err
		}
	}
	return nil
}

// addIfSuspect adds the file of r to ScanResult.Suspects if it is not hidden and its name indicates a secret.
func (s *scanner) addIfSuspect(r *Record) {
	if r.Hidden {
		return
	}
	if why := suspectReason(s.mask, r.Path); why != "" {
		s.sum.Suspects.add(r.Path, why)
	}
}

// open returns the entries of the directory of r, or marks r as closed if it cannot be read.
func (s *scanner) open(r *Record) ([]fsat.Child, error) {
	if r.Dev != s.dev || fsat.Depth(r.Path) >= fsat.MaxDepth {
		r.Closed = true
		s.sum.Closed++
		return nil, nil
	}
	below, _, err := fsat.ReadChildren(s.root, r.Path, s.left)
	switch {
	case err == nil:
	case errors.Is(err, fsat.ErrTooMany):
		s.sum.Cut = true
	case fsat.Inaccessible(err):
		r.Closed = true
		s.sum.Closed++
	default:
		return nil, fmt.Errorf("read %s: %w", safetext.Path(r.Path), err)
	}
	if slices.ContainsFunc(below, func(c fsat.Child) bool { return len(r.Path)+1+len(c.Name) > fsat.MaxPathLen }) {
		r.Closed = true
		s.sum.Closed++
	}
	return below, nil
}
