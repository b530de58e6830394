package apitest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// spaceChecks are the checks there are here: few, one for each verdict.
var spaceChecks = []string{"path", "secret", "host"}

// pending is a change with what it takes to apply it.
type pending struct {
	caisson.Change
	host  *node // what the host had when it was shown; nil for nothing
	after *node // what it is to have; nil for nothing
	lines []string
	hunks []hunk
}

func sorted(m map[string]*node) []string { return slices.Sorted(maps.Keys(m)) }

func same(a, b *node) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.dir == b.dir && a.mode == b.mode && bytes.Equal(a.data, b.data)
}

// hashOf names a file: its type, mode and content.
func hashOf(n *node) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%t %o %s", n.dir, n.mode, n.data)))
}

func typeOf(n *node) string {
	switch {
	case n == nil:
		return "none"
	case n.dir:
		return "dir"
	}
	return "file"
}

// changes compares what the sandbox has with the base, and with the host as it is now.
func (s *space) changes(req caisson.DiffRequest) ([]pending, error) {
	host, err := readHost(s.HostPath)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Conflict, "the directory %s is not there any more", s.Source)
	}
	now := s.now()
	all := maps.Clone(s.base)
	maps.Copy(all, now)
	renamed := map[string]string{} // new to old
	for p, n := range now {
		if s.base[p] != nil || n.dir || len(n.data) == 0 {
			continue
		}
		for old, o := range s.base {
			if now[old] == nil && !o.dir && bytes.Equal(o.data, n.data) && !slices.Contains(slices.Collect(maps.Values(renamed)), old) {
				renamed[p] = old
			}
		}
	}
	var out []pending
	for _, p := range sorted(all) {
		old := s.base[p]
		if same(old, now[p]) || same(host[p], now[p]) || slices.Contains(slices.Collect(maps.Values(renamed)), p) {
			continue
		}
		c := pending{Change: caisson.Change{Path: p, OldPath: renamed[p]}, host: host[p], after: now[p]}
		if c.OldPath != "" {
			old, c.host = s.base[c.OldPath], host[c.OldPath]
		}
		c.compare(old)
		c.check()
		if !req.Patch {
			c.Patch = ""
		}
		if chosen(req.Only, p) {
			out = append(out, c)
		}
	}
	return out, nil
}

// compare fills in what changed from old.
func (c *pending) compare(old *node) {
	now := c.after
	c.Type, c.OldType = typeOf(now), typeOf(old)
	if now != nil {
		c.Mode, c.Size = now.mode, int64(len(now.data))
	}
	if old != nil {
		c.OldMode, c.OldSize = old.mode, int64(len(old.data))
	}
	switch {
	case c.OldPath != "":
		c.Kind = caisson.ChangeRenamed
	case old == nil:
		c.Kind = caisson.ChangeAdded
	case now == nil:
		c.Kind = caisson.ChangeRemoved
	case old.dir != now.dir:
		c.Kind = caisson.ChangeType
	case bytes.Equal(old.data, now.data):
		c.Kind = caisson.ChangeMode
	default:
		c.Kind = caisson.ChangeModified
	}
	c.Moved = !same(old, c.host)
	if c.Moved {
		c.merge(old)
	}
	if c.Type == "dir" || c.OldType == "dir" {
		c.Hash = hashOf(c.after)
		return
	}
	var before, after []byte
	oldName, newName := "/dev/null", "/dev/null"
	if c.host != nil {
		before, oldName = c.host.data, "a/"+c.Path
	}
	if c.OldPath != "" {
		oldName = "a/" + c.OldPath
	}
	if c.after != nil {
		after, newName = c.after.data, "b/"+c.Path
	}
	c.Hash = hashOf(c.after)
	if c.Binary = !isText(before) || !isText(after); c.Binary {
		return
	}
	c.lines = linesOf(before)
	if c.hunks = hunksOf(editsOf(c.lines, linesOf(after))); len(c.hunks) > 0 {
		c.Patch, c.Added, c.Removed = patchOf(oldName, newName, c.lines, c.hunks)
	}
}

// merge puts the sandbox's change and the host's together, if both are of different lines.
func (c *pending) merge(old *node) {
	if old == nil || c.host == nil || c.after == nil || old.dir || c.host.dir || c.after.dir || c.OldPath != "" ||
		!isText(old.data) || !isText(c.host.data) || !isText(c.after.data) {
		return
	}
	base := linesOf(old.data)
	edits, ok := mergeEdits(editsOf(base, linesOf(c.host.data)), editsOf(base, linesOf(c.after.data)))
	if ok {
		c.Merge, c.after = true, &node{data: applyEdits(base, edits), mode: c.after.mode}
	}
}

// check fills in the verdict.
func (c *pending) check() {
	c.Verdict = caisson.VerdictPass
	find := func(check, verdict, message string, line int) {
		c.Finding = append(c.Finding, caisson.Finding{Check: check, Verdict: verdict, Message: message, Line: line})
		order := []string{caisson.VerdictPass, caisson.VerdictAsk, caisson.VerdictClash, caisson.VerdictDeny}
		if slices.Index(order, verdict) > slices.Index(order, c.Verdict) {
			c.Verdict = verdict
		}
	}
	if c.Moved && !c.Merge {
		find("host", caisson.VerdictClash, "the host's file has changed, too", 0)
	}
	for _, p := range []string{c.Path, c.OldPath} {
		switch {
		case slices.Contains(strings.Split(p, "/"), ".git"):
			find("path", caisson.VerdictDeny, ".git is never written", 0)
		case strings.Contains(p, "\x1b"):
			find("path", caisson.VerdictDeny, "the name acts on terminals", 0)
		case hiddenName(p):
			find("path", caisson.VerdictDeny, "the file is hidden from the sandbox", 0)
		}
	}
	if c.after != nil {
		for i, line := range linesOf(c.after.data) {
			if strings.Contains(line, "AKIA") {
				find("secret", caisson.VerdictAsk, "looks like an access key", i+1)
			}
		}
	}
}

// some returns what the host is to have if only some of the hunks are applied.
func (c *pending) some(chosen []int) (*node, error) {
	if len(chosen) == 0 {
		return c.after, nil
	}
	var edits []edit
	for i, n := range chosen {
		if n < 0 || n >= len(c.hunks) || i > 0 && n <= chosen[i-1] {
			return nil, caisson.Invalidf("apply.hunks", "%s has %d hunks; name them in order, from 0", c.Path, len(c.hunks))
		}
		edits = append(edits, c.hunks[n]...)
	}
	if c.after == nil {
		return nil, caisson.Invalidf("apply.hunks", "%s is removed as a whole or not at all", c.Path)
	}
	return &node{data: applyEdits(c.lines, edits), mode: c.after.mode}, nil
}
