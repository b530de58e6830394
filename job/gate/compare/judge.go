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

// origin is the state of a path when the workspace was created, or when the path was last applied.
type origin struct {
	baseline.State
	hidden bool // the sandbox does not see the path
	// unknown means that the manifest does not cover the path.
	unknown bool
	text    *baseline.Entry // entry with the stored content, or nil
}

// baselineView returns the origin of paths.
type baselineView struct {
	m    *baseline.Manifest
	base *baseline.Store
}

func (s baselineView) at(path string) (origin, error) {
	if e := s.base.Entries[path]; e != nil && e.Rebased {
		return origin{State: e.State(), text: e}, nil
	}
	r, found, known, err := s.m.Lookup(path)
	if err != nil {
		return origin{}, err
	}
	if !found {
		return origin{State: baseline.Absent, unknown: !known, hidden: s.m.Mask.Hides(path)}, nil
	}
	return s.record(&r), nil
}

func (s baselineView) record(r *baseline.Record) origin {
	o := origin{State: baseline.State{Stat: r.Stat}, hidden: r.Hidden}
	if e := s.base.Entries[r.Path]; e != nil && e.Same(&r.Stat) {
		o.Content, o.text = e.Content(), e
	}
	return o
}

// below calls do for all paths that existed below dir, in no particular order, until do returns an error.
func (s baselineView) below(dir string, do func(path string, o *origin) error) error {
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
	for r, err := range s.m.Below(dir) {
		if err != nil {
			return err
		}
		if e := s.base.Entries[r.Path]; e != nil && e.Rebased {
			continue
		}
		o := s.record(&r)
		if err := do(r.Path, &o); err != nil {
			return err
		}
	}
	return nil
}

// judge compares the sandbox's state of path with its origin and with the host's current state.
func (c *comparer) judge(path string, base *origin, box *baseline.State) error {
	hide := base.hidden || c.baselineStates.m.Mask.Hides(path)
	if hide && base.None() && box.None() {
		return nil
	}
	if hide {
		d := c.add(path, &base.State, box, nil)
		d.finding("path", caisson.VerdictDeny, "The sandbox does not see files of this name because they may hold secrets; say that it may, or make the change by hand.")
		return nil
	}
	host, err := c.host.Look(path)
	if err != nil {
		return err
	}
	if host.Unreadable == "" && box.Type == fsat.TypeDir && (host.Type == fsat.TypeDir && (base.None() || base.Equal(box))) {
		return nil // the host already has the directory
	}
	if box.Type == fsat.TypeDir && base.Type == fsat.TypeDir && host.Type != fsat.TypeDir {
		c.blocked[path] = &conflict{caisson.VerdictConflict, "The host does not have the directory any more."}
		if base.Equal(box) {
			return nil // the sandbox has only opened it, or changed an entry in it
		}
	}
	if host.None() && box.None() && host.Unreadable == "" {
		return nil // both sides have removed it
	}
	if unsupportedType(base.Type) || unsupportedType(host.Type) {
		c.add(path, &base.State, box, nil).finding("type", caisson.VerdictDeny, "Devices, pipes and sockets of the host are left alone.")
		return nil
	}
	if base.unknown {
		c.add(path, &base.State, box, nil).finding("host", caisson.VerdictConflict, "What the host had here at the start was not recorded.")
		return nil
	}
	if host.Type == fsat.TypeFile && host.Unreadable == "" {
		if err := c.host.Fill(path, &host); err != nil {
			return err
		}
	}
	if host.Unreadable != "" {
		c.add(path, &base.State, box, nil).finding("host", caisson.VerdictConflict, "The host's file cannot be compared: "+host.Unreadable+".")
		return nil
	}
	if host.Equal(box) {
		return nil // both sides have changed it in the same way, or neither has changed it
	}
	if base.Same(&host.Stat) {
		base.Content, base.Link = host.Content, host.Link
	}
	if base.Equal(&host) || base.Type == fsat.TypeSymlink && base.Same(&host.Stat) {
		return c.addUnchangedOnHost(path, base, box, &host)
	}
	if base.Equal(box) {
		return nil // only the host has changed it
	}
	return c.addChangedOnHost(path, base, box, &host)
}

// unsupportedType reports whether entries of type typ can be neither created nor removed.
func unsupportedType(typ string) bool {
	switch typ {
	case fsat.TypeNone, fsat.TypeFile, fsat.TypeDir, fsat.TypeSymlink:
		return false
	}
	return true
}

