package gate

import (
	"errors"
	"io"
	"slices"
	"sort"

	"github.com/caisson-dev/caisson"
)

// errEnough ends a walk early.
var errEnough = errors.New("enough")

// origin is what was at a path when the workspace began, or when it was last applied.
type origin struct {
	state
	hidden bool
	// unknown says that it is not known what was there.
	unknown bool
	text    *baseEntry // where the content is kept, or nil
}

// startOf answers what a workspace has started from.
type startOf struct {
	m    *Manifest
	base *baseStore
}

func (s startOf) at(path string) (origin, error) {
	if e := s.base.entries[path]; e != nil && e.rebased {
		return origin{state: e.state(), text: e}, nil
	}
	r, found, known, err := s.m.Lookup(path)
	if err != nil {
		return origin{}, err
	}
	if !found {
		return origin{state: nothing, unknown: !known, hidden: s.m.mask.Hides(path)}, nil
	}
	return s.record(&r), nil
}

func (s startOf) record(r *Record) origin {
	o := origin{state: state{stat: r.stat}, hidden: r.Hidden}
	if e := s.base.entries[r.Path]; e != nil && e.same(&r.stat) {
		o.content, o.text = e.content(), e
	}
	return o
}

func (e *baseEntry) state() state { return state{stat: e.stat, content: e.content(), link: e.link} }

// below calls do with all that was below dir, in no order, until it returns an error; errEnough is none.
func (s startOf) below(dir string, do func(path string, o *origin) error) error {
	for i := sort.Search(len(s.base.rebased), func(i int) bool { return comparePaths(s.base.rebased[i], dir) > 0 }); i < len(s.base.rebased); i++ {
		path := s.base.rebased[i]
		if !below(path, dir) {
			break
		}
		e := s.base.entries[path]
		if e.typ == typeNone {
			continue
		}
		if err := do(path, &origin{state: e.state(), text: e}); err != nil {
			return ignore(err, errEnough)
		}
	}
	var failed error
	err := s.m.Below(dir, func(r Record) bool {
		if e := s.base.entries[r.Path]; e != nil && e.rebased {
			return true
		}
		o := s.record(&r)
		failed = do(r.Path, &o)
		return failed == nil
	})
	return errors.Join(err, ignore(failed, errEnough))
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// judge compares what the sandbox has at path with what was there and with what the host has now.
func (c *comparer) judge(path string, base *origin, box *state) error {
	hide := base.hidden || c.start.m.mask.Hides(path)
	if hide && base.none() && box.none() {
		return nil
	}
	if hide {
		d := c.add(path, &base.state, box, nil)
		d.finding("path", caisson.VerdictDeny, "The sandbox does not see files of this name because they may hold secrets; say that it may, or make the change by hand.")
		return nil
	}
	host, err := c.host.look(path)
	if err != nil {
		return err
	}
	if host.odd == "" && box.typ == typeDir && (host.typ == typeDir && (base.none() || base.equal(box))) {
		return nil // it is there already
	}
	if box.typ == typeDir && base.typ == typeDir && host.typ != typeDir {
		c.blocked[path] = &obstacle{caisson.VerdictClash, "The host does not have the directory any more."}
		if base.equal(box) {
			return nil // the sandbox has only looked into it, or changed something in it
		}
	}
	if host.none() && box.none() && host.odd == "" {
		return nil // both have removed it
	}
	if unfit(base.typ) || unfit(host.typ) {
		c.add(path, &base.state, box, nil).finding("type", caisson.VerdictDeny, "Devices, pipes and sockets of the host are left alone.")
		return nil
	}
	if base.unknown {
		c.add(path, &base.state, box, nil).finding("host", caisson.VerdictClash, "What the host had here at the start was not recorded.")
		return nil
	}
	if host.typ == typeFile && host.odd == "" {
		if err := c.host.fill(path, &host); err != nil {
			return err
		}
	}
	if host.odd != "" {
		c.add(path, &base.state, box, nil).finding("host", caisson.VerdictClash, "The host's file cannot be compared: "+host.odd+".")
		return nil
	}
	if host.equal(box) {
		return nil // both have changed it in the same way, or neither has
	}
	if base.same(&host.stat) {
		base.content, base.link = host.content, host.link
	}
	if base.equal(&host) || base.typ == typeSymlink && base.same(&host.stat) {
		return c.unmoved(path, base, box, &host)
	}
	if base.equal(box) {
		return nil // only the host has changed it
	}
	return c.moved(path, base, box, &host)
}

// unfit reports whether typ is one that is neither made nor removed.
func unfit(typ string) bool {
	switch typ {
	case typeNone, typeFile, typeDir, typeSymlink:
		return false
	}
	return true
}

// unmoved adds a change of what is on the host as it was.
func (c *comparer) unmoved(path string, base *origin, box, host *state) error {
	d := c.add(path, &base.state, box, host)
	if host.typ != typeDir || box.typ == typeDir {
		return nil
	}
	names, err := c.host.names(path, maxEntries)
	if err != nil {
		if errors.Is(err, errTooMany) || unexpected(err) == nil {
			d.finding("host", caisson.VerdictClash, "What the host has in this directory cannot be looked at.")
			return nil
		}
		return err
	}
	for _, name := range names {
		o, err := c.start.at(join(path, name))
		if err != nil {
			return err
		}
		if o.none() {
			d.finding("host", caisson.VerdictClash, "The host has new files in this directory.")
			break
		}
	}
	return nil
}

// moved adds a change of what has changed on the host, too.
func (c *comparer) moved(path string, base *origin, box, host *state) error {
	merged, why, err := c.merge(path, base, box, host)
	if err != nil {
		return err
	}
	if why != "" {
		d := c.add(path, &base.state, box, nil)
		d.Change.Moved = true
		d.host, d.host.data, d.clash = *host, nil, true
		d.finding("host", caisson.VerdictClash, why)
		return nil
	}
	if merged.equal(host) {
		return nil // the host has all that the sandbox has changed
	}
	d := c.add(path, &base.state, merged, host)
	d.Change.Kind, d.Change.Moved, d.Change.Merge = kindOf(&base.state, box), true, true
	if merged.typ == typeFile {
		c.merged = append(c.merged, Entry{Path: path, Type: typeFile, Mode: merged.mode, Size: merged.size, Content: merged.content, Hash: merged.hash()})
	}
	return nil
}

// merge puts the two changes together, or says why that cannot be done.
func (c *comparer) merge(path string, base *origin, box, host *state) (merged *state, why string, err error) {
	switch {
	case base.none():
		return nil, "The host has something else here now, which the sandbox never saw.", nil
	case host.none():
		return nil, "The host has removed this.", nil
	case box.none():
		return nil, "The host has changed this since; the sandbox has removed it.", nil
	case host.typ != base.typ || box.typ != base.typ:
		return nil, "The host has changed this since, and one of the two is not the kind of file that it was.", nil
	case box.typ == typeSymlink:
		return nil, "The link leads elsewhere on the host now.", nil
	}
	m := *box
	switch {
	case box.mode == base.mode:
		m.mode = host.mode & (permissions | box.mode)
	case host.mode == base.mode || host.mode == box.mode:
	default:
		return nil, "The host has changed the permissions in another way.", nil
	}
	if box.typ != typeFile {
		return &m, "", nil
	}
	switch {
	case base.content == "":
		return nil, "The host has changed this since, and what it was like before is not known.", nil
	case box.content == base.content:
		if host.data == nil {
			return nil, "The host has changed this since, and it is too large to be merged.", nil
		}
		m.content, m.size = host.content, host.size
		_, err := c.objects.put(host.data)
		return &m, "", err
	case host.content == base.content || host.content == box.content:
		return &m, "", nil
	}
	return c.mergeText(path, base, box, host, &m)
}

func (c *comparer) mergeText(path string, base *origin, box, host, m *state) (merged *state, why string, err error) {
	const other = "The host has changed this since, and the two changes cannot be merged."
	if base.text == nil || host.data == nil || box.size > smallFile {
		return nil, other, nil
	}
	before := c.start.base.text(base.text)
	if before == nil {
		return nil, other, nil
	}
	ours, err := c.boxText(box)
	if err != nil {
		return nil, "", err
	}
	text, clean := Merge3(before, ours, host.data)
	if !clean || len(text) > 2*smallFile {
		return nil, other, nil
	}
	m.size = int64(len(text))
	m.content, err = c.objects.put(text)
	return m, "", err
}

// boxText returns the content of a small file of the frozen copy, or of what was merged just now.
func (c *comparer) boxText(s *state) ([]byte, error) {
	r, err := c.frozen.open(s.content)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, 2*smallFile+1))
}

