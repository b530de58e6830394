package workspaces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/baseline"
)

const (
	checkRemoval = "removal"       // name of the check of removals, in findings
	removalFile  = "removals.json" // numbers of own files, in the directory of a workspace; only earlier versions wrote it
	// fewFiles is a number of own files: of a host directory that has had fewer, automatic syncs may remove any number.
	fewFiles = 10
)

// removalCount has the numbers of a host directory's own files, by which automatic syncs are kept from removing more than half
// of them. Own files are not hidden, downloaded, generated or part of git. Only syncs, undos, addWorkspace and mergeOld set it.
type removalCount struct {
	Files    int64        // existing own files, except those that automatic syncs have created
	Removed  int64        // own files that automatic syncs have removed since a person last removed files
	Auto     bool         // whether automatic syncs have created or removed own files since a person last removed files
	MaxFiles int64        // greatest Files+Removed, or number given to addWorkspace; addWorkspace resets it while Auto is false
	Held     []caisson.ID // workspaces for which an event has reported that automatic syncs leave removals out

	known bool // whether the numbers were read from disk; if not, automatic syncs remove no own files
}

// tooMany reports whether automatic syncs must not remove n more own files of the directory.
func (r *removalCount) tooMany(n int64) bool {
	return n > 0 && (!r.known || r.MaxFiles >= fewFiles && 2*(r.Removed+n) > r.Files+r.Removed)
}

// removalCounts stores, for each host directory, the numbers of existing and removed own files that limit automatic syncs. All
// workspaces of a directory share the numbers, so that several workspaces together cannot remove more files than a single one.
// The numbers are kept as long as the directory has a workspace, and for Settings.Keep after the last change.
type removalCounts struct {
	dir        string     // directory with a file for each host directory, which contains its numbers
	workspaces directory  // where earlier versions stored the numbers, in a file for each workspace
	mu         sync.Mutex // held while a file in dir is replaced or removed
}

// file returns the path of the file with the numbers of existing and removed own files of the host directory of w.
func (c *removalCounts) file(w *caisson.Workspace) string {
	name := string(w.ID)
	if w.Inode != 0 {
		name = fmt.Sprintf("%x-%x", w.Device, w.Inode)
	}
	return filepath.Join(c.dir, name+".json")
}

// read returns the numbers of existing and removed own files of the host directory of w; with known false if none are stored.
func (c *removalCounts) read(w *caisson.Workspace) (had removalCount, err error) {
	var stored *removalCount // nil if none are stored
	if err := readJSON(c.file(w), &stored); err != nil || stored == nil {
		return had, err
	}
	stored.known = true
	return *stored, nil
}

// update calls change with the numbers of existing and removed own files of w's directory, and stores them if it returns true.
func (c *removalCounts) update(w *caisson.Workspace, change func(*removalCount) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	had, err := c.read(w)
	if err != nil || !change(&had) {
		return err
	}
	had.MaxFiles = max(had.MaxFiles, had.Files+had.Removed)
	return durable.WriteJSON(c.file(w), had)
}

// addWorkspace updates the numbers of own files when another workspace of the directory is created. files is the present number
// of them. If automatic syncs have created or removed files since a person last removed files, Files can only decrease, because
// the files that were added since may be those of automatic syncs; otherwise counting starts again with files.
func (c *removalCounts) addWorkspace(w *caisson.Workspace, files int64) error {
	return c.update(w, func(had *removalCount) bool {
		if had.Auto {
			had.Files = min(had.Files, files)
		} else {
			had.Files, had.MaxFiles = files, 0
		}
		had.MaxFiles = max(had.MaxFiles, files)
		return true
	})
}

// mergeOld adds the numbers of own files that an earlier version has stored for the workspace w to those of its host directory,
// and removes the file of the earlier version.
func (c *removalCounts) mergeOld(w *caisson.Workspace) error {
	var old *removalCount // nil if there are none
	file := c.workspaces.dir(w.ID, removalFile)
	if err := readJSON(file, &old); err != nil || old == nil {
		return err
	}
	err := c.update(w, func(had *removalCount) bool {
		if !had.known {
			if old.Files+old.Removed < fewFiles {
				// Known numbers this small would allow all removals, but they leave out files that syncs have created.
				return false
			}
			had.Files = old.Files
		}
		had.Files, had.Removed, had.Auto = min(had.Files, old.Files), had.Removed+old.Removed, true
		return true
	})
	if err != nil {
		return err
	}
	return os.Remove(file)
}

// clean removes the files with the numbers of existing and removed own files of host directories that were last written before
// the given time, except those with names in used, whose host directories have workspaces.
func (c *removalCounts) clean(used map[string]bool, before time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, err := os.ReadDir(c.dir)
	for _, e := range entries {
		info, infoErr := e.Info()
		if infoErr == nil && !used[e.Name()] && info.ModTime().Before(before) {
			err = errors.Join(err, os.Remove(filepath.Join(c.dir, e.Name())))
		}
	}
	return err
}

