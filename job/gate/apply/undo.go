package apply

import (
	"context"
	"io"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// Undo reverts the changes that [Apply] with the same saved has applied, completely or not at all, with the same guarantees and
// errors. Returns a Conflict with a [*gate.Moved] if the paths are not in the states that Apply left, and a Conflict without a
// [*gate.Moved] if nothing was applied or the apply was undone before. Files are restored with their content and permissions,
// but without set-id bits, extended attributes and modification times.
func Undo(ctx context.Context, host, saved *os.File) (Outcome, error) {
	return undo(ctx, host, saved, nil)
}

// undo is [Undo] with a hook for tests.
func undo(ctx context.Context, host, saved *os.File, hook func(string)) (Outcome, error) {
	a, err := newApplier(ctx, host, saved, hook)
	if err != nil {
		return Outcome{}, err
	}
	defer a.close()
	was, err := a.recover()
	if err != nil {
		return was, err
	}
	switch was.State {
	case Applied:
	case Undone:
		return was, caisson.Errorf(caisson.Conflict, "this was undone already")
	default:
		return was, caisson.Errorf(caisson.Conflict, "nothing was applied that could be undone")
	}
	h, err := readJournal(saved, applyJournal)
	if err != nil {
		return Outcome{}, err
	}
	read := func(hash string) (io.ReadCloser, error) { return fsat.OpenObject(saved, objectsDir, hash) }
	reverse := gate.Plan{}
	for _, s := range h.steps {
		r := gate.Step{Path: s.Path, Before: s.After, After: s.Before}
		r.Before.Link = nil
		if r.After.Type == gate.NodeFile {
			r.After.Mode &= 0o777
		}
		if r.After, err = savedNode(ctx, r.After, read); err != nil {
			return was, caisson.Wrap(err, caisson.Internal, "what %s was cannot be read; nothing was undone", quotedPath(s.Path))
		}
		if !r.Before.Same(r.After) {
			reverse.Steps = append(reverse.Steps, r)
		}
	}
	if err := reverse.Validate(); err != nil {
		return was, err
	}
	a.steps, a.read = reverse.Sorted(), read
	return a.run(undoJournal, Undone, Applied)
}