// spread blocks what cannot be changed because something above or below it cannot.
func (c *comparer) spread() {
	// A directory goes only with all that is in it.
	stays := map[string]bool{}
	for _, d := range slices.Backward(c.found) {
		if d.base.typ == typeDir && d.box.typ != typeDir && stays[d.path] && !d.stuck() {
			d.finding("host", caisson.VerdictClash, "Something in this directory cannot be removed.")
		}
		if d.stuck() && !d.base.none() {
			for dir := parentOf(d.path); dir != "" && !stays[dir]; dir = parentOf(dir) {
				stays[dir] = true
			}
		}
	}
	// What is in a directory needs it.
	for _, d := range c.found {
		for dir := parentOf(d.path); dir != "" && !d.box.none() && !d.stuck(); dir = parentOf(dir) {
			if o := c.blocked[dir]; o != nil {
				d.finding("host", o.verdict, o.message)
			}
		}
		if d.stuck() && d.box.typ == typeDir && d.base.typ != typeDir {
			c.blocked[d.path] = &obstacle{d.Change.Verdict, "The directory that this is in cannot be made."}
		}
	}
}

// vanished adds what was applied, and is neither in the sandbox's layer nor in the copy beneath it: there, removing it leaves no
// trace.
func (c *comparer) vanished() error {
	if c.frozen.Cut() {
		return nil // it may be among what was left out
	}
	seen := map[string]bool{}
	for _, d := range c.found {
		seen[d.path] = true
	}
	for _, path := range c.start.base.rebased {
		e := c.start.base.entries[path]
		if e.typ == typeNone || seen[path] {
			continue
		}
		if _, there := c.frozen.Lookup(path); there || c.kept(path, "") {
			continue
		}
		if _, found, known, err := c.start.m.Lookup(path); err != nil || found || !known {
			if err != nil {
				return err
			}
			continue
		}
		if len(c.found) >= maxDifferences {
			c.cut = true
			break
		}
		if err := c.judge(path, &origin{state: e.state(), text: e}, &nothing); err != nil {
			return err
		}
	}
	slices.SortStableFunc(c.found, func(a, b *difference) int { return comparePaths(a.path, b.path) })
	return nil
}
