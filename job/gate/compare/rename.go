package compare

import (
	"cmp"
	"hash/maphash"
	"path"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// Limits of the search for renames, and of patches.
const (
	maxRenameFiles = 500      // maximum number of removed files, and of added files, that are compared by similarity
	maxRenameBytes = 32 << 20 // maximum size in bytes of all files that are compared by similarity
	maxRenameLines = 20_000   // maximum number of lines of a file that is compared by similarity
	maxRenameWork  = 50 << 20 // maximum number of lines that are compared in all pairs of files
	maxPatches     = 8 << 20  // maximum size in bytes of all patches
	maxDiffBytes   = 64 << 20 // maximum size in bytes of all files whose changed lines are counted
)

// finish completes the differences after all paths were compared: it blocks the changes that depend on blocked ones, joins
// removals and additions of files into renames, counts changed lines and makes patches.
func (c *comparer) finish(opts Options) error {
	c.propagateBlocked()
	removed, added := c.candidates()
	removed, added = c.pairEqual(removed, added)
	if err := c.pairSimilar(removed, added); err != nil {
		return err
	}
	c.found = slices.DeleteFunc(c.found, func(d *difference) bool { return d.Change.Kind == "" })
	return c.countLines(opts)
}

// candidates returns the differences that may be parts of a rename: removals and additions of files that can be applied.
func (c *comparer) candidates() (removed, added []*difference) {
	for _, d := range c.found {
		switch {
		case d.isBlocked() || d.Change.HostChanged:
		case d.Change.Kind == caisson.ChangeRemoved && d.base.Type == fsat.TypeFile && d.base.Size > 0:
			removed = append(removed, d)
		case d.Change.Kind == caisson.ChangeAdded && d.sandbox.Type == fsat.TypeFile && d.sandbox.Size > 0:
			added = append(added, d)
		}
	}
	return removed, added
}

// rename joins the removal from and the addition to: to becomes the rename, and the kind of from is cleared, so that from is
// dropped later.
func rename(from, to *difference) {
	to.oldPath, to.base, to.host = from.path, from.base, from.host
	ch := &to.Change
	ch.Kind, ch.OldPath, ch.OldType, ch.OldMode, ch.OldSize = caisson.ChangeRenamed, from.Change.Path, from.base.Type, from.base.Mode, from.base.Size
	to.Steps = append(slices.Clone(from.Steps), to.Steps...)
	from.Change.Kind = ""
}

// pairEqual joins removed and added files with the same content into renames, first those with the same base name. It returns
// the files that remain.
func (c *comparer) pairEqual(removed, added []*difference) (r, a []*difference) {
	byContent := map[string][]*difference{}
	for _, d := range removed {
		byContent[d.base.Content] = append(byContent[d.base.Content], d)
	}
	for _, named := range []bool{true, false} {
		for _, to := range added {
			if to.Change.Kind != caisson.ChangeAdded {
				continue
			}
			list := byContent[to.sandbox.Content]
			i := 0
			if named {
				i = slices.IndexFunc(list, func(d *difference) bool { return path.Base(d.path) == path.Base(to.path) })
			}
			if i >= 0 && i < len(list) {
				rename(list[i], to)
				byContent[to.sandbox.Content] = slices.Delete(list, i, i+1)
			}
		}
	}
	gone := func(d *difference) bool { return d.Change.Kind == "" || d.Change.Kind == caisson.ChangeRenamed }
	return slices.DeleteFunc(removed, gone), slices.DeleteFunc(added, gone)
}

// line stands for all lines of a text that have the same hash.
type line struct {
	hash  uint64 // hash of the lines
	bytes int    // total size of the lines
}

// A text is a removed or added file whose lines are compared with those of other files.
type text struct {
	*difference
	lines []line // the lines, sorted by hash
	size  int    // size of the file in bytes
}

// pairSimilar joins removed and added text files that have at least half of their content in common into renames, the most
// similar files first.
func (c *comparer) pairSimilar(removed, added []*difference) error {
	left := maxRenameBytes
	seed := maphash.MakeSeed()
	from, err := c.texts(removed, &left, func(d *difference) ([]byte, error) { return c.hostText(d.path, &d.host) }, seed)
	if err != nil || len(from) == 0 {
		return err
	}
	to, err := c.texts(added, &left, func(d *difference) ([]byte, error) { return c.sandboxText(&d.sandbox) }, seed)
	if err != nil {
		return err
	}
	return c.pair(from, to)
}

// pair joins similar files of from, which were removed, and of to, which were added, into renames.
func (c *comparer) pair(from, to []text) error {
	type pair struct {
		from, to *difference
		score    float64
		named    bool // both files have the same base name
	}
	var pairs []pair
	work := 0
	for _, f := range from {
		for _, t := range to {
			largest := max(f.size, t.size)
			if 2*min(f.size, t.size) < largest || work > maxRenameWork {
				continue
			}
			work += len(f.lines) + len(t.lines)
			if common := commonBytes(f.lines, t.lines); 2*common >= largest {
				pairs = append(pairs, pair{f.difference, t.difference, float64(common) / float64(largest), path.Base(f.path) == path.Base(t.path)})
			}
		}
		if err := c.ctx.Err(); err != nil {
			return err
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int {
		if a.named != b.named && a.score == b.score {
			if a.named {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.score, a.score)
	})
	for _, p := range pairs {
		if p.from.Change.Kind == caisson.ChangeRemoved && p.to.Change.Kind == caisson.ChangeAdded {
			rename(p.from, p.to)
		}
	}
	return nil
}

// texts returns the text files of list, whose contents read returns, without those that exceed a limit. left is the number of
// bytes that may still be read, from which texts subtracts the sizes of the files.
func (c *comparer) texts(list []*difference, left *int, read func(*difference) ([]byte, error), seed maphash.Seed) ([]text, error) {
	var texts []text
	for _, d := range list {
		size := int(max(d.base.Size, d.sandbox.Size))
		if size > fsat.MaxSmallFile || size > *left || len(texts) == maxRenameFiles {
			continue
		}
		*left -= size
		data, err := read(d)
		if err != nil {
			return nil, err
		}
		if data == nil || !fsat.IsText(data) {
			continue
		}
		if lines := hashLines(data, seed); len(lines) <= maxRenameLines {
			texts = append(texts, text{difference: d, lines: lines, size: len(data)})
		}
	}
	return texts, nil
}

// hostText returns the content of the host's file at path, or nil if it is not in the state s any more.
func (c *comparer) hostText(path string, s *baseline.State) ([]byte, error) {
	if s.Type != fsat.TypeFile {
		return nil, nil
	}
	if s.Data != nil {
		return s.Data, nil
	}
	data, err := fsat.ReadContent(c.ctx, c.host.Root, path, &s.Stat, fsat.MaxSmallFile)
	if err != nil {
		return nil, c.host.SetUnreadable(path, &baseline.State{}, err)
	}
	return data, nil
}

// hashLines returns the lines of a text by their hash, sorted by hash.
func hashLines(data []byte, seed maphash.Seed) []line {
	var all []line
	for _, s := range splitLines(data) {
		all = append(all, line{maphash.String(seed, s), len(s)})
	}
	slices.SortFunc(all, func(a, b line) int { return cmp.Compare(a.hash, b.hash) })
	var out []line
	for _, l := range all {
		if n := len(out); n > 0 && out[n-1].hash == l.hash {
			out[n-1].bytes += l.bytes
		} else {
			out = append(out, l)
		}
	}
	return out
}

// commonBytes returns the total size of the lines that two texts have in common.
func commonBytes(a, b []line) int {
	n := 0
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].hash < b[0].hash:
			a = a[1:]
		case a[0].hash > b[0].hash:
			b = b[1:]
		default:
			n += min(a[0].bytes, b[0].bytes)
			a, b = a[1:], b[1:]
		}
	}
	return n
}

