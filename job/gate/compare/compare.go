// Package compare finds the changes of a sandbox and merges them with the changes made on the host in the meantime.
package compare

import (
	"context"
	"errors"
	"os"
	"slices"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// maxDifferences is the maximum number of differences that one comparison returns.
const maxDifferences = 100_000

// maxCachedBytes is the maximum number of bytes of the host's file contents that a comparison caches in memory, to search for
// renames and make patches.
const maxCachedBytes = 64 << 20

// A Difference is a change with the steps that apply it.
type Difference struct {
	// Change has the findings and the verdict of the comparison itself: conflict if the host has changed the path as well and
	// the two changes cannot be merged, and deny for a change that can never be applied or is of a hidden file. Otherwise the
	// verdict is empty. Package check then sets a verdict, but never a less strict one.
	Change caisson.Change `json:"change"`
	// Steps apply the change to the host's directory in its state during the comparison: one step, or two for a rename. The
	// contents of new files are objects of the frozen copy. Steps is empty if the change cannot be applied. A caller that
	// applies only some changes must include the changes that create the parent directories of their paths.
	Steps []gate.Step `json:"steps,omitempty"`
}

// Options select optional parts of a comparison.
type Options struct {
	Patch bool `json:"patch,omitempty"` // make unified diffs of text files
	Copy  bool `json:"copy,omitempty"`  // the sandbox has a copy of the directory, as [baseline.Copy] makes it
}

// A Result contains the changes that a comparison has found.
type Result struct {
	Differences []Difference // sorted by path, in the order of directory walks
	Cut         bool         // there are more changes, which are not in Differences and cannot be applied
}

// Changes returns the changes of a sandbox. It compares the frozen copy in frozen with the state of the directory that manifest
// and base, a base directory of package baseline, have recorded, and with host as it is now. Only paths that the
// sandbox touched are compared. Files that were copied up without a change are not reported, and neither are changes that both
// sides have made in the same way.
//
// If the host's file has changed since that record, the change has HostChanged set. If the original content is stored and the
// two changes can be merged, the result of the merge is an object of the frozen copy; otherwise the change is a conflict.
// merged is the directory in frozen for the contents of merged files.
func Changes(ctx context.Context, host, manifest, base, frozen, merged *os.File, opts Options) (*Result, error) {
	defer fsat.KeepAlive(host, merged)
	m, err := baseline.OpenManifest(manifest)
	if err != nil {
		return nil, err
	}
	store, err := baseline.Open(base)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	f, err := overlay.OpenFrozen(frozen)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c := &comparer{
		ctx: ctx, host: baseline.NewHostReader(ctx, int(host.Fd())), baselineStates: baselineView{manifest: m, base: store},
		frozen: f, cut: f.Cut(),
		objects: overlay.NewKeeper(int(merged.Fd()), overlay.FreezeLimits{}.WithDefaults()), blocked: map[string]*conflict{},
	}
	if err := c.run(); err != nil {
		return nil, err
	}
	if opts.Copy {
		if err := c.removedAfterApply(); err != nil {
			return nil, err
		}
	}
	if err := c.finish(opts); err != nil {
		return nil, err
	}
	if err := c.saveMerged(int(merged.Fd())); err != nil {
		return nil, err
	}
	result := &Result{Cut: c.cut}
	for _, d := range c.found {
		result.Differences = append(result.Differences, d.Difference)
	}
	return result, nil
}

// difference is a Difference with the states that were compared.
type difference struct {
	Difference
	path    string // the path as it is on disk, not escaped for display
	oldPath string // path before a rename; "" for other changes
	// base is the state before the sandbox's change: when the workspace was created, or when the path was last applied.
	base        baseline.State
	host        baseline.State // current state on the host of the path or, in a rename, of oldPath
	sandbox     baseline.State // state in the sandbox, or the merged state
	conflicting bool           // the change conflicts with one on the host; its patch is made nevertheless
}

// conflict is the verdict and the message for the changes in a directory in which no change can be applied, see comparer.blocked.
type conflict struct{ verdict, message string }

// comparer is the state of one comparison.
type comparer struct {
	ctx            context.Context
	host           *baseline.HostReader // the host's directory as it is now
	baselineStates baselineView         // the states before the changes of the sandbox
	frozen         *overlay.Frozen      // the frozen copy
	objects        *overlay.Keeper      // stores the contents of merged files
	found          []*difference        // the differences so far
	merged         []overlay.Entry      // index entries of the merged files
	cachedBytes    int                  // number of bytes of file contents that the elements of found cache in host.Data
	cut            bool                 // there are more changes, which were not compared or are not in the frozen copy
	// blocked contains, by path, the directories in which no change can be applied, because of their state on the host or
	// because they cannot be created.
	blocked map[string]*conflict
	// emptiedDir is the last directory found that the sandbox has removed, replaced or made opaque. Its original entries have been
	// removed, except those that are in the frozen copy.
	emptiedDir string
}

// run compares all entries of the frozen copy.
func (c *comparer) run() error {
	for _, e := range c.frozen.Entries() {
		if len(c.found) >= maxDifferences {
			c.cut = true
			break
		}
		if err := c.compareEntry(&e); err != nil {
			return err
		}
	}
	slices.SortStableFunc(c.found, func(a, b *difference) int { return fsat.Compare(a.path, b.path) })
	return nil
}

// compareEntry compares one entry of the frozen copy, and finds the files that the sandbox has removed by replacing the
// directory at its path.
func (c *comparer) compareEntry(e *overlay.Entry) error {
	base, err := c.baselineStates.originAt(e.Path)
	if err != nil {
		return err
	}
	box := baseline.State{Stat: fsat.Stat{Type: e.Type, Mode: e.Mode, Size: e.Size}, Content: e.Content, Link: e.Link}
	if e.Type == fsat.TypeDir {
		box.Mode &= fsat.Permissions // other bits of directories, such as an inherited setgid bit, are not applied
	}
	if e.Denied != "" {
		c.addDenied(e, &base, &box)
		return nil
	}
	if err := c.comparePath(e.Path, &base, &box); err != nil {
		return err
	}
	if base.Type != fsat.TypeDir || e.Type == fsat.TypeDir && !e.Opaque ||
		c.emptiedDir != "" && fsat.Below(e.Path, c.emptiedDir) {
		return nil
	}
	c.emptiedDir = e.Path
	enough := errors.New("enough")
	err = c.baselineStates.eachBelow(e.Path, func(path string, base *origin) error {
		if len(c.found) >= maxDifferences {
			c.cut = true
			return enough
		}
		if e.Type == fsat.TypeDir && c.inFrozenCopy(path, e.Path) {
			return nil
		}
		if e.Type == fsat.TypeDir && c.frozen.Cut() {
			// The path may be among the entries that were left out of the frozen copy.
			d := c.addDifference(path, &base.State, &baseline.Absent, nil)
			d.addFinding("size", caisson.VerdictDeny, "The workspace has more changes than can be read, so whether this was removed is not known.")
			return nil
		}
		return c.comparePath(path, base, &baseline.Absent)
	})
	if errors.Is(err, enough) {
		return nil
	}
	return err
}

// inFrozenCopy reports whether path, which is below the directory dir, is in the frozen copy or below an entry that could not
// be frozen.
func (c *comparer) inFrozenCopy(path, dir string) bool {
	if _, ok := c.frozen.Lookup(path); ok {
		return true
	}
	for above := fsat.Parent(path); above != dir; above = fsat.Parent(above) {
		if e, ok := c.frozen.Lookup(above); ok {
			return e.Denied != ""
		}
	}
	return false
}

// addDenied adds a difference with the verdict deny for an entry that could not be frozen.
func (c *comparer) addDenied(e *overlay.Entry, base *origin, box *baseline.State) {
	d := c.addDifference(e.Path, &base.State, box, nil)
	d.Change.Hash = ""
	check := "type"
	if e.Type == fsat.TypeFile || e.Type == fsat.TypeDir {
		check = "size"
	}
	d.addFinding(check, caisson.VerdictDeny, "This cannot be applied: "+e.Denied+".")
	if e.Type == fsat.TypeDir {
		c.blocked[e.Path] = &conflict{caisson.VerdictDeny, "The directory cannot be applied."}
	}
}

// addDifference appends a difference between base and box, the states of path before and after the sandbox's change. It has a
// step that applies the change to host, the host's current state, unless host is nil.
func (c *comparer) addDifference(path string, base, box *baseline.State, host *baseline.State) *difference {
	d := &difference{path: path, base: *base, sandbox: *box}
	d.Change = caisson.Change{
		Path: safetext.Path(path), Kind: kindOf(base, box), Type: box.Type, OldType: base.Type, Mode: box.Mode, OldMode: base.Mode,
		Size: box.Size, OldSize: base.Size, Link: safetext.Path(box.Link), Hash: box.Hash(),
	}
	if host != nil {
		d.host = *host
		if c.cachedBytes += len(host.Data); c.cachedBytes > maxCachedBytes {
			d.host.Data = nil // the content is read again if it is needed
		}
		d.Steps = []gate.Step{{Path: path, Before: host.Node(), After: box.Node()}}
	}
	if !utf8.ValidString(path) || !utf8.ValidString(box.Link) {
		d.addFinding("name", caisson.VerdictDeny, "The name, or where the link leads, is not UTF-8.")
	}
	c.found = append(c.found, d)
	return d
}

// kindOf returns the kind, such as [caisson.ChangeAdded], of the sandbox's change from the state base to the state box.
func kindOf(base, box *baseline.State) string {
	switch {
	case base.None():
		return caisson.ChangeAdded
	case box.None():
		return caisson.ChangeRemoved
	case base.Type != box.Type:
		return caisson.ChangeType
	case box.Type == fsat.TypeDir, box.Type == fsat.TypeFile && base.Content != "" && base.Content == box.Content:
		return caisson.ChangeMode
	}
	return caisson.ChangeModified
}

// addFinding adds a finding of the comparison to d, and removes its steps because a difference with such a finding cannot be
// applied.
func (d *difference) addFinding(check, verdict, message string) {
	d.Change.Finding = append(d.Change.Finding, caisson.Finding{Check: check, Verdict: verdict, Message: message})
	if d.Change.Verdict != caisson.VerdictDeny {
		d.Change.Verdict = verdict
	}
	d.Steps = nil
}

// isBlocked reports whether d has a finding of the comparison, so that it cannot be applied.
func (d *difference) isBlocked() bool { return d.Change.Verdict != "" }

// saveMerged writes the index of the merged files to dir, or removes it if there are none.
func (c *comparer) saveMerged(dir int) error {
	if len(c.merged) == 0 {
		err := unix.Unlinkat(dir, "index", 0)
		if err == unix.ENOENT {
			err = nil
		}
		return os.NewSyscallError("unlink", err)
	}
	slices.SortFunc(c.merged, func(a, b overlay.Entry) int { return fsat.Compare(a.Path, b.Path) })
	return overlay.WriteIndex(dir, "index", c.merged, false)
}
