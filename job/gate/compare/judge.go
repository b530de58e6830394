package compare

import (
	"errors"
	"io"
	"slices"
	"sort"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// origin is the state of a path before the sandbox's changes: when the workspace was created or, if the path was applied since,
// when it was last applied.
type origin struct {
	baseline.State
	hidden bool // the sandbox does not see the path
	// unknown means that the manifest does not tell whether the path existed.
	unknown bool
	text    *baseline.Entry // entry of the base directory with the stored content, or nil
}

// baselineView finds the origins of paths, their states before the sandbox's changes, in a manifest and a base directory.
type baselineView struct {
	manifest *baseline.Manifest // the states when the workspace was created
	base     *baseline.Store    // the states that replace those of the manifest, and the stored contents
}

// originAt returns the origin of path, its state before the sandbox's changes.
func (s baselineView) originAt(path string) (origin, error) {
	if e := s.base.Entries[path]; e != nil && e.Rebased {
		return origin{State: e.State(), text: e}, nil
	}
	r, found, known, err := s.manifest.Lookup(path)
	if err != nil {
		return origin{}, err
	}
	if !found {
		return origin{State: baseline.Absent, unknown: !known, hidden: s.manifest.Mask.Hides(path)}, nil
	}
	return s.originOf(&r), nil
}

// originOf returns the origin of a path, its state before the sandbox's changes: that of r, its record in the manifest, with the
// content from the base directory, if stored. The path must not have been applied since the manifest was made.
func (s baselineView) originOf(r *baseline.Record) origin {
	o := origin{State: baseline.State{Stat: r.Stat}, hidden: r.Hidden}
	if e := s.base.Entries[r.Path]; e != nil && e.Same(&r.Stat) {
		o.Content, o.text = e.Content(), e
	}
	return o
}

// eachBelow calls do with each path that existed below dir before the sandbox's changes, and its state then, in no particular
// order, until do returns an error.
func (s baselineView) eachBelow(dir string, do func(path string, o *origin) error) error {
	for i := sort.Search(len(s.base.Rebased), func(i int) bool { return fsat.Compare(s.base.Rebased[i], dir) > 0 }); i < len(s.base.Rebased); i++ {
		path := s.base.Rebased[i]
		if !fsat.Below(path, dir) {
			break
		}
		e := s.base.Entries[path]
		if e.Type == fsat.TypeNone {
			continue
		}
		if err := do(path, &origin{State: e.State(), text: e}); err != nil {
			return err
		}
	}
	for r, err := range s.manifest.Below(dir) {
		if err != nil {
			return err
		}
		if e := s.base.Entries[r.Path]; e != nil && e.Rebased {
			continue
		}
		o := s.originOf(&r)
		if err := do(r.Path, &o); err != nil {
			return err
		}
	}
	return nil
}

// comparePath compares box, the sandbox's state of path, with base, the state before the sandbox's changes, and with the host's
// current state. It adds a difference if the sandbox has changed the path.
func (c *comparer) comparePath(path string, base *origin, box *baseline.State) error {
	hide := base.hidden || c.baselineStates.manifest.Mask.Hides(path)
	if hide && base.None() && box.None() {
		return nil
	}
	if hide {
		d := c.addDifference(path, &base.State, box, nil)
		d.addFinding("path", caisson.VerdictDeny, "The sandbox does not see files of this name because they may hold secrets; say that it may, or make the change by hand.")
		return nil
	}
	host, err := c.host.Look(path)
	if err != nil {
		return err
	}
	if host.Unreadable == "" && box.Type == fsat.TypeDir && (host.Type == fsat.TypeDir && (base.None() || base.Equal(box))) {
		return nil // the directory already exists on the host
	}
	if box.Type == fsat.TypeDir && base.Type == fsat.TypeDir && host.Type != fsat.TypeDir {
		c.blocked[path] = &conflict{caisson.VerdictConflict, "The host does not have the directory any more."}
		if base.Equal(box) {
			return nil // the sandbox has not changed the directory itself, but perhaps an entry in it
		}
	}
	if host.None() && box.None() && host.Unreadable == "" {
		return nil // the host and the sandbox have both removed the path
	}
	if unsupportedType(base.Type) || unsupportedType(host.Type) {
		c.addDifference(path, &base.State, box, nil).addFinding("type", caisson.VerdictDeny, "Devices, pipes and sockets of the host are left alone.")
		return nil
	}
	if base.unknown {
		c.addDifference(path, &base.State, box, nil).addFinding("host", caisson.VerdictConflict, "The state of this path on the host at the start was not recorded.")
		return nil
	}
	if host.Type == fsat.TypeFile && host.Unreadable == "" {
		if err := c.host.AddContent(path, &host); err != nil {
			return err
		}
	}
	if host.Unreadable != "" {
		c.addDifference(path, &base.State, box, nil).addFinding("host", caisson.VerdictConflict, "The host's file cannot be compared: "+host.Unreadable+".")
		return nil
	}
	if host.Equal(box) {
		return nil // the host and the sandbox have changed the path in the same way, or neither has changed it
	}
	if base.Same(&host.Stat) {
		base.Content, base.Link = host.Content, host.Link
	}
	if base.Equal(&host) || base.Type == fsat.TypeSymlink && base.Same(&host.Stat) {
		return c.addUnchangedOnHost(path, base, box, &host)
	}
	if base.Equal(box) {
		return nil // only the host has changed the path
	}
	return c.addChangedOnHost(path, base, box, &host)
}

// unsupportedType reports whether typ is a type of entries that the gate can neither create nor remove, such as a device.
func unsupportedType(typ string) bool {
	switch typ {
	case fsat.TypeNone, fsat.TypeFile, fsat.TypeDir, fsat.TypeSymlink:
		return false
	}
	return true
}

// addUnchangedOnHost adds a difference for a path that has not changed on the host.
func (c *comparer) addUnchangedOnHost(path string, base *origin, box, host *baseline.State) error {
	d := c.addDifference(path, &base.State, box, host)
	if host.Type != fsat.TypeDir || box.Type == fsat.TypeDir {
		return nil
	}
	names, err := c.host.Names(path, overlay.MaxEntries)
	if err != nil {
		if errors.Is(err, fsat.ErrTooMany) || fsat.UnlessConcurrent(err) == nil {
			d.addFinding("host", caisson.VerdictConflict, "What the host has in this directory cannot be looked at.")
			return nil
		}
		return err
	}
	for _, name := range names {
		o, err := c.baselineStates.originAt(fsat.Join(path, name))
		if err != nil {
			return err
		}
		if o.None() {
			d.addFinding("host", caisson.VerdictConflict, "The host has new files in this directory.")
			break
		}
	}
	return nil
}

// addChangedOnHost adds a difference for a path that has changed on the host as well.
func (c *comparer) addChangedOnHost(path string, base *origin, box, host *baseline.State) error {
	merged, why, err := c.merge(path, base, box, host)
	if err != nil {
		return err
	}
	if why != "" {
		d := c.addDifference(path, &base.State, box, nil)
		d.Change.HostChanged = true
		d.host, d.host.Data, d.conflicting = *host, nil, true
		d.addFinding("host", caisson.VerdictConflict, why)
		return nil
	}
	if merged.Equal(host) {
		return nil // the host already contains the sandbox's change
	}
	d := c.addDifference(path, &base.State, merged, host)
	d.Change.Kind, d.Change.HostChanged, d.Change.Merge = kindOf(&base.State, box), true, true
	if merged.Type == fsat.TypeFile {
		c.merged = append(c.merged, overlay.Entry{Path: path, Type: fsat.TypeFile, Mode: merged.Mode, Size: merged.Size, Content: merged.Content, Hash: merged.Hash()})
	}
	return nil
}

// merge merges the change of the sandbox, from base to box, with that of the host, from base to host. If they cannot be merged,
// merged is nil and why is the reason.
func (c *comparer) merge(path string, base *origin, box, host *baseline.State) (merged *baseline.State, why string, err error) {
	switch {
	case base.None():
		return nil, "The host has something else here now, which the sandbox never saw.", nil
	case host.None():
		return nil, "The host has removed this.", nil
	case box.None():
		return nil, "The host has changed this since; the sandbox has removed it.", nil
	case host.Type != base.Type || box.Type != base.Type:
		return nil, "The host has changed this since, and one of the two is not the kind of file that it was.", nil
	case box.Type == fsat.TypeSymlink:
		return nil, "The link leads elsewhere on the host now.", nil
	}
	m := *box
	switch {
	case box.Mode == base.Mode:
		m.Mode = host.Mode & (fsat.Permissions | box.Mode)
	case host.Mode == base.Mode || host.Mode == box.Mode:
	default:
		return nil, "The host has changed the permissions in another way.", nil
	}
	if box.Type != fsat.TypeFile {
		return &m, "", nil
	}
	switch {
	case base.Content == "":
		return nil, "The host has changed this since, and its earlier state is not known.", nil
	case box.Content == base.Content:
		if host.Data == nil {
			return nil, "The host has changed this since, and it is too large to be merged.", nil
		}
		m.Content, m.Size = host.Content, host.Size
		_, err := c.objects.Store(host.Data)
		return &m, "", err
	case host.Content == base.Content || host.Content == box.Content:
		return &m, "", nil
	}
	return c.mergeText(path, base, box, host, &m)
}

// mergeText merges two changes of a text file line by line. m is the merged state without its content.
func (c *comparer) mergeText(path string, base *origin, box, host, m *baseline.State) (merged *baseline.State, why string, err error) {
	const other = "The host has changed this since, and the two changes cannot be merged."
	if base.text == nil || host.Data == nil || box.Size > fsat.MaxSmallFile {
		return nil, other, nil
	}
	before := c.baselineStates.base.Text(base.text)
	if before == nil {
		return nil, other, nil
	}
	ours, err := c.sandboxText(box)
	if err != nil {
		return nil, "", err
	}
	text, clean := Merge3(before, ours, host.Data)
	if !clean || len(text) > 2*fsat.MaxSmallFile {
		return nil, other, nil
	}
	m.Size = int64(len(text))
	m.Content, err = c.objects.Store(text)
	return m, "", err
}

// sandboxText returns the content of the file with the state s, a small file of the frozen copy or a merged file.
func (c *comparer) sandboxText(s *baseline.State) ([]byte, error) {
	r, err := c.frozen.Open(s.Content)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, 2*fsat.MaxSmallFile+1))
}

