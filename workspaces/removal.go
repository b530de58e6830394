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
	"github.com/caisson-dev/caisson/gate"
	"github.com/caisson-dev/caisson/internal/keylock"
)

const (
	checkRemoval = "removal"
	removalFile  = "removals.json"
	// fewFiles is how many files a directory has in which any number of them may be removed automatically.
	fewFiles = 10
)

// removals are counts of the files of a host directory that are [gate.Own] and not hidden, as far as syncs have changed them.
type removals struct {
	Files   int64        // that are there, except those that were made automatically
	Made    int64        // automatically
	Removed int64        // automatically, since a person has last removed some
	Most    int64        // the largest sum of Files and Removed
	Held    []caisson.ID // workspaces with an event that says that removals are held
}

// removalCounts keeps the removals of all host directories, each for all of its workspaces, so that several of them cannot remove
// together what one could not. They are kept as long as there is a workspace of the directory, and for Config.Keep after the last change.
type removalCounts struct {
	dir     string
	earlier func(workspace caisson.ID) string // the file of versions that counted for each workspace
	mu      sync.Mutex                        // held while a file is replaced
	// automatic are held from before changes are reviewed until they are applied, by directory, if they are applied automatically;
	// after Core.locks.
	automatic keylock.Locks
}

// key names the directory of w.
func (c *removalCounts) key(w *caisson.Workspace) string {
	if w.Inode == 0 {
		return string(w.ID)
	}
	return fmt.Sprintf("%x-%x", w.Device, w.Inode)
}

func (c *removalCounts) file(w *caisson.Workspace) string {
	return filepath.Join(c.dir, c.key(w)+".json")
}

func (c *removalCounts) read(w *caisson.Workspace) (had removals, err error) {
	err = errors.Join(readJSON(c.earlier(w.ID), &had), readJSON(c.file(w), &had))
	had.Most = max(had.Most, had.Files+had.Removed)
	return had, err
}

// update changes the counts of w's directory if change says so.
func (c *removalCounts) update(w *caisson.Workspace, change func(*removals) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	had, err := c.read(w)
	if err != nil || !change(&had) {
		return err
	}
	return diskFull(writeJSON(c.file(w), had))
}

// begin counts for another workspace of a directory that has so many files of its own.
func (c *removalCounts) begin(w *caisson.Workspace, files int64) error {
	return c.update(w, func(had *removals) bool {
		had.Files = max(0, files-had.Made)
		if had.Removed == 0 {
			had.Most = 0
		}
		had.Most = max(had.Most, had.Files+had.Removed)
		return true
	})
}

// clean removes counts that have not changed since before and whose file is not among used.
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
		case !gate.Own(step.Path) || !isFile(step.Before):
		case step.After.Type == "file" || step.Before.Type != "file" && isFile(step.After): // a link does not keep a file's content
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
	had, err := c.removals.read(w)
	if err != nil {
		return err
	}
	now := int64(0)
	for i := range r.Changes {
		now += lost(r.Changes[i].Steps)
	}
	all := had.Files + had.Removed
	if now == 0 || had.Most < fewFiles || !r.Cut && 2*(now+had.Removed) <= all {
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
	fresh := false
	err := s.c.removals.update(s.w, func(had *removals) bool {
		if fresh = !slices.Contains(had.Held, s.w.ID); fresh {
			had.Held = append(had.Held, s.w.ID)
		}
		return fresh
	})
	if err != nil || !fresh {
		return err
	}
	s.c.Log.WarnContext(ctx, "removals are not applied automatically", "workspace", s.w.ID, "reason", r.Held)
	s.c.event(ctx, s.w, "sync.held", map[string]string{"by": s.by, "reason": r.Held})
	return nil
}

// count changes the counts by a sync of these steps, or by its undo.
func (c *removalCounts) count(w *caisson.Workspace, receipt *caisson.SyncReceipt, steps []gate.Step, undone bool) error {
	removed, made, gone := lost(steps), int64(0), int64(0)
	for _, step := range steps {
		was, is := isFile(step.Before), isFile(step.After)
		switch {
		case !gate.Own(step.Path):
		case is && !was:
			made++
		case was && !is:
			gone++
		}
	}
	asked := slices.ContainsFunc(receipt.Entries, func(e caisson.ReceiptEntry) bool { return e.Kind == caisson.ChangeRemoved })
	sign := int64(1)
	if undone {
		sign = -1
	}
	return c.update(w, func(had *removals) bool {
		if receipt.Auto {
			// What a sandbox has made itself does not raise what it may remove.
			had.Made = max(0, had.Made+sign*made)
			had.Removed = max(0, had.Removed+sign*removed)
			had.Files = max(0, had.Files-sign*removed)
			return true
		}
		if !undone && removed > 0 && asked {
			had.Removed, had.Held = 0, nil
		}
		had.Files = max(0, had.Files+sign*(made-gone))
		return true
	})
}

func isFile(n gate.Node) bool { return n.Type != "" && n.Type != "none" && n.Type != "dir" }
