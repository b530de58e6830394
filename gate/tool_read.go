package gate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/worker"
)

// readLimits are those of jobs that read trees.
var readLimits = worker.Limits{Time: 10 * time.Minute, CPU: 10 * time.Minute, Memory: 4 << 30}

// Scan is [Scan] with the rights of the directory's owner.
func (t *Tool) Scan(ctx context.Context, root *os.File, hide, show []string, manifest *os.File) (ScanResult, error) {
	var result ScanResult
	err := t.run.Run(ctx, worker.Request{
		Job: jobScan, Args: maskArgs{hide, show}, Files: []*os.File{manifest}, Root: root, Limits: readLimits,
	}, &result)
	return result, err
}

// Search is [Search] with the rights of the directory's owner.
func (t *Tool) Search(ctx context.Context, root, manifest *os.File, limits SearchLimits) (SearchResult, error) {
	var result SearchResult
	err := t.run.Run(ctx, worker.Request{
		Job: jobSearch, Args: limits, Files: []*os.File{manifest}, Root: root, Limits: readLimits,
	}, &result)
	return result, err
}

// Cover is [Cover]. layer belongs to the guest's root.
func (t *Tool) Cover(ctx context.Context, manifest, layer *os.File) error {
	return t.run.Run(ctx, worker.Request{
		Job: jobCover, Args: struct{}{}, Files: []*os.File{manifest}, Root: layer, Access: worker.WriteAsOwner, Limits: readLimits,
	}, nil)
}

// Base is [Base] with the rights of root's owner. dst is the caller's.
func (t *Tool) Base(ctx context.Context, root, manifest, dst *os.File, limits BaseLimits) error {
	return lend(root, []*os.File{dst}, func() error {
		return t.run.Run(ctx, worker.Request{
			Job: jobBase, Args: limits, Files: []*os.File{manifest, dst}, Root: root, Limits: readLimits,
		}, nil)
	})
}

// Rebase is [Rebase] with the rights of host's owner. base is the caller's.
func (t *Tool) Rebase(ctx context.Context, host, base *os.File, applied []Applied) error {
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for i := range applied {
		if err := enc.Encode(&applied[i]); err != nil {
			return err
		}
	}
	return lend(host, []*os.File{base}, func() error {
		return t.run.Run(ctx, worker.Request{
			Job: jobRebase, Args: struct{}{}, Files: []*os.File{base}, Input: &in, Root: host, Limits: readLimits,
		}, nil)
	})
}

// Freeze is [Mark] in this process, which must be root's, and [Freeze] with the rights of the guest that upper belongs to. dst is an
// empty directory of the caller's. [OpenFrozen] reads the result.
func (t *Tool) Freeze(ctx context.Context, upper, dst *os.File, limits FreezeLimits) (entries int, cut bool, err error) {
	marks, err := scratch("marks")
	if err != nil {
		return 0, false, err
	}
	defer marks.Close()
	if err := Mark(ctx, upper, marks); err != nil {
		return 0, false, err
	}
	if _, err := marks.Seek(0, io.SeekStart); err != nil {
		return 0, false, err
	}
	var result frozenSummary
	err = lend(upper, []*os.File{dst}, func() error {
		return t.run.Run(ctx, worker.Request{
			Job: jobFreeze, Args: limits, Files: []*os.File{marks, dst}, Root: upper, Access: worker.ReadGuest, Limits: readLimits,
		}, &result)
	})
	return result.Entries, result.Cut, err
}

// Compare is [Compare] with the rights of host's owner. The directories are the caller's.
func (t *Tool) Compare(ctx context.Context, host, manifest, base, frozen *os.File, opts CompareOptions) (*Comparison, error) {
	merged, err := MergedDir(frozen)
	if err != nil {
		return nil, err
	}
	defer merged.Close()
	out, err := scratch("differences")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	var end comparisonEnd
	err = lend(host, []*os.File{merged}, func() error {
		return t.run.Run(ctx, worker.Request{
			Job: jobCompare, Args: opts, Files: []*os.File{manifest, base, frozen, merged, out}, Root: host, Limits: readLimits,
		}, &end)
	})
	if err != nil {
		return nil, err
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return readComparison(out, end)
}

// maxComparison bounds what a comparison job may write.
const maxComparison = 1 << 30

func readComparison(r io.Reader, end comparisonEnd) (*Comparison, error) {
	bad := malformed("a comparison")
	if end.Count < 0 || end.Count > 2*maxDifferences {
		return nil, bad
	}
	dec := json.NewDecoder(bufio.NewReader(io.LimitReader(r, maxComparison)))
	dec.DisallowUnknownFields()
	result := &Comparison{Cut: end.Cut}
	for range end.Count {
		var d Difference
		if err := dec.Decode(&d); err != nil {
			return nil, caisson.Wrap(errors.Join(bad, err), caisson.Internal, "the comparison cannot be read; try again")
		}
		if !d.possible() {
			return nil, bad
		}
		result.Differences = append(result.Differences, d)
	}
	return result, nil
}

// possible reports whether d has what whoever chooses among differences goes by: one step or two, or none, with paths beneath a directory. A
// job may answer anything; whether a step can be applied is asked when it is to be.
func (d *Difference) possible() bool {
	return len(d.Steps) <= 2 && !slices.ContainsFunc(d.Steps, func(s Step) bool { return !fs.ValidPath(s.Path) || s.Path == "." })
}

// scratch makes a file in memory.
func scratch(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// lend gives directories, and the files in them, to the owner of a tree while a job works there with the owner's rights, and takes
// them back. Others get at them only by descriptors: what is above them is closed.
func lend(tree *os.File, dirs []*os.File, job func() error) error {
	st, err := lookOwner(tree)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := chown(dir, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	err = job()
	for _, dir := range dirs {
		err = errors.Join(err, chown(dir, os.Geteuid(), os.Getegid()))
	}
	return err
}

func lookOwner(f *os.File) (st unix.Stat_t, err error) {
	return st, os.NewSyscallError("fstat", unix.Fstat(int(f.Fd()), &st))
}

// chown gives away a directory and the index and pack in it, which are written anew.
func chown(dir *os.File, uid, gid int) error {
	if err := unix.Fchmod(int(dir.Fd()), 0o755); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	if err := unix.Fchown(int(dir.Fd()), uid, gid); err != nil {
		return os.NewSyscallError("fchown", err)
	}
	for _, name := range []string{baseIndex, basePack} {
		err := unix.Fchownat(int(dir.Fd()), name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil && err != unix.ENOENT {
			return os.NewSyscallError("fchownat", err)
		}
	}
	return nil
}
