package commit

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// Limits for checking all symlinks of a commit.
const (
	maxLinkTreeEntries = 2_000_000 // tree entries
	MaxLinks           = 20_000    // symlinks in the tree of a commit
)

// A linkEntry is a symlink of a commit: its path, and the id of the git object that contains its target.
type linkEntry struct{ path, id string }

// CheckLinks checks all symlinks of the last commit of a push, including unchanged ones: several commits together, or a merge,
// may change the directories around a symlink so that it leads out of the repository. A symlink that already leads out of the
// repository in a granted commit is not reported.
func (c *Checker) CheckLinks(ctx context.Context, tip string, granted []git.Ref) ([]caisson.Finding, error) {
	commit := c.Commits[tip]
	if commit == nil {
		return nil, nil // the commit is not new, or is malformed
	}
	all, err := c.listLinks(ctx, commit.tree)
	if errors.Is(err, errTooLarge) {
		return []caisson.Finding{{Check: checkLink, Verdict: caisson.VerdictAsk, Message: plainf("%s: there are too many files or symlinks to look where all of them lead", ShortID(tip))}}, nil
	}
	if err != nil {
		return nil, err
	}
	found := NewFindings(MaxFindings)
	for _, l := range all {
		why, link, err := c.linkFault(commit.tree, l)
		if err != nil {
			return nil, err
		}
		if why == "" {
			continue
		}
		old, err := c.grantedHasSameFault(l, granted)
		if err != nil {
			return nil, err
		}
		if !old {
			found.Add(caisson.Finding{Check: checkLink, Verdict: caisson.VerdictDeny, Message: fmt.Sprintf("%s: %s: with all that is pushed the symlink to %s %s", ShortID(tip), ShownPath(l.path), ShownPath(link), why)})
		}
	}
	return found.List, nil
}

// listLinks returns all symlinks of a tree. It returns errTooLarge if the tree has too many entries or symlinks, or is too deep.
func (c *Checker) listLinks(ctx context.Context, tree string) ([]linkEntry, error) {
	var all []linkEntry
	seen := 0
	var walk func(dir, id string) error
	walk = func(dir, id string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		t, err := c.objects.tree(id)
		if err != nil {
			return err
		}
		if seen += len(t.entries) + 1; seen > maxLinkTreeEntries || strings.Count(dir, "/") > maxDepth {
			return errTooLarge
		}
		for _, e := range t.entries {
			switch {
			case e.mode == modeSymlink:
				all = append(all, linkEntry{path.Join(dir, e.name), e.id})
			case e.isTree():
				if err := walk(path.Join(dir, e.name), e.id); err != nil {
					return err
				}
			}
		}
		if len(all) > MaxLinks {
			return errTooLarge
		}
		return nil
	}
	err := walk("", tree)
	return all, err
}

// linkFault returns why a symlink must not be in a tree, or "", and the target of the symlink.
func (c *Checker) linkFault(tree string, l linkEntry) (why, link string, err error) {
	data, err := c.objects.Read(l.id, "blob", maxLink)
	if errors.Is(err, errTooLarge) {
		return "has no valid target", "", nil
	}
	if err != nil {
		return "", "", err
	}
	why, err = check.LinkFault(commitTree{objects: c.objects, root: tree}, l.path, string(data))
	return why, string(data), err
}

// grantedHasSameFault reports whether a granted commit has the same symlink and it leads out of the repository there, too.
func (c *Checker) grantedHasSameFault(l linkEntry, granted []git.Ref) (bool, error) {
	for _, r := range granted {
		trees, err := c.parentTrees(&RawCommit{Parents: []string{r.Commit}})
		if caisson.KindOf(err) == caisson.Invalid || errors.Is(err, errTooLarge) {
			continue // the ref is an annotated tag
		}
		if err != nil {
			return false, err
		}
		e, err := c.objects.find(trees[0], l.path)
		if err != nil {
			return false, err
		}
		if e.mode != modeSymlink || e.id != l.id {
			continue
		}
		if why, _, err := c.linkFault(trees[0], l); err != nil || why != "" {
			return err == nil, err
		}
	}
	return false, nil
}
