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

// removedPath returns the path whose file a change removes from the tree's own files, or "".
func removedPath(ch *caisson.Change) string {
	switch {
	case ch.OldType == "dir" || ch.OldType == "none":
	case ch.Kind == caisson.ChangeType && ch.Type == "dir" && gate.Own(ch.Path):
		return ch.Path // a directory in its place
	case ch.Kind == caisson.ChangeRemoved && gate.Own(ch.Path):
		return ch.Path
	case ch.Kind == caisson.ChangeRenamed && gate.Own(ch.OldPath) && !gate.Own(ch.Path):
		return ch.OldPath
	}
	return ""
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
		if removedPath(&r.Changes[i].Change) != "" {
			now++
		}
	}
	all := had.Files + had.Removed
	if now == 0 || all < fewFiles || !r.Cut && 2*(now+had.Removed) <= all {
		return nil
	}
	why := fmt.Sprintf("%d of the directory's %d files would be removed without anybody having asked for it", now+had.Removed, all)
	for i := range r.Changes {
		ch := &r.Changes[i].Change
		if removedPath(ch) == "" {
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
	renamed := map[string]bool{}
	for _, e := range receipt.Entries {
		renamed[e.Path] = e.Kind == caisson.ChangeRenamed
	}
	var more, removed, away int64 // away: renamed to where it is not counted
	for _, step := range steps {
		was, is := isFile(step.Before), isFile(step.After)
		if was == is || !gate.Own(step.Path) {
			continue
		}
		n := int64(1)
		if was {
			n = -1
		}
		more += n
		if renamed[step.Path] {
			away -= n
		} else if was {
			removed++
		}
	}
	removed += max(0, away)
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
