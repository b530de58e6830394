package workspaces

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/worker"
)

// maxShown is the maximum number of changes in the result of Diff. Changes that are not in the result cannot be applied.
const maxShown = 10_000

// A review contains the changes that were found in a copy of a workspace's layer.
type review struct {
	ID      caisson.ID           // id of the review
	At      time.Time            // time of the review
	Changes []compare.Difference // changes, with the steps that apply them
	Cut     bool                 // there are more changes, which cannot be applied
	Checks  []string             // names of the checks that were made
	Held    string               // reason why removals that pass the checks are not applied automatically; "" if they are
}

// reviews finds the changes in the layers of workspaces.
type reviews struct {
	directory
	jobs     worker.Starter // starts worker jobs
	rules    check.Rules    // rules that changes must meet
	store    caisson.WorkspaceStore
	events   caisson.Publisher
	removals *removalCounts // numbers of existing and removed own files, which limit what automatic syncs remove
	writers  *writers       // finds the processes that changed files
}

// Diff implements [caisson.Workspaces].
func (g *Service) Diff(ctx context.Context, ref string, req caisson.DiffRequest) (*caisson.Diff, error) {
	if err := checkPatterns(req.Only); err != nil {
		return nil, err
	}
	w, release, err := g.hold(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer release()
	host, err := openHost(w, 0)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	r, err := g.c.reviews.examine(ctx, w, host, req.Patch)
	if err != nil {
		return nil, err
	}
	d := &caisson.Diff{At: r.At, Changes: []caisson.Change{}, Cut: r.Cut, Checks: r.Checks}
	for _, x := range r.Changes {
		if !matches(req.Only, x.Change.Path) && (x.Change.OldPath == "" || !matches(req.Only, x.Change.OldPath)) {
			continue
		}
		if len(d.Changes) == maxShown {
			d.Cut = true
			break
		}
		d.Changes = append(d.Changes, x.Change)
	}
	if err := g.c.refusals.addFindings(w.ID, d.Changes); err != nil {
		return nil, err
	}
	if req.Freeze {
		d.Review = r.ID
		if err = g.c.reviews.save(w.ID, r); err != nil {
			err = errors.Join(err, g.c.reviews.removeReview(w.ID, r.ID))
		} else {
			err = g.c.reviews.trimReviews(w.ID, now())
		}
	} else {
		err = g.c.reviews.removeReview(w.ID, r.ID)
	}
	if err != nil {
		return nil, err
	}
	if d.Workspace, err = g.c.cfg.Store.Workspaces().Get(ctx, caisson.AllAccounts(), string(w.ID)); err != nil {
		return nil, err
	}
	return d, nil
}

const maxPatterns = 100 // maximum number of path patterns in one request of Diff or Sync

// checkPatterns returns an Invalid error if a pattern in only is malformed, or if there are too many.
func checkPatterns(only []string) error {
	if len(only) > maxPatterns {
		return caisson.Invalidf("only", "has more than %d patterns", maxPatterns)
	}
	for _, p := range only {
		if err := check.ValidPattern(p); err != nil {
			return caisson.Invalidf("only", "%s", caisson.MessageOf(err))
		}
	}
	return nil
}

// matches reports whether a path matches one of the patterns. Without patterns, every path matches.
func matches(only []string, name string) bool {
	return len(only) == 0 || slices.ContainsFunc(only, func(p string) bool { return check.MatchPath(p, name) })
}

// examine copies the layer of w, compares the copy with the host directory and checks the changes. The caller must hold the
// lock of w and a job slot, and must call save or removeReview for the review.
func (c *reviews) examine(ctx context.Context, w *caisson.Workspace, host *os.File, patch bool) (_ *review, err error) {
	r := &review{ID: caisson.NewID(caisson.ReviewPrefix), At: now(), Checks: append(check.Names(), checkRemoval)}
	dir := c.dir(w.ID, frozenDir, string(r.ID))
	defer func() {
		if err != nil {
			err = errors.Join(durable.DiskFull(err), c.removeReview(w.ID, r.ID))
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if _, _, err := c.copyLayer(ctx, w, dir); err != nil {
		return nil, err
	}
	var by authors // read after the layer was copied, to contain the processes that made the changes in the copy
	var asking sync.WaitGroup
	asking.Go(func() { by = c.writers.findAuthors(ctx, w) })
	err = c.compare(ctx, w, host, dir, patch, r)
	asking.Wait()
	if err != nil {
		return nil, err
	}
	if err := c.holdRemovals(w, r); err != nil {
		return nil, err
	}
	by.attribute(r.Changes)
	return r, c.recordChanges(ctx, w, r)
}

// save stores a review, so that it can be applied by its id.
func (c *reviews) save(w caisson.ID, r *review) error {
	kept := *r
	kept.Changes = slices.Clone(r.Changes)
	for i := range kept.Changes {
		kept.Changes[i].Change.Patch = "" // the patch is long and no longer needed
	}
	return durable.WriteJSON(c.dir(w, frozenDir, string(r.ID)+".json"), kept)
}

// copyLayer copies the layer of w to dir, an empty directory. It returns the number of copied entries. cut is true if the copy
// is incomplete because of a limit.
func (c *reviews) copyLayer(ctx context.Context, w *caisson.Workspace, dir string) (entries int, cut bool, err error) {
	var opened files
	defer opened.close()
	upper := opened.add(openDir(c.dir(w.ID, upperDir), 0))
	dst := opened.add(openDir(dir, 0))
	if upper == nil && errors.Is(opened.err, fs.ErrNotExist) { // The workspace was restored from a backup, which has no layers.
		return 0, false, caisson.Errorf(caisson.Conflict, "what its sandbox has written is gone from disk; what was applied can be undone as before")
	}
	if opened.err != nil {
		return 0, false, opened.err
	}
	entries, cut, err = overlay.RunFreeze(ctx, c.jobs, upper, dst, overlay.FreezeLimits{})
	return entries, cut, durable.DiskFull(err)
}

// compare compares dir, a copy of the layer, with the host directory, and sets r.Changes, with the results of the checks.
func (c *reviews) compare(ctx context.Context, w *caisson.Workspace, host *os.File, dir string, patch bool, r *review) error {
	var opened files
	defer opened.close()
	frozen := opened.add(openDir(dir, 0))
	manifest := opened.add(os.Open(c.dir(w.ID, manifestFile)))
	base := opened.add(openDir(c.dir(w.ID, baseDir), 0))
	if opened.err != nil {
		return opened.err
	}
	opts := compare.Options{Patch: patch, Copy: w.Kind == caisson.WorkspaceCopy}
	found, err := compare.RunChanges(ctx, c.jobs, host, manifest, base, frozen, opts)
	if err != nil {
		return err
	}
	r.Changes, r.Cut = found.Differences, found.Cut
	changes := make([]caisson.Change, len(r.Changes))
	for i, x := range r.Changes {
		changes[i] = x.Change
	}
	if err := c.check(ctx, host, frozen, changes); err != nil {
		return err
	}
	for i := range changes {
		r.Changes[i].Change = changes[i]
	}
	return nil
}

// check sets the verdicts and findings of changes. If the checks took too long, all verdicts are deny, so that the changes are
// still shown but cannot be applied.
func (c *reviews) check(ctx context.Context, host, frozen *os.File, changes []caisson.Change) error {
	err := check.RunChanges(ctx, c.jobs, host, frozen, changes, c.rules)
	if caisson.KindOf(err) != caisson.Exhausted || ctx.Err() != nil {
		return err
	}
	for i := range changes {
		changes[i].Verdict = caisson.VerdictDeny
		changes[i].Finding = append(changes[i].Finding, caisson.Finding{Check: "size", Verdict: caisson.VerdictDeny, Message: caisson.MessageOf(err)})
	}
	return nil
}

// recordChanges publishes an event for each new change in r, and stores the number of changes, and the state of the workspace
// that follows from the number.
func (c *reviews) recordChanges(ctx context.Context, w *caisson.Workspace, r *review) error {
	if err := c.announce(ctx, w, r); err != nil {
		return err
	}
	_, err := c.store.Update(ctx, caisson.AllAccounts(), w.ID, func(w *caisson.Workspace) error {
		w.Changes = len(r.Changes)
		switch {
		case w.State == caisson.WorkspaceDetached && w.Changes == 0 && !r.Cut:
			w.State = caisson.WorkspaceSettled
		case w.State == caisson.WorkspaceSettled && w.Changes > 0:
			w.State = caisson.WorkspaceDetached
		}
		return nil
	})
	return err
}

// maxAnnounced is the maximum number of events about changes in one workspace.
const maxAnnounced = 1000

// announce publishes an event for each change whose kind and hash differ from those in the last event for the path of the change.
func (c *reviews) announce(ctx context.Context, w *caisson.Workspace, r *review) error {
	file := c.dir(w.ID, seenFile)
	seen := map[string]string{}
	if err := readJSON(file, &seen); err != nil {
		return err
	}
	var list []*caisson.Event
	for _, x := range r.Changes {
		ch := x.Change
		is := ch.Kind + " " + ch.Hash
		if was, ok := seen[ch.Path]; was == is || !ok && len(seen) >= maxAnnounced || len(list) == maxAnnounced {
			continue
		}
		seen[ch.Path] = is
		data := map[string]string{"path": ch.Path, "kind": ch.Kind, "verdict": ch.Verdict, "hash": ch.Hash}
		if ch.OldPath != "" {
			data["oldPath"] = ch.OldPath
		}
		if ch.Process != "" {
			data["process"] = ch.Process
		}
		list = append(list, newEvent(w, "workspace.changed", data))
	}
	if len(list) == 0 {
		return nil
	}
	c.events.PublishAll(ctx, list)
	return durable.WriteJSON(file, seen)
}

// loadReview returns a review of w that save has stored. Returns Conflict if the review has expired or was removed.
func (c *reviews) loadReview(w *caisson.Workspace, id caisson.ID) (*review, error) {
	if _, err := caisson.ParseID(caisson.ReviewPrefix, string(id)); err != nil {
		return nil, caisson.Invalidf("review", "%.40q is not the id of a review; look at the changes first", string(id))
	}
	r := &review{}
	if err := readJSON(c.dir(w.ID, frozenDir, string(id)+".json"), r); err != nil {
		return nil, err
	}
	if r.ID != id || now().Sub(r.At) > keepReviews {
		return nil, caisson.Errorf(caisson.Conflict, "the review %s is over; look at the changes again", id)
	}
	return r, nil
}

// removeReview removes a review and its copy of the layer.
func (c *reviews) removeReview(w, id caisson.ID) error {
	dir := c.dir(w, frozenDir, string(id))
	err := os.RemoveAll(dir + ".json") // removed first, because a review without this file cannot be used
	return errors.Join(err, removeTree(dir))
}

// removeReviews removes all reviews of a workspace.
func (c *reviews) removeReviews(w caisson.ID) error {
	list, err := os.ReadDir(c.dir(w, frozenDir))
	for _, e := range list {
		id, _, _ := strings.Cut(e.Name(), ".")
		err = errors.Join(err, c.removeReview(w, caisson.ID(id)))
	}
	return err
}

// trimReviews removes incomplete reviews, reviews older than keepReviews, and the oldest beyond maxReviews. The caller must
// hold the lock of the workspace.
func (c *reviews) trimReviews(w caisson.ID, at time.Time) error {
	list, err := os.ReadDir(c.dir(w, frozenDir))
	if err != nil {
		return err
	}
	made := map[caisson.ID]time.Time{}
	for _, e := range list {
		name, whole := strings.CutSuffix(e.Name(), ".json")
		id := caisson.ID(filepath.Base(name))
		if _, ok := made[id]; !ok {
			made[id] = time.Time{}
		}
		if info, err := e.Info(); whole && err == nil {
			made[id] = info.ModTime()
		}
	}
	newestFirst := func(a, b caisson.ID) int { return cmp.Or(made[b].Compare(made[a]), cmp.Compare(a, b)) }
	for i, id := range slices.SortedFunc(maps.Keys(made), newestFirst) {
		if i >= maxReviews || at.Sub(made[id]) > keepReviews {
			err = errors.Join(err, c.removeReview(w, id))
		}
	}
	return err
}
