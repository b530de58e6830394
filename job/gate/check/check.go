// Package check decides which changes may be applied or pushed. It checks their paths, names, types, sizes and contents, and
// the rules of the administrator.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// The names of the checks, which are the values of [caisson.Finding].Check.
const (
	checkPath      = "path"      // check of protected and excluded paths
	checkNames     = "name"      // check of names that are misleading or not portable
	checkType      = "type"      // check of types other than file, directory and symlink
	checkSize      = "size"      // check of sizes, and the number of changes
	checkLink      = "link"      // check of targets of symlinks, and of parent paths that are not directories
	checkMode      = "mode"      // check of mode bits
	checkCollision = "collision" // check of names that other systems treat as the same
	checkSecret    = "secret"    // check of possible secrets in contents
	checkText      = "text"      // check of characters that control text direction in contents
)

// Names returns the names of the checks that [Changes] performs, in the order in which it performs them.
func Names() []string {
	return []string{checkPath, checkNames, checkType, checkSize, checkLink, checkCollision, checkMode, checkSecret, checkText}
}

const (
	maxFindings = 20  // maximum number of findings of one change
	maxMessage  = 400 // maximum length of the message of a finding in bytes
)

// Changes decides which changes may be applied to host, the directory as it is now. It adds the findings to each change and
// sets its verdict to the strictest of the findings' verdicts and the verdict that the change had before. changes must contain
// all changes of a comparison: symlink targets and name collisions are checked against the tree that results from all of them.
// read opens the new content of a file by its Hash.
//
// It fails closed: a change that could not be checked is denied, and if Changes returns an error, all changes are denied.
// Configuration files and comments in the tree cannot switch off checks. Of the host's files, only the old versions of changed
// files are read. read is called from several goroutines.
func Changes(ctx context.Context, changes []caisson.Change, host *os.File, read func(hash string) (io.ReadCloser, error), rules Rules) error {
	return ChangesIn(ctx, changes, hostTree{host}, read, rules)
}

// ChangesIn adds findings to changes and sets their verdicts like [Changes], for changes of base, such as the tree of a commit.
func ChangesIn(ctx context.Context, changes []caisson.Change, base Tree, read func(hash string) (io.ReadCloser, error), rules Rules) error {
	c := &checker{rules: rules.WithDefaults(), changes: changes, read: read, findings: make([][]caisson.Finding, len(changes))}
	before := make([]string, len(changes))
	for i := range changes {
		before[i] = cmp.Or(changes[i].Verdict, caisson.VerdictPass)
		changes[i].Verdict = caisson.VerdictDeny // the verdict until all checks have succeeded
	}
	if err := rules.Validate(); err != nil {
		return err
	}
	c.tree = newTree(base, changes)
	if err := c.run(ctx); err != nil {
		return err
	}
	for i := range changes {
		for _, f := range c.findings[i] {
			before[i] = stricter(before[i], f.Verdict)
		}
		changes[i].Finding = append(changes[i].Finding, c.findings[i]...)
		if !slices.Contains([]string{caisson.VerdictPass, caisson.VerdictAsk, caisson.VerdictConflict}, before[i]) {
			before[i] = caisson.VerdictDeny
		}
		changes[i].Verdict = before[i]
	}
	return nil
}

// checker is the state of one call of [ChangesIn].
type checker struct {
	rules    Rules                                    // the rules for changes, with defaults
	changes  []caisson.Change                         // the changes to check
	tree     *tree                                    // the directory or commit as it would be after all changes
	read     func(hash string) (io.ReadCloser, error) // opens the new content of a file by its hash
	findings [][]caisson.Finding                      // the new findings of each change, indexed like changes
}

// add adds a finding to the change with the index i. If the change has maxFindings findings already, a stricter new finding
// replaces the last one, and any other is dropped.
func (c *checker) add(i int, check, verdict string, line int, format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	if len(msg) > maxMessage {
		msg = strings.ToValidUTF8(msg[:maxMessage], "") + "…"
	}
	f := caisson.Finding{Check: check, Verdict: verdict, Message: msg, Line: line}
	list := &c.findings[i]
	switch {
	case slices.Contains(*list, f):
	case len(*list) < maxFindings:
		*list = append(*list, f)
	default:
		last := &(*list)[maxFindings-1]
		if stricter(last.Verdict, verdict) != last.Verdict {
			*last = f
		}
	}
}

