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

// maxCachedBytes is the maximum number of bytes of file contents that are cached in memory for later steps.
const maxCachedBytes = 64 << 20

// A Difference is a change with the steps that apply it.
type Difference struct {
	// Change has the verdicts and findings of the comparison itself: conflict if the host has changed as well and the two
	// changes cannot be merged, and deny for changes that can never be applied and for hidden files. Otherwise the verdict is
	// empty, to be filled in by the checks, which never make a verdict less strict.
	Change caisson.Change `json:"change"`
	// Steps apply the change to the host as it was when the change was found: one step, or two for a rename. Their contents are
	// objects of the frozen copy. Steps is empty if the change cannot be applied as it is. A step needs its parent directory: a
	// caller that applies a part of the changes must include those of the parent directories.
	Steps []gate.Step `json:"steps,omitempty"`
}

// Options select optional parts of a comparison.
type Options struct {
	Patch bool `json:"patch,omitempty"` // unified diffs of text files
	Copy  bool `json:"copy,omitempty"`  // the sandbox has a copy of the directory, as [baseline.Copy] makes it
}

// A Result contains the changes that were found.
type Result struct {
	Differences []Difference // sorted by path, in the order of directory walks
	Cut         bool         // there are more changes, which cannot be applied
}

// Changes returns the changes of a sandbox. It compares the frozen copy in frozen with the state of the directory that manifest
// (and base, see [baseline.SaveBase] and [baseline.Rebase]) has recorded, and with host as it is now. Only paths that the sandbox
// touched are compared. Files that were copied up without a change are not reported, and neither are changes that both sides
// made in the same way.
//
// If the host's file has changed since, the change has HostChanged set. If the original content is stored and the two changes
// can be merged, the result of the merge is an object of the frozen copy; otherwise the change is a conflict. merged is the
// directory of merged objects in frozen, see [overlay.OpenMerged].
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
		ctx: ctx, host: baseline.NewHostReader(ctx, int(host.Fd())), baselineStates: baselineView{m: m, base: store}, frozen: f, cut: f.Cut(),
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
	path    string // as on disk, not escaped for display
	oldPath string
	base    baseline.State // state when the workspace was created, or when the path was last applied
	host    baseline.State // current state on the host; of oldPath in renames
	sandbox baseline.State // state in the sandbox, or the merged state
	clash   bool           // conflicts with host; its patch is shown nevertheless
}

// conflict is the reason why a directory or its contents cannot be changed.
type conflict struct{ verdict, message string }

type comparer struct {
	ctx            context.Context
	host           *baseline.HostReader // the host's directory as it is now
	baselineStates baselineView         // the states before the changes of the sandbox
	frozen         *overlay.Frozen
	objects        *overlay.Keeper // stores the contents of merged files
	found          []*difference
	merged         []overlay.Entry // merged files
	cachedBytes    int             // bytes of host.Data in found
	cut            bool            // there are more changes, which were not compared
	// blocked contains the directories whose state on the host does not allow the sandbox's changes in them.
	blocked map[string]*conflict
	// emptied is the last directory in which the sandbox has removed all entries of the host, except for those that are in
	// the frozen copy.
	emptied string
}

func (c *comparer) run() error {
	for _, e := range c.frozen.Entries() {
		if len(c.found) >= maxDifferences {
			c.cut = true
			break
		}
		if err := c.entry(&e); err != nil {
			return err
		}
	}
	slices.SortStableFunc(c.found, func(a, b *difference) int { return fsat.Compare(a.path, b.path) })
	return nil
}

// entry compares one entry of the frozen copy, and finds the files that the sandbox has removed below it.
func (c *comparer) entry(e *overlay.Entry) error {
	base, err := c.baselineStates.at(e.Path)
	if err != nil {
		return err
	}
	box := baseline.State{Stat: fsat.Stat{Type: e.Type, Mode: e.Mode, Size: e.Size}, Content: e.Content, Link: e.Link}
	if e.Type == fsat.TypeDir {
		box.Mode &= fsat.Permissions // the other bits of directories are inherited and not applied
	}
	if e.Denied != "" {
		c.deny(e, &base, &box)
		return nil
	}
	if err := c.judge(e.Path, &base, &box); err != nil {
		return err
	}
	if base.Type != fsat.TypeDir || e.Type == fsat.TypeDir && !e.Opaque || c.emptied != "" && fsat.Below(e.Path, c.emptied) {
		return nil
	}
	c.emptied = e.Path
	enough := errors.New("enough")
	err = c.baselineStates.below(e.Path, func(path string, base *origin) error {
		if len(c.found) >= maxDifferences {
			c.cut = true
			return enough
		}
		if e.Type == fsat.TypeDir && c.kept(path, e.Path) {
			return nil
		}
		if e.Type == fsat.TypeDir && c.frozen.Cut() {
			// The path may be among the entries that were left out of the frozen copy.
			d := c.add(path, &base.State, &baseline.Absent, nil)
			d.finding("size", caisson.VerdictDeny, "The workspace has more changes than can be read, so whether this was removed is not known.")
			return nil
		}
		return c.judge(path, base, &baseline.Absent)
	})
	if errors.Is(err, enough) {
		return nil
	}
	return err
}

// kept reports whether path, which is below the emptied directory dir, is in the frozen copy or below an entry that could not
// be frozen.
func (c *comparer) kept(path, dir string) bool {
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

// deny reports an entry that could not be frozen.
func (c *comparer) deny(e *overlay.Entry, base *origin, box *baseline.State) {
	d := c.add(e.Path, &base.State, box, nil)
	d.Change.Hash = ""
	check := "type"
	if e.Type == fsat.TypeFile || e.Type == fsat.TypeDir {
		check = "size"
	}
	d.finding(check, caisson.VerdictDeny, "This cannot be applied: "+e.Denied+".")
	if e.Type == fsat.TypeDir {
		c.blocked[e.Path] = &conflict{caisson.VerdictDeny, "The directory cannot be applied."}
	}
}

// add appends a difference between base and box, with a step that applies it to the host's current state host. If host is nil,
// the difference has no step.
func (c *comparer) add(path string, base, box *baseline.State, host *baseline.State) *difference {
	d := &difference{path: path, base: *base, sandbox: *box}
	d.Change = caisson.Change{
		Path: safetext.Path(path), Kind: kindOf(base, box), Type: box.Type, OldType: base.Type, Mode: box.Mode, OldMode: base.Mode,
		Size: box.Size, OldSize: base.Size, Link: safetext.Path(box.Link), Hash: box.Hash(),
	}
	if host != nil {
		d.host = *host
		if c.cachedBytes += len(host.Data); c.cachedBytes > maxCachedBytes {
			d.host.Data = nil // it is read again if needed
		}
		d.Steps = []gate.Step{{Path: path, Before: host.Node(), After: box.Node()}}
	}
	if !utf8.ValidString(path) || !utf8.ValidString(box.Link) {
		d.finding("name", caisson.VerdictDeny, "The name, or where the link leads, is not UTF-8.")
	}
	c.found = append(c.found, d)
	return d
}

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

// finding adds a finding of the comparison to d and removes its steps: a difference with such a finding cannot be applied.
func (d *difference) finding(check, verdict, message string) {
	d.Change.Finding = append(d.Change.Finding, caisson.Finding{Check: check, Verdict: verdict, Message: message})
	if d.Change.Verdict != caisson.VerdictDeny {
		d.Change.Verdict = verdict
	}
	d.Steps = nil
}

// blocked reports whether the comparison has found that d cannot be applied.
func (d *difference) blocked() bool { return d.Change.Verdict != "" }

// saveMerged writes the index of the merged files.
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