// propagateBlocked adds findings to the changes that cannot be applied because they depend on a blocked change of a path above
// or below theirs.
func (c *comparer) propagateBlocked() {
	// A directory can be removed only if all entries in it can be removed.
	stays := map[string]bool{}
	for _, d := range slices.Backward(c.found) {
		if d.base.Type == fsat.TypeDir && d.sandbox.Type != fsat.TypeDir && stays[d.path] && !d.isBlocked() {
			d.addFinding("host", caisson.VerdictConflict, "Something in this directory cannot be removed.")
		}
		if d.isBlocked() && !d.base.None() {
			for dir := fsat.Parent(d.path); dir != "" && !stays[dir]; dir = fsat.Parent(dir) {
				stays[dir] = true
			}
		}
	}
	// An entry cannot be created or changed below a directory that is in c.blocked.
	for _, d := range c.found {
		for dir := fsat.Parent(d.path); dir != "" && !d.sandbox.None() && !d.isBlocked(); dir = fsat.Parent(dir) {
			if o := c.blocked[dir]; o != nil {
				d.addFinding("host", o.verdict, o.message)
			}
		}
		if d.isBlocked() && d.sandbox.Type == fsat.TypeDir && d.base.Type != fsat.TypeDir {
			c.blocked[d.path] = &conflict{d.Change.Verdict, "The directory that this is in cannot be made."}
		}
	}
}

// removedAfterApply adds the removals of paths that a sandbox with a copy of the directory has created and, after they were
// applied, has removed again. Such a path is not in the frozen copy, because removing it leaves no whiteout in the layer.
func (c *comparer) removedAfterApply() error {
	if c.frozen.Cut() {
		return nil // a path without an entry may be among the entries that were left out of the frozen copy
	}
	seen := map[string]bool{}
	for _, d := range c.found {
		seen[d.path] = true
	}
	for _, path := range c.baselineStates.base.Rebased {
		e := c.baselineStates.base.Entries[path]
		if e.Type == fsat.TypeNone || seen[path] {
			continue
		}
		if _, there := c.frozen.Lookup(path); there || c.inFrozenCopy(path, "") {
			continue
		}
		if _, found, known, err := c.baselineStates.manifest.Lookup(path); err != nil || found || !known {
			if err != nil {
				return err
			}
			continue
		}
		if len(c.found) >= maxDifferences {
			c.cut = true
			break
		}
		if err := c.comparePath(path, &origin{State: e.State(), text: e}, &baseline.Absent); err != nil {
			return err
		}
	}
	slices.SortStableFunc(c.found, func(a, b *difference) int { return fsat.Compare(a.path, b.path) })
	return nil
}