// run performs all checks.
func (c *checker) run(ctx context.Context) error {
	for i := range c.changes {
		if err := ctx.Err(); err != nil {
			return err
		}
		c.checkPaths(i)
		c.checkNode(i)
		if err := c.checkLink(i); err != nil {
			return err
		}
	}
	c.checkSizes()
	if err := c.checkCollisions(ctx); err != nil {
		return err
	}
	return c.checkContents(ctx)
}

// checkPaths checks the paths of the change i, and the names in them.
func (c *checker) checkPaths(i int) {
	ch := &c.changes[i]
	with := func(check string) func(verdict, format string, args ...any) {
		return func(verdict, format string, args ...any) { c.add(i, check, verdict, 0, format, args...) }
	}
	c.rules.checkPath(ch.Path, with(checkPath))
	if ch.OldPath != "" && ch.OldPath != ch.Path {
		c.rules.checkPath(ch.OldPath, with(checkPath))
	}
	if ch.Kind == caisson.ChangeRemoved {
		return // a removal adds no name
	}
	names := strings.Split(ch.Path, "/")
	for _, name := range names {
		checkName(name, with(checkNames))
	}
	if ch.OldType != fsat.TypeNone && ch.Kind != caisson.ChangeRenamed {
		return // the change does not add the name
	}
	if !c.rules.History {
		// New parent directories are changes of their own, except in the changes of a commit, which contain only files.
		names = names[len(names)-1:]
	}
	for _, name := range names {
		checkScripts(name, with(checkNames))
	}
}

// checkNode checks the new type and the new permissions of the change i.
func (c *checker) checkNode(i int) {
	ch := &c.changes[i]
	switch ch.Type {
	case fsat.TypeFile, fsat.TypeDir, fsat.TypeSymlink:
	case fsat.TypeNone:
		if ch.Kind != caisson.ChangeRemoved {
			c.add(i, checkType, caisson.VerdictDeny, 0, "there is nothing to apply")
		}
		return
	default:
		c.add(i, checkType, caisson.VerdictDeny, 0, "files, directories and symlinks are applied, and this is a %.20s", ch.Type)
	}
	if ch.Type == fsat.TypeSymlink {
		if j := contentRuleFor(ch.Path); j != nil && !matchAny(c.rules.Allow, ch.Path) {
			c.add(i, checkPath, caisson.VerdictAsk, 0, "%s, and the content of its target was not checked", j.reason)
		}
		return
	}
	const setuid, setgid, sticky = 0o4000, 0o2000, 0o1000
	switch {
	case ch.Mode&^fsat.ModeBits != 0:
		c.add(i, checkMode, caisson.VerdictDeny, 0, "the mode %o is none", ch.Mode)
	case ch.Mode&setuid != 0, ch.Mode&(setgid|sticky) != 0 && ch.Type != fsat.TypeDir:
		c.add(i, checkMode, caisson.VerdictDeny, 0, "setuid, setgid and sticky bits are never applied; chmod the file in the sandbox")
	case ch.Mode&(setgid|sticky)&^ch.OldMode != 0:
		c.add(i, checkMode, caisson.VerdictAsk, 0, "the directory's setgid and sticky bits are not applied")
	}
	wasFile := ch.OldType == ch.Type
	if ch.Type == fsat.TypeFile && ch.Mode&0o111 != 0 && !c.rules.History && (!wasFile || ch.OldMode&0o111 == 0) {
		c.add(i, checkMode, caisson.VerdictAsk, 0, "the file can be executed, which it could not before")
	}
	if ch.Mode&0o002 != 0 && (!wasFile || ch.OldMode&0o002 == 0) {
		c.add(i, checkMode, caisson.VerdictAsk, 0, "every user of the host may write to it")
	}
}

// checkLink checks the target of the change i if it is a symlink, and that the parent directories of its path are directories.
func (c *checker) checkLink(i int) error {
	ch := &c.changes[i]
	if ch.Kind == caisson.ChangeRemoved || !fsat.ValidPath(ch.Path) {
		return nil
	}
	if dir := c.tree.parentNotDir(ch.Path); dir != "" {
		c.add(i, checkLink, caisson.VerdictDeny, 0, "%.200q would be no directory", dir)
	}
	if ch.Type != fsat.TypeSymlink {
		return nil
	}
	if ch.Link == "" || len(ch.Link) > fsat.MaxPathLen {
		c.add(i, checkLink, caisson.VerdictDeny, 0, "the symlink has no valid target")
		return nil
	}
	checkName(strings.ReplaceAll(ch.Link, "/", ""), func(verdict, format string, args ...any) {
		if verdict == caisson.VerdictDeny {
			c.add(i, checkLink, verdict, 0, "the target of the symlink: "+format, args...)
		}
	})
	err := c.tree.follow(ch.Path, ch.Link)
	if errors.Is(err, errOutside) || errors.Is(err, errLoop) || errors.Is(err, errGitLink) {
		c.add(i, checkLink, caisson.VerdictDeny, 0, "the symlink to %.200q %v", ch.Link, err)
		return nil
	}
	if err != nil {
		c.add(i, checkLink, caisson.VerdictDeny, 0, "where the symlink to %.200q leads could not be found out", ch.Link)
	}
	return nil
}

