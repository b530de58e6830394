package workspaces

import (
	"context"
	"fmt"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate"
)

const (
	checkRemoval = "removal"
	removalFile  = "removals.json"
	// fewFiles is how many files a directory has in which any number of them may be removed automatically.
	fewFiles = 10
)

// removals count files of the host's directory that are [gate.Own] and not hidden, as far as syncs of this workspace have changed it.
type removals struct {
	Files   int64 // that are there, but for those that were made automatically
	Removed int64 // automatically, since a person has last removed some
	Told    bool  // whether there is an event that says that removals are held
}

// lost counts the tree's own files that steps take away, except those whose content is in one of the tree's own files that they
// make. So a rename is a removal if it leads to where files do not count, see [gate.Own], or if it changes the content.
func lost(steps []gate.Step) (n int64) {
	made := map[string]int{} // by hash
	for _, step := range steps {
		if gate.Own(step.Path) && !isFile(step.Before) && step.After.Type == "file" {
			made[step.After.Hash]++
		}
	}
	for _, step := range steps {
		switch {
		case !gate.Own(step.Path) || !isFile(step.Before) || isFile(step.After):
		case step.Before.Type == "file" && made[step.Before.Hash] > 0:
			made[step.Before.Hash]--
		default:
			n++
		}
	}
	return n
}

// holdRemovals makes removals ask if they, and those that were applied automatically before, are more than half of the files that the
// directory had: a sandbox that goes wrong, or is told to, is not to take a whole tree with it. So that it cannot do it in small steps,
// what was removed counts until a person removes something.
func (c reviews) holdRemovals(w *caisson.Workspace, r *review) error {
	var had removals
	if err := readJSON(c.dir(w.ID, removalFile), &had); err != nil {
		return err
	}
	now := int64(0)
	for i := range r.Changes {
		now += lost(r.Changes[i].Steps)
	}
	all := had.Files + had.Removed
	if now == 0 || all < fewFiles || !r.Cut && 2*(now+had.Removed) <= all {
		return nil
	}
	why := fmt.Sprintf("%d of the directory's %d files would be removed without anybody having asked for it", now+had.Removed, all)
	for i := range r.Changes {
		ch := &r.Changes[i].Change
		if lost(r.Changes[i].Steps) == 0 {
			continue
		}
		ch.Finding = append(ch.Finding, caisson.Finding{Check: checkRemoval, Verdict: caisson.VerdictAsk, Message: why})
		if ch.Verdict == caisson.VerdictPass {
			ch.Verdict = caisson.VerdictAsk
			r.Held = fmt.Sprintf(`%s; look at them with "caisson diff %s" and, if that is wanted, run "caisson sync --yes %s"`, why, w.ID, w.ID)
		}
	}
	return nil
}

// tellHeld records an event, once, if removals are not applied automatically.
func (s *syncing) tellHeld(ctx context.Context, r *review) error {
	if !s.auto || r.Held == "" {
		return nil
	}
	file := s.c.dir(s.w.ID, removalFile)
	var had removals
	if err := readJSON(file, &had); err != nil || had.Told {
		return err
	}
	had.Told = true
	if err := writeJSON(file, had); err != nil {
		return err
	}
	s.c.Log.WarnContext(ctx, "removals are not applied automatically", "workspace", s.w.ID, "reason", r.Held)
	s.c.event(ctx, s.w, "sync.held", map[string]string{"by": s.by, "reason": r.Held})
	return nil
}

// countRemovals keeps the count after a sync of these steps, or after its undo.
func (c syncs) countRemovals(receipt *caisson.SyncReceipt, steps []gate.Step, undone bool) error {
	file := c.dir(receipt.Workspace, removalFile)
	var had removals
	if err := readJSON(file, &had); err != nil {
		return err
	}
	removed, more := lost(steps), int64(0)
	for _, step := range steps {
		was, is := isFile(step.Before), isFile(step.After)
		switch {
		case !gate.Own(step.Path):
		case is && !was:
			more++
		case was && !is:
			more--
		}
	}
	if receipt.Auto {
		more = -removed // what a sandbox has made itself does not raise what it may remove
	}
	switch {
	case undone && receipt.Auto:
		had.Removed = max(0, had.Removed-removed)
	case undone:
	case receipt.Auto:
		had.Removed += removed
	case removed > 0:
		had.Removed, had.Told = 0, false
	}
	if undone {
		more = -more
	}
	had.Files = max(0, had.Files+more)
	return writeJSON(file, had)
}

func isFile(n gate.Node) bool { return n.Type != "" && n.Type != "none" && n.Type != "dir" }
