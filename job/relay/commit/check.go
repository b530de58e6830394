package commit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// The names of the checks of commits, used in [caisson.Finding].Check. Findings about files also have those of package check.
const (
	CheckName   = "name"   // check of commits' messages and authors for unsafe characters, and of the refs that a push may move
	CheckType   = "type"   // check of the form of commits and pushes, of submodules, and of the template of a pull request
	checkSize   = "size"   // check of the size of a commit, and of the number of its changes
	checkSecret = "secret" // check of possible secrets in a commit's message
	checkPath   = "path"   // check of paths and other settings of submodules in .gitmodules
	checkLink   = "link"   // check of the targets of all symlinks of the last commit
)

// Limits of the findings of a push.
const (
	MaxFindings       = 100  // findings in one list
	MaxFindingMessage = 1200 // bytes of the message of one finding
	maxShownPath      = 300  // bytes of a path in a message
)

// A Checker checks commits. It checks each commit once.
type Checker struct {
	objects *Objects                     // reads the commits
	rules   check.Rules                  // rules for the changes of commits
	Commits map[string]*RawCommit        // well-formed commits that were checked, by id
	found   map[string][]caisson.Finding // findings of the commits that were checked, by id
}

// NewChecker returns a Checker that reads commits from o and checks them by rules.
func NewChecker(o *Objects, rules check.Rules) *Checker {
	rules = rules.WithDefaults()
	rules.History = true
	return &Checker{objects: o, rules: rules, Commits: map[string]*RawCommit{}, found: map[string][]caisson.Finding{}}
}

// Check returns the findings about a commit. It fails closed: if something cannot be checked, it returns an error or a finding
// with verdict deny.
func (c *Checker) Check(ctx context.Context, id string) ([]caisson.Finding, error) {
	if f, done := c.found[id]; done {
		return f, nil
	}
	all := NewFindings(MaxFindings)
	if err := c.checkInto(ctx, id, all); err != nil {
		return nil, err
	}
	c.found[id] = all.List
	return all.List, nil
}

// checkInto checks a commit and adds the findings to all.
func (c *Checker) checkInto(ctx context.Context, id string, all *Findings) error {
	said := func(check, verdict, format string, args ...any) {
		all.Add(caisson.Finding{Check: check, Verdict: verdict, Message: ShortID(id) + ": " + fmt.Sprintf(format, args...)})
	}
	data, err := c.objects.Read(id, "commit", MaxCommitObject)
	if errors.Is(err, errTooLarge) {
		said(checkSize, caisson.VerdictDeny, "the commit has more than %v of headers and message", caisson.Size(MaxCommitObject))
		return nil
	}
	if err != nil {
		return err
	}
	commit, err := ParseCommit(data)
	if err != nil {
		said(CheckType, caisson.VerdictDeny, "%s", caisson.MessageOf(err))
		return nil
	}
	if !bytes.Equal(commit.Bytes(), data) {
		said(CheckType, caisson.VerdictDeny, "%s", caisson.MessageOf(malformedCommit("it is not what git would write")))
		return nil
	}
	c.Commits[id] = commit
	if why := TextFault(string(data)); why != "" {
		said(CheckName, caisson.VerdictDeny, "the commit's message or author %s; commit again with plain text", why)
	}
	secrets, err := check.Text(ctx, string(data), c.rules)
	if err != nil {
		said(checkSecret, caisson.VerdictDeny, "the message was not searched for secrets: %s", caisson.MessageOf(err))
	}
	for _, s := range secrets {
		said(checkSecret, s.Verdict, "in the commit's message: %s", s.Message)
	}
	return c.checkFiles(ctx, id, commit, all)
}

// checkFiles checks the changes of a commit.
func (c *Checker) checkFiles(ctx context.Context, id string, commit *RawCommit, all *Findings) error {
	parents, err := c.parentTrees(commit)
	if err != nil {
		return err
	}
	bases, err := c.mergeBaseTrees(ctx, commit)
	if err != nil {
		return err
	}
	d := &treeDiff{objects: c.objects, limit: c.rules.MaxFiles, submodules: map[string]bool{}}
	err = d.walk("", commit.tree, parents, bases)
	if errors.Is(err, errTooLarge) {
		all.Add(DeniedFinding(checkSize, fmt.Sprintf("%s: the commit changes more than %d files, or directories too large or too deep; raise maxFiles if that is wanted", ShortID(id), c.rules.MaxFiles)))
		return nil
	}
	if err != nil {
		return err
	}
	blobs := newBlobQueue(c.objects, int64(c.rules.MaxScan))
	if err := c.fillChanges(ctx, d, blobs); err != nil {
		return err
	}
	read := func(id string) (io.ReadCloser, error) {
		data, err := blobs.read(id)
		return io.NopCloser(bytes.NewReader(data)), err
	}
	base := commitTree{objects: c.objects, root: commit.tree, parents: parents}
	if err := check.ChangesIn(ctx, d.changes, base, read, c.rules); err != nil {
		return err
	}
	for i := range d.changes {
		ch := &d.changes[i]
		if err := c.checkSubmodule(ctx, d, ch); err != nil {
			return err
		}
		for _, f := range ch.Finding {
			f.Message = plainf("%s: %s: %s", ShortID(id), ShownPath(ch.Path), f.Message)
			all.Add(f)
		}
		if ch.Verdict != caisson.VerdictPass && !slices.ContainsFunc(ch.Finding, func(f caisson.Finding) bool { return f.Verdict == ch.Verdict }) {
			all.Add(DeniedFinding(CheckType, plainf("%s: %s: it was not checked", ShortID(id), ShownPath(ch.Path))))
		}
	}
	return nil
}