// checkSizes denies the changes that exceed a limit of the rules. The limits for all changes together count the changes in
// their order, so that the user can apply the first changes and then review the others.
func (c *checker) checkSizes() {
	var total caisson.Size
	for i := range c.changes {
		ch := &c.changes[i]
		if i >= c.rules.MaxFiles {
			c.add(i, checkSize, caisson.VerdictDeny, 0, "there are more than %d changes; apply the first ones, then look again, or raise maxFiles", c.rules.MaxFiles)
		}
		if ch.Type != fsat.TypeFile {
			continue
		}
		size := caisson.Size(ch.Size)
		if size < 0 || size > c.rules.MaxFile {
			c.add(i, checkSize, caisson.VerdictDeny, 0, "the file is larger than %v; raise maxFile if that is wanted", c.rules.MaxFile)
			continue
		}
		if total += size; total > c.rules.MaxTotal {
			c.add(i, checkSize, caisson.VerdictDeny, 0, "all files are larger than %v together; apply the first ones, then look again, or raise maxTotal", c.rules.MaxTotal)
		}
	}
}

// checkCollisions adds findings for new names that look like another name in their directory, or are the same name on other
// systems, and calls checkRepository for each change.
func (c *checker) checkCollisions(ctx context.Context) error {
	named := func(ch *caisson.Change) bool {
		return ch.Kind != caisson.ChangeRemoved && ch.Type != fsat.TypeNone && fsat.ValidPath(ch.Path)
	}
	var dirs []string
	for i := range c.changes {
		if ch := &c.changes[i]; named(ch) {
			dirs = append(dirs, fsat.Parent(ch.Path))
		}
	}
	slices.Sort(dirs)
	groups, failed := c.tree.allCollisions(ctx, slices.Compact(dirs))
	if err := ctx.Err(); err != nil {
		return err
	}
	for i := range c.changes {
		ch := &c.changes[i]
		if !named(ch) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		dir := fsat.Parent(ch.Path)
		name := ch.Path[strings.LastIndexByte(ch.Path, '/')+1:]
		if failed[dir] != nil {
			c.add(i, checkCollision, caisson.VerdictDeny, 0, "the names beside it could not be read, or are too many")
			continue
		}
		if ch.OldType == fsat.TypeNone || ch.Kind == caisson.ChangeRenamed || ch.Kind == caisson.ChangeAdded {
			same := groups[dir]
			for _, other := range same.key[nameKey(name)] {
				if other != name {
					c.add(i, checkCollision, caisson.VerdictDeny, 0, "%+.120q and %+.120q are one name on other systems", name, other)
				}
			}
			for _, other := range same.skeleton[nameSkeleton(name)] {
				if nameKey(other) != nameKey(name) {
					c.add(i, checkNames, caisson.VerdictAsk, 0, "%+.120q looks like %+.120q, which is beside it", name, other)
				}
			}
		}
		c.checkRepository(i)
	}
	return nil
}

// checkRepository denies the change i if git would interpret a directory above the path as a repository without a work tree.
func (c *checker) checkRepository(i int) {
	parts := strings.Split(c.changes[i].Path, "/")
	for n, part := range parts {
		if !slices.Contains(repositoryNames, nameKey(part)) {
			continue
		}
		if is, err := c.tree.isRepository(strings.Join(parts[:n], "/")); err != nil || is {
			c.add(i, checkPath, caisson.VerdictDeny, 0, "git would take the directory above for a repository, and do what its configuration says")
			return
		}
	}
}

// scanDeadline returns the time at which a search for secrets that begins now is canceled.
func (c *checker) scanDeadline() time.Time { return time.Now().Add(time.Duration(c.rules.ScanTime)) }
