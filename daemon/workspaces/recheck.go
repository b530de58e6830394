package workspaces

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// makeParts creates the contents of files of which only some hunks are applied. Like merged contents, they differ from the
// contents in the sandbox.
func (s *syncRun) makeParts(ctx context.Context, p selection) error {
	if len(p.parts) == 0 {
		return nil
	}
	for i, hunks := range p.parts {
		x := &p.review.Changes[i]
		step, err := compare.RunPart(ctx, s.c.cfg.Jobs, s.host, s.frozen, x.Steps[0], hunks)
		if err != nil {
			return err
		}
		x.Steps = []gate.Step{step}
		x.Change.Hash, x.Change.Merge = overlay.HashOf(step.After.Type, step.After.Mode, step.After.Hash, ""), true
	}
	return nil
}

// recheck checks the chosen changes again, as if the other changes of the review did not exist: whether names collide or a
// symlink leads out of the directory depends on which changes are applied. If exclude is true, changes that no longer pass are
// removed from the choice; otherwise they cause a Denied error.
func (s *syncRun) recheck(ctx context.Context, p selection, exclude bool) error {
	for {
		again, err := s.recheckOnce(ctx, p, exclude)
		if err != nil || !again {
			return err
		}
		p.removeUnappliable() // the loop ends, because the number of chosen changes decreases each time
	}
}

// recheckOnce checks the chosen changes again, as if the others did not exist. If exclude is true, it removes changes that no
// longer pass from the choice, and then returns true: the rest must be checked again. Otherwise they cause a Denied error.
func (s *syncRun) recheckOnce(ctx context.Context, p selection, exclude bool) (again bool, err error) {
	if n := len(p.chosen); n == 0 || n == len(p.review.Changes) && len(p.parts) == 0 {
		return false, nil
	}
	var part []caisson.Change
	var at []int
	for i, x := range p.review.Changes {
		if p.chosen[i] {
			ch := x.Change
			ch.Verdict, ch.Finding = "", nil
			part, at = append(part, ch), append(at, i)
		}
	}
	if err := s.c.reviews.check(ctx, s.host, s.frozen, part); err != nil {
		return false, err
	}
	for j, ch := range part {
		was := p.review.Changes[at[j]].Change.Verdict
		switch {
		case ch.Verdict == caisson.VerdictPass || ch.Verdict == was:
		case exclude:
			delete(p.chosen, at[j])
			again = true
		default:
			return false, caisson.Errorf(caisson.Denied, "%.200q cannot be applied without the other changes%s; apply them as well, or drop it", ch.Path, verdictReason(ch))
		}
	}
	return again, nil
}

// verdictReason returns the reason for the verdict of a change, as a suffix for messages.
func verdictReason(ch caisson.Change) string {
	for _, f := range ch.Finding {
		if f.Verdict == ch.Verdict {
			return ": " + f.Message
		}
	}
	return ""
}