// parentTrees returns the trees of a commit's parents, or only the empty tree "" if it has no parents.
func (c *Checker) parentTrees(commit *RawCommit) ([]string, error) {
	if len(commit.Parents) == 0 {
		return []string{""}, nil
	}
	var trees []string
	for _, p := range commit.Parents {
		// A parent may be a granted commit, which git accepted but which may break the rules for new commits.
		data, err := c.objects.Read(p, "commit", 16*MaxCommitObject)
		if err != nil {
			return nil, err
		}
		line, _, _ := bytes.Cut(data, []byte{'\n'})
		tree, ok := bytes.CutPrefix(line, []byte("tree "))
		if !ok || !git.ValidCommit(string(tree)) {
			return nil, caisson.Errorf(caisson.Internal, "the commit %s has no tree", p)
		}
		trees = append(trees, string(tree))
	}
	return trees, nil
}

// mergeBaseTrees returns the trees of the merge bases of each pair of a merge's parents. If two parents have no merge base, the
// list contains the empty tree for them. The list is empty if the commit is not a merge.
func (c *Checker) mergeBaseTrees(ctx context.Context, commit *RawCommit) ([]string, error) {
	var trees []string
	for i, a := range commit.Parents {
		for _, b := range commit.Parents[i+1:] {
			ids, err := c.objects.mergeBases(ctx, a, b)
			if err != nil {
				return nil, err
			}
			some, err := c.parentTrees(&RawCommit{Parents: ids})
			if err != nil {
				return nil, err
			}
			trees = append(trees, some...)
		}
	}
	slices.Sort(trees)
	return slices.Compact(trees), nil
}

// fillChanges sets the sizes of files and the targets of symlinks in the changes, and adds the files to blobs.
func (c *Checker) fillChanges(ctx context.Context, d *treeDiff, blobs *blobQueue) error {
	var ids []string
	var files []int
	for i := range d.changes {
		ch := &d.changes[i]
		switch {
		case ch.Kind == caisson.ChangeRemoved:
		case ch.Type == typeFile:
			ids, files = append(ids, ch.Hash), append(files, i)
		case ch.Type == typeSymlink:
			// If the target is too long, Link remains empty, which is denied.
			link, err := c.objects.Read(ch.Hash, "blob", maxLink)
			if err != nil && !errors.Is(err, errTooLarge) {
				return err
			}
			ch.Link = string(link)
		}
	}
	sizes, err := c.objects.sizes(ctx, ids)
	if err != nil {
		return err
	}
	for n, i := range files {
		d.changes[i].Size = sizes[n]
		blobs.expect(ids[n], sizes[n])
	}
	return nil
}

// checkSubmodule adds findings to ch if it changes a submodule or the file .gitmodules. Package check has no rules for these.
func (c *Checker) checkSubmodule(ctx context.Context, d *treeDiff, ch *caisson.Change) error {
	if d.submodules[ch.Path] {
		ch.Finding = append(ch.Finding, caisson.Finding{Check: CheckType, Verdict: caisson.VerdictAsk, Message: "a submodule: a clone with submodules also fetches another repository"})
	}
	if ch.Path != modulesFile || ch.Kind == caisson.ChangeRemoved {
		return nil
	}
	if ch.Type != typeFile {
		ch.Finding = append(ch.Finding, DeniedFinding(CheckType, "the file of submodules must be a file"))
		return nil
	}
	faults, err := c.objects.checkModules(ctx, ch.Hash)
	for _, why := range faults[:min(len(faults), 10)] {
		ch.Finding = append(ch.Finding, DeniedFinding(checkPath, why))
	}
	return err
}

// ShortID returns the first 10 digits of an object name, for messages.
func ShortID(id string) string { return id[:min(len(id), 10)] }

// ShownPath returns a path for messages. Paths with special characters are quoted.
func ShownPath(name string) string {
	shown := safetext.Path(name)
	if shown != git.OneLine(shown, maxShownPath) {
		shown = strconv.QuoteToASCII(shown[:min(len(shown), maxShownPath)])
	}
	return shown
}

// plainf formats the message of a finding as one line of bounded length.
func plainf(format string, args ...any) string {
	return git.OneLine(fmt.Sprintf(format, args...), MaxFindingMessage)
}

// Findings is a list of findings of limited length. If it is full, the most severe findings are kept.
type Findings struct {
	List    []caisson.Finding // the findings that are kept
	max     int               // maximum length of List
	Dropped int               // number of findings that were dropped
}

// NewFindings returns a list for at most max findings.
func NewFindings(max int) *Findings { return &Findings{max: max} }

// Add adds a finding. If the list is full, a finding with verdict deny replaces one with another verdict, and others are dropped.
func (f *Findings) Add(n caisson.Finding) {
	n.Message = git.OneLine(n.Message, MaxFindingMessage)
	if len(f.List) < f.max {
		f.List = append(f.List, n)
		return
	}
	f.Dropped++
	if n.Verdict != caisson.VerdictDeny {
		return
	}
	if i := slices.IndexFunc(f.List, func(o caisson.Finding) bool { return o.Verdict != caisson.VerdictDeny }); i >= 0 {
		f.List = append(slices.Delete(f.List, i, i+1), n)
	}
}

// AddAll adds each finding of a list.
func (f *Findings) AddAll(list []caisson.Finding) {
	for _, n := range list {
		f.Add(n)
	}
}

// Denied reports whether a finding of the list has verdict deny. An unknown verdict counts as deny.
func Denied(list []caisson.Finding) bool {
	return slices.ContainsFunc(list, func(f caisson.Finding) bool {
		return f.Verdict != caisson.VerdictPass && f.Verdict != caisson.VerdictAsk
	})
}