// lostFiles returns how many of the directory's own files, which are not downloaded, generated or part of git, the steps remove.
// A removed file does not count if the steps create an own file with the same content. So a rename counts as a removal if its
// target is not an own file, or if it changes the content.
func lostFiles(steps []gate.Step) (n int64) {
	made := map[string]int{} // number of created files by hash
	for _, step := range steps {
		if baseline.IsOwnFile(step.Path) && !isFile(step.Before) && step.After.Type == "file" {
			made[step.After.Hash]++
		}
	}
	for _, step := range steps {
		switch {
		case !baseline.IsOwnFile(step.Path) || !isFile(step.Before):
		case step.After.Type == "file" || step.Before.Type != "file" && isFile(step.After): // replaced, not removed
		case step.Before.Type == "file" && made[step.Before.Hash] > 0:
			made[step.Before.Hash]--
		default:
			n++
		}
	}
	return n
}

// holdRemovals sets the verdict of removals to ask if these removals, and the removals that were applied automatically before,
// are more than half of the files that the directory had: a faulty or malicious sandbox must not remove a whole tree. The
// number of removed files adds up until a person removes files, so that many small syncs cannot remove a whole tree either.
func (c *reviews) holdRemovals(w *caisson.Workspace, r *review) error {
	had, err := c.removals.read(w)
	if err != nil {
		return err
	}
	now := int64(0)
	for i := range r.Changes {
		now += lostFiles(r.Changes[i].Steps)
	}
	all := had.Files + had.Removed
	if !had.tooMany(now) && (!r.Cut || now == 0 || had.MaxFiles < fewFiles) {
		return nil
	}
	why := fmt.Sprintf("%d of the directory's %d files would be removed, which was not requested", now+had.Removed, all)
	for i := range r.Changes {
		ch := &r.Changes[i].Change
		if lostFiles(r.Changes[i].Steps) == 0 {
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

// reportHeld publishes an event, once for each workspace, if an automatic sync leaves removals out.
func (s *syncRun) reportHeld(ctx context.Context, r *review) error {
	if !s.auto || r.Held == "" {
		return nil
	}
	fresh := false
	err := s.c.removals.update(s.w, func(had *removalCount) bool {
		if fresh = had.known && !slices.Contains(had.Held, s.w.ID); fresh {
			had.Held = append(had.Held, s.w.ID)
		}
		return fresh
	})
	if err != nil || !fresh {
		return err
	}
	s.c.cfg.Log.WarnContext(ctx, "removals are not applied automatically", "workspace", s.w.ID, "reason", r.Held)
	publish(ctx, s.c.cfg.Events, s.w, "sync.held", map[string]string{"by": s.by, "reason": r.Held})
	return nil
}

// countFiles returns how many of the directory's own files, which are not downloaded, generated or part of git, the steps create
// (made) and delete (gone), and how many they delete without creating the same content elsewhere (removed).
func countFiles(steps []gate.Step) (made, gone, removed int64) {
	for _, step := range steps {
		was, is := isFile(step.Before), isFile(step.After)
		switch {
		case !baseline.IsOwnFile(step.Path):
		case is && !was:
			made++
		case was && !is:
			gone++
		}
	}
	return made, gone, lostFiles(steps)
}

// countAuto counts the own files that the steps of an automatic sync create and remove, before they are applied. After a crash
// it may have counted steps that were not applied. Returns Conflict if other workspaces of the directory have removed files
// since the review, and the removals in steps would now be too many.
func (c *removalCounts) countAuto(w *caisson.Workspace, steps []gate.Step) error {
	var over error
	err := c.update(w, func(had *removalCount) bool {
		made, _, removed := countFiles(steps)
		if had.tooMany(removed) {
			over = caisson.Errorf(caisson.Conflict, "other workspaces of %.100q have removed files in the meantime; try again", w.Source)
			return false
		}
		had.add(made, removed, 1)
		return had.known && (made > 0 || removed > 0)
	})
	return errors.Join(over, err)
}

// add counts the own files that an automatic sync has created (made) and removed, or reverses that for its undo if sign is -1.
// Files that a sandbox has created do not raise the number of files that it may remove.
func (r *removalCount) add(made, removed, sign int64) {
	r.Auto = r.Auto || made > 0 || removed > 0
	r.Removed = max(0, r.Removed+sign*removed)
	r.Files = max(0, r.Files-sign*removed)
}

// uncountAuto subtracts the removals in steps, which countAuto has counted, because steps were not applied or have been undone.
func (c *removalCounts) uncountAuto(w *caisson.Workspace, steps []gate.Step) error {
	return c.update(w, func(had *removalCount) bool {
		made, _, removed := countFiles(steps)
		had.add(made, removed, -1)
		return had.known && removed > 0
	})
}

// countApproved counts the own files that steps create and remove, after a sync that a person has requested, or after its undo
// if undone is true. If the person has chosen removals, the counts of automatic syncs start again.
func (c *removalCounts) countApproved(w *caisson.Workspace, receipt *caisson.SyncReceipt, steps []gate.Step, undone bool) error {
	asked := slices.ContainsFunc(receipt.Entries, func(e caisson.ReceiptEntry) bool { return e.Kind == caisson.ChangeRemoved })
	return c.update(w, func(had *removalCount) bool {
		made, gone, removed := countFiles(steps)
		if undone {
			made, gone = gone, made
		} else if removed > 0 && asked {
			had.Removed, had.Auto, had.Held = 0, false, nil
		}
		had.Files = max(0, had.Files+made-gone)
		return had.known
	})
}

// isFile reports whether n is a file or symlink.
func isFile(n gate.Node) bool { return n.Type != "" && n.Type != "none" && n.Type != "dir" }