// addUnchangedOnHost adds a change of a path that has not changed on the host.
func (c *comparer) addUnchangedOnHost(path string, base *origin, box, host *baseline.State) error {
	d := c.add(path, &base.State, box, host)
	if host.Type != fsat.TypeDir || box.Type == fsat.TypeDir {
		return nil
	}
	names, err := c.host.Names(path, overlay.MaxEntries)
	if err != nil {
		if errors.Is(err, fsat.ErrTooMany) || fsat.UnlessConcurrent(err) == nil {
			d.finding("host", caisson.VerdictConflict, "What the host has in this directory cannot be looked at.")
			return nil
		}
		return err
	}
	for _, name := range names {
		o, err := c.baselineStates.at(fsat.Join(path, name))
		if err != nil {
			return err
		}
		if o.None() {
			d.finding("host", caisson.VerdictConflict, "The host has new files in this directory.")
			break
		}
	}
	return nil
}

// addChangedOnHost adds a change of a path that has changed on the host as well.
func (c *comparer) addChangedOnHost(path string, base *origin, box, host *baseline.State) error {
	merged, why, err := c.merge(path, base, box, host)
	if err != nil {
		return err
	}
	if why != "" {
		d := c.add(path, &base.State, box, nil)
		d.Change.HostChanged = true
		d.host, d.host.Data, d.clash = *host, nil, true
		d.finding("host", caisson.VerdictConflict, why)
		return nil
	}
	if merged.Equal(host) {
		return nil // the host already contains the sandbox's change
	}
	d := c.add(path, &base.State, merged, host)
	d.Change.Kind, d.Change.HostChanged, d.Change.Merge = kindOf(&base.State, box), true, true
	if merged.Type == fsat.TypeFile {
		c.merged = append(c.merged, overlay.Entry{Path: path, Type: fsat.TypeFile, Mode: merged.Mode, Size: merged.Size, Content: merged.Content, Hash: merged.Hash()})
	}
	return nil
}

// merge merges the two changes, or returns in why the reason for which they cannot be merged.
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
		return nil, "The host has changed this since, and what it was like before is not known.", nil
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

func (c *comparer) mergeText(path string, base *origin, box, host, m *baseline.State) (merged *baseline.State, why string, err error) {
	const other = "The host has changed this since, and the two changes cannot be merged."
	if base.text == nil || host.Data == nil || box.Size > fsat.SmallFile {
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
	if !clean || len(text) > 2*fsat.SmallFile {
		return nil, other, nil
	}
	m.Size = int64(len(text))
	m.Content, err = c.objects.Store(text)
	return m, "", err
}

// sandboxText returns the content of a small file of the frozen copy or of a merged file.
func (c *comparer) sandboxText(s *baseline.State) ([]byte, error) {
	r, err := c.frozen.Open(s.Content)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, 2*fsat.SmallFile+1))
}

// propagateBlocked blocks changes that depend on a blocked change above or below them.
func (c *comparer) propagateBlocked() {
	// A directory can be removed only if all entries in it can be removed.
	stays := map[string]bool{}
	for _, d := range slices.Backward(c.found) {
		if d.base.Type == fsat.TypeDir && d.sandbox.Type != fsat.TypeDir && stays[d.path] && !d.blocked() {
			d.finding("host", caisson.VerdictConflict, "Something in this directory cannot be removed.")
		}
		if d.blocked() && !d.base.None() {
			for dir := fsat.Parent(d.path); dir != "" && !stays[dir]; dir = fsat.Parent(dir) {
				stays[dir] = true
			}
		}
	}
	// Changes in a directory depend on the directory.
	for _, d := range c.found {
		for dir := fsat.Parent(d.path); dir != "" && !d.sandbox.None() && !d.blocked(); dir = fsat.Parent(dir) {
			if o := c.blocked[dir]; o != nil {
				d.finding("host", o.verdict, o.message)
			}
		}
		if d.blocked() && d.sandbox.Type == fsat.TypeDir && d.base.Type != fsat.TypeDir {
			c.blocked[d.path] = &conflict{d.Change.Verdict, "The directory that this is in cannot be made."}
		}
	}
}

// removedAfterApply adds removals of paths that were applied and then removed in the sandbox, and that are neither in the sandbox's
// layer nor in the lower directory. Removing such a path leaves no whiteout in the layer.
func (c *comparer) removedAfterApply() error {
	if c.frozen.Cut() {
		return nil // a path without an entry may be among the entries that were left out
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
		if _, there := c.frozen.Lookup(path); there || c.kept(path, "") {
			continue
		}
		if _, found, known, err := c.baselineStates.m.Lookup(path); err != nil || found || !known {
			if err != nil {
				return err
			}
			continue
		}
		if len(c.found) >= maxDifferences {
			c.cut = true
			break
		}
		if err := c.judge(path, &origin{State: e.State(), text: e}, &baseline.Absent); err != nil {
			return err
		}
	}
	slices.SortStableFunc(c.found, func(a, b *difference) int { return fsat.Compare(a.path, b.path) })
	return nil
}
