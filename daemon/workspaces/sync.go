package workspaces

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/hostdir"
	"github.com/caisson-dev/caisson/job/gate"
)

// maxSelected is the maximum number of changes that one sync request may name to be applied, and of those to be dropped.
const maxSelected = 100_000

// Sync implements [caisson.Workspaces]. If there is nothing to apply, it returns a receipt without an id, which is not stored.
func (g *Service) Sync(ctx context.Context, ref string, req caisson.SyncRequest) (*caisson.SyncReceipt, error) {
	if req.Directory != nil {
		defer req.Directory.Close()
	}
	if err := validateSync(&req); err != nil {
		return nil, err
	}
	w, release, err := g.hold(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer release()
	if len(req.Drop) > 0 {
		wake, err := g.c.holdStopped(ctx, w, "drop changes")
		if err != nil {
			return nil, err
		}
		defer wake()
	}
	host, err := openGiven(ctx, w, req.Directory)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	s := &syncRun{c: g.c, w: w, host: host, by: caisson.ActorOf(ctx), auto: req.Auto}
	return s.run(ctx, &req)
}

// validateSync returns an Invalid error if a request is malformed.
func validateSync(req *caisson.SyncRequest) error {
	switch {
	case len(req.Apply) > maxSelected || len(req.Drop) > maxSelected:
		return caisson.Invalidf("apply", "names more than %d changes; apply them in parts", maxSelected)
	case req.Auto && (req.Review != "" || len(req.Apply) > 0 || len(req.Drop) > 0):
		return caisson.Invalidf("auto", "selects the changes itself; omit review, apply and drop")
	case !req.Auto && len(req.Only) > 0:
		return caisson.Invalidf("only", "is valid only with auto")
	case !req.Auto && len(req.Apply) == 0 && len(req.Drop) == 0:
		return caisson.Invalidf("apply", "names no change, and auto is not set")
	case !req.Auto && req.Review == "":
		return caisson.Invalidf("review", "is missing; look at the changes first, and name the review")
	}
	return checkPatterns(req.Only)
}

// openGiven opens h, the directory that came with a request of a client. Returns an error if it is not the host directory of w.
func openGiven(ctx context.Context, w *caisson.Workspace, h caisson.Handle) (*os.File, error) {
	caller, err := caisson.CallerOf(ctx)
	switch {
	case err != nil:
		return nil, err
	case !caller.Local:
		return nil, caisson.Errorf(caisson.Denied, "changes are applied to host directories only over the unix socket")
	case h == nil:
		return nil, caisson.Errorf(caisson.Invalid, "the directory %.100q is missing in the request; it must be passed as a file descriptor over the unix socket", w.Source)
	}
	is, err := hostdir.Dir{Device: w.Device, Inode: w.Inode}.SameAs(h.Fd())
	switch {
	case err != nil:
		return nil, err
	case !is:
		return nil, caisson.Errorf(caisson.Conflict, "the directory that came with the request is not %.100q, which the workspace was made of; name that one", w.Source)
	}
	if here, err := hostdir.InMountNamespace(h.Fd()); err == nil && !here {
		return nil, caisson.Wrap(hostdir.ErrOtherNamespace, caisson.Conflict, "the daemon cannot write to %.100q: %s", w.Source, hostdir.ErrOtherNamespace)
	}
	fd, err := unix.Openat(int(h.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), w.HostPath)
	if err := checkOwner(w, f); err != nil {
		return nil, err
	}
	if _, err := hostdir.FromFD(f.Fd()); err != nil {
		f.Close()
		return nil, caisson.Wrap(err, caisson.Conflict, "the directory %.100q has been removed", w.Source)
	}
	return f, nil
}

// A syncRun is one execution of a sync. The caller must hold the lock of the workspace, and a job slot.
type syncRun struct {
	c            *Core
	w            *caisson.Workspace
	host         *os.File // the host directory
	frozen       *os.File // the copy of the layer in which the review has found its changes
	by           string   // actor in the receipt and in events
	auto         bool     // the changes are chosen automatically
	passedChecks []string // names of the commands that have passed, as checks
}

// run finds or makes the review, chooses changes, checks and applies them, and drops the changes that the request drops.
func (s *syncRun) run(ctx context.Context, req *caisson.SyncRequest) (_ *caisson.SyncReceipt, err error) {
	if err := s.c.syncs.recover(ctx, s.w, s.host); err != nil {
		return nil, err
	}
	r, err := s.review(ctx, req)
	if err != nil {
		return nil, err
	}
	defer func() {
		if req.Auto {
			err = errors.Join(err, s.c.reviews.removeReview(s.w.ID, r.ID))
		}
	}()
	if s.frozen, err = openDir(s.c.dir(s.w.ID, frozenDir, string(r.ID)), 0); err != nil {
		return nil, err
	}
	defer s.frozen.Close()
	if err := s.reportHeld(ctx, r); err != nil {
		return nil, err
	}
	chosen, err := s.choose(r, req)
	if err != nil {
		return nil, err
	}
	if err := s.makeParts(ctx, chosen); err != nil {
		return nil, err
	}
	if err := s.recheck(ctx, chosen, req.Auto); err != nil {
		return nil, err
	}
	drop, err := s.planDrops(r, chosen, req.Drop)
	if err != nil {
		return nil, err
	}
	if s.passedChecks, err = s.runCommands(ctx, chosen); err != nil {
		return nil, err
	}
	receipt, err := s.apply(ctx, r, chosen)
	if err != nil {
		return nil, err
	}
	return receipt, s.drop(ctx, drop)
}

// review returns the review that contains the changes to choose from: a new review for an automatic sync, otherwise the review
// that the request names.
func (s *syncRun) review(ctx context.Context, req *caisson.SyncRequest) (*review, error) {
	if req.Auto {
		return s.c.reviews.examine(ctx, s.w, s.host, false)
	}
	return s.c.reviews.loadReview(s.w, req.Review)
}

// choose returns the changes to apply, with the directories that they need.
func (s *syncRun) choose(r *review, req *caisson.SyncRequest) (selection, error) {
	p := selection{review: r, byPath: map[string]int{}, at: map[string]int{}, chosen: map[int]bool{}, parts: map[int][]int{}}
	for i, x := range r.Changes {
		p.byPath[x.Change.Path] = i
		for _, step := range x.Steps {
			p.at[step.Path] = i
		}
	}
	if req.Auto {
		declined, err := s.c.syncs.declined(s.w.ID)
		if err != nil {
			return p, err
		}
		for i, x := range r.Changes {
			// A rename has steps at its old and its new path.
			left := func(step gate.Step) bool { return !matches(req.Only, step.Path) || declined[step.Path] }
			if x.Change.Verdict == caisson.VerdictPass && !slices.ContainsFunc(x.Steps, left) {
				p.chosen[i] = true
			}
		}
		p.removeUnappliable()
		return p, nil
	}
	for _, sel := range req.Apply {
		if err := p.add(sel, req.Confirmed); err != nil {
			return p, err
		}
	}
	return p, p.addParents(req.Confirmed)
}

// selection contains the changes of a review that were chosen to be applied.
type selection struct {
	review *review        // review that contains the changes
	byPath map[string]int // index of the change that is shown at a path
	at     map[string]int // index of the change that has a step at a path
	chosen map[int]bool   // indexes of the chosen changes
	parts  map[int][]int  // hunks to apply, by index of a chosen change that is not applied as a whole
}

// add chooses a change that the request selects. asked means that a person has confirmed the sync.
func (p selection) add(sel caisson.Selection, asked bool) error {
	i, ok := p.byPath[sel.Path]
	if !ok {
		return caisson.Errorf(caisson.Conflict, "the review has no change of %.200q; look at the changes again", sel.Path)
	}
	ch := p.review.Changes[i].Change
	switch {
	case p.chosen[i]:
		return caisson.Invalidf("apply", "contains %.200q twice", sel.Path)
	case sel.Hash == "" || ch.Hash != sel.Hash:
		return caisson.Errorf(caisson.Conflict, "%.200q is not what was reviewed; look at the changes again", sel.Path)
	case len(sel.Hunks) > 0 && (ch.Kind != caisson.ChangeModified || len(p.review.Changes[i].Steps) != 1):
		return caisson.Invalidf("apply", "%.200q has no hunks, because not only its content changes; apply it as a whole", sel.Path)
	}
	if err := p.checkAllowed(i, asked); err != nil {
		return err
	}
	p.chosen[i] = true
	if len(sel.Hunks) > 0 {
		p.parts[i] = sel.Hunks
	}
	return nil
}

// checkAllowed returns an error if the change with index i must not be applied. asked means that a person has confirmed the sync.
func (p selection) checkAllowed(i int, asked bool) error {
	x := p.review.Changes[i]
	reason := verdictReason(x.Change)
	switch {
	case x.Change.Verdict == caisson.VerdictConflict:
		return caisson.Errorf(caisson.Conflict, "%.200q has changed in the directory, too, and the two changes cannot be put together; edit the file, or drop the change%s", x.Change.Path, reason)
	case x.Change.Verdict == caisson.VerdictAsk && asked, x.Change.Verdict == caisson.VerdictPass:
	case x.Change.Verdict == caisson.VerdictAsk:
		return caisson.Errorf(caisson.Denied, "%.200q needs the confirmation of a person%s; review it and apply it by name", x.Change.Path, reason)
	default:
		return caisson.Errorf(caisson.Denied, "%.200q is never applied%s; drop the change", x.Change.Path, reason)
	}
	if len(x.Steps) == 0 {
		return caisson.Errorf(caisson.Denied, "%.200q cannot be applied%s; drop the change", x.Change.Path, reason)
	}
	return nil
}

// addParents chooses the directories that the chosen changes need, and returns a Conflict error if a directory would be removed
// with contents that are not chosen. asked means that a person has confirmed the sync.
func (p selection) addParents(asked bool) error {
	for i := range p.review.Changes {
		if !p.chosen[i] {
			continue
		}
		for _, up := range p.parents(i) {
			if p.chosen[up] {
				continue
			}
			if err := p.checkAllowed(up, asked); err != nil {
				return err
			}
			p.chosen[up] = true // parents(i) contains the directories above it too
		}
	}
	for i := range p.review.Changes {
		if left, ok := p.missingBelow(i); p.chosen[i] && !ok {
			return caisson.Errorf(caisson.Conflict, "a directory goes with all that is in it; apply %.200q as well", left)
		}
	}
	return nil
}

// removeUnappliable removes from the choice the changes that have no steps, and those that need changes that are not chosen.
func (p selection) removeUnappliable() {
	for again := true; again; {
		again = false
		for i := range p.review.Changes {
			if !p.chosen[i] {
				continue
			}
			_, ok := p.missingBelow(i)
			for _, up := range p.parents(i) {
				ok = ok && p.chosen[up]
			}
			if !ok || len(p.review.Changes[i].Steps) == 0 {
				delete(p.chosen, i)
				again = true
			}
		}
	}
}

// parents returns the indexes of the changes of directories that are above the paths that the change with index i creates or
// modifies.
func (p selection) parents(i int) (list []int) {
	for _, step := range p.review.Changes[i].Steps {
		if step.After.Type == "" {
			continue
		}
		for dir := path.Dir(step.Path); dir != "."; dir = path.Dir(dir) {
			if up, ok := p.at[dir]; ok && up != i {
				list = append(list, up)
			}
		}
	}
	return list
}

// missingBelow returns false if the change with index i removes a directory and a change below that directory is not chosen;
// missing is the path of the change that is not chosen.
func (p selection) missingBelow(i int) (missing string, ok bool) {
	for _, step := range p.review.Changes[i].Steps {
		if step.Before.Type != "dir" || step.After.Type == "dir" {
			continue
		}
		for below, j := range p.at {
			if strings.HasPrefix(below, step.Path+"/") && !p.chosen[j] {
				return below, false
			}
		}
	}
	return "", true
}

// steps returns the steps of the chosen changes.
func (p selection) steps() (steps []gate.Step) {
	for i, x := range p.review.Changes {
		if p.chosen[i] {
			steps = append(steps, x.Steps...)
		}
	}
	return steps
}