// countLines counts the changed lines of text files and makes patches. It does neither for changes that exceed the limits.
func (c *comparer) countLines(opts Options) error {
	left, patches := maxDiffBytes, maxPatches
	for _, d := range c.found {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		size := int(d.host.Size + d.sandbox.Size)
		wanted := (d.Steps != nil || d.conflicting) && (d.host.Type == fsat.TypeFile || d.host.Type == fsat.TypeNone || d.host.Type == "") &&
			(d.sandbox.Type == fsat.TypeFile || d.sandbox.None()) && d.Change.Kind != caisson.ChangeMode
		if !wanted || d.host.Size > fsat.MaxSmallFile || d.sandbox.Size > 2*fsat.MaxSmallFile || size > left {
			continue
		}
		left -= size
		oldPath := d.oldPath
		if oldPath == "" {
			oldPath = d.path
		}
		old, err := c.hostText(oldPath, &d.host)
		if err != nil {
			return err
		}
		var now []byte
		if d.sandbox.Type == fsat.TypeFile {
			if now, err = c.sandboxText(&d.sandbox); err != nil {
				return err
			}
		}
		if old == nil && d.host.Type == fsat.TypeFile {
			continue // the host's file has changed since the comparison; applying the change would detect that
		}
		ch := &d.Change
		var patch string
		patch, _, ch.Added, ch.Removed, ch.Binary = Unified(old, now, oldName(d, oldPath), newName(d))
		if opts.Patch && len(patch) <= patches {
			patches -= len(patch)
			ch.Patch = patch
		}
	}
	return nil
}

// oldName returns the name of the old file for the header of a patch.
func oldName(d *difference, path string) string {
	if d.host.Type != fsat.TypeFile {
		return "/dev/null"
	}
	return "a/" + path
}

// newName returns the name of the new file for the header of a patch.
func newName(d *difference) string {
	if d.sandbox.None() {
		return "/dev/null"
	}
	return "b/" + d.path
}
