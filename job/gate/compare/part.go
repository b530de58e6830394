package compare

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// Part returns a step that applies only some hunks of step, the change of a text file. chosen contains indexes, from 0, of the
// hunks in the patch that the comparison reports for the change. The new content is stored as an object of the frozen copy;
// merged is the directory in frozen for such objects.
//
// Returns Invalid if the file is not a small text file or a hunk does not exist, and Conflict if the host's file is not in the
// state that step expects.
func Part(ctx context.Context, host, frozen, merged *os.File, step gate.Step, chosen []int) (gate.Step, error) {
	defer fsat.KeepAlive(host, frozen, merged)
	if err := step.Validate(); err != nil {
		return step, err
	}
	if step.Before.Type != gate.NodeFile || step.After.Type != gate.NodeFile || len(chosen) == 0 {
		return step, caisson.Errorf(caisson.Invalid, "only changes of files have parts; apply %.200q as a whole", step.Path)
	}
	now, err := baseline.NewHostReader(ctx, int(host.Fd())).State(step.Path)
	switch {
	case err != nil:
		return step, err
	case now.Unreadable != "" || !now.Node().Same(step.Before):
		return step, (&gate.Moved{Paths: []string{step.Path}}).Conflict()
	}
	text, err := sandboxPart(frozen, step.After.Hash)
	if err != nil {
		return step, err
	}
	_, hunks, _, _, binary := Unified(now.Data, text, "a", "b")
	if now.Data == nil || binary || len(hunks) == 0 {
		return step, caisson.Errorf(caisson.Invalid, "%.200q is not a small text file, so it has no parts; apply it as a whole", step.Path)
	}
	part, err := ApplyHunks(now.Data, hunks, chosen)
	if err != nil {
		return step, err
	}
	sum := sha256.Sum256(part)
	step.After.Hash = hex.EncodeToString(sum[:])
	return step, storePart(frozen, merged, step, part)
}

// sandboxPart returns the first 2*fsat.MaxSmallFile+1 bytes of the file of the frozen copy whose SHA-256 is content.
func sandboxPart(frozen *os.File, content string) ([]byte, error) {
	f, err := overlay.OpenFrozen(frozen)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := f.Object(content)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, 2*fsat.MaxSmallFile+1))
}

// storePart stores text, the new content of step, as an object in merged, and adds the file to the index of merged files.
func storePart(frozen, merged *os.File, step gate.Step, text []byte) error {
	dir := int(merged.Fd())
	fd, err := fsat.Open(dir, step.After.Hash, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	file := os.NewFile(uintptr(fd), step.After.Hash)
	_, err = file.Write(text)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	entries, cut, err := overlay.ReadIndex(frozen, overlay.MergedIndex)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	e := overlay.Entry{Path: step.Path, Type: fsat.TypeFile, Mode: step.After.Mode, Size: int64(len(text)), Content: step.After.Hash}
	e.Hash = overlay.HashOf(e.Type, e.Mode, e.Content, "")
	i, found := slices.BinarySearchFunc(entries, e, func(a, b overlay.Entry) int { return fsat.Compare(a.Path, b.Path) })
	if found {
		entries[i] = e
	} else {
		entries = slices.Insert(entries, i, e)
	}
	return overlay.WriteIndex(dir, "index", entries, cut)
}
