// Package fetch updates mirrors from their remotes.
package fetch

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/remote"
)

// A Request has the parameters of a fetch.
type Request struct {
	Transport remote.Protocol // protocol between the transport and the remote
	Limits    Limits
	// Progress is called with one line of git's progress output, at most twice a second; nil for no progress.
	Progress func(string)
}

// Limits bound a fetch; zero fields mean the default.
type Limits struct {
	Bytes caisson.Size  // bytes that the remote may send; default 8 GiB
	Refs  int           // branches and tags of the remote; default and maximum 50,000
	Time  time.Duration // time limit; default 1 hour
}

// withDefaults returns l with defaults for fields that are zero or out of range.
func (l Limits) withDefaults() Limits {
	l.Bytes = cmp.Or(max(l.Bytes, 0), 8<<30)
	if l.Refs <= 0 || l.Refs > git.MaxRefs {
		l.Refs = git.MaxRefs
	}
	l.Time = cmp.Or(max(l.Time, 0), time.Hour)
	return l
}

// toleratedFaults are the names that git fsck has for faults of objects that occur in old, legitimate repositories and are
// harmless to readers.
var toleratedFaults = []string{
	"badTimezone", "zeroPaddedDate", "zeroPaddedFilemode", "missingSpaceBeforeDate", "missingSpaceBeforeEmail", "missingNameBeforeEmail",
	"missingEmail", "badEmail", "badName", "multipleAuthors", "gitmodulesParse", "nulInCommit",
}

// A mirror is a repository that has the branches and tags of a remote.
type mirror struct{ git.Repo }

// fetch updates r with the branches, tags and HEAD of the remote to which f forwards. All objects are fetched and checked before
// any ref changes, so a failed fetch has no visible effect.
func (r mirror) fetch(ctx context.Context, f *remote.Forwarder, limits Limits, progress func(string)) (*git.Remote, error) {
	if err := r.Sweep(ctx); err != nil {
		return nil, err
	}
	l, err := f.List(ctx, limits.Refs)
	if err != nil {
		return nil, err
	}
	if err := r.matchFormat(ctx, l); err != nil {
		return nil, err
	}
	have, err := r.Refs(ctx)
	if err != nil {
		return nil, err
	}
	changed, gone := refChanges(have.Refs, l.Refs)
	if len(changed) > 0 {
		if err := r.fetchNew(ctx, f, changed, int64(limits.Bytes), progress); err != nil {
			return nil, err
		}
	}
	if err := r.updateRefs(ctx, changed, gone); err != nil {
		return nil, err
	}
	if err := r.SetHead(cmp.Or(l.Head, "refs/heads/main")); err != nil {
		return nil, err
	}
	r.optimize(ctx, len(changed))
	return &git.Remote{Head: l.Head, Refs: l.Refs}, nil
}

// matchFormat sets the object format of r to that of the remote if r is empty. It returns a Conflict error if r has refs and a
// different format.
func (r mirror) matchFormat(ctx context.Context, l *remote.Listing) error {
	digits, err := r.Digits()
	if err != nil || len(l.Refs) == 0 || digits == l.Digits {
		return err
	}
	have, err := r.Refs(ctx)
	if err != nil {
		return err
	}
	if len(have.Refs) > 0 {
		return caisson.Errorf(caisson.Conflict, "the remote has changed the format of its objects; remove the repository and add it again")
	}
	return r.WriteConfig(l.Digits)
}

// refChanges returns the refs that are new or have moved, and those that no longer exist.
func refChanges(have, want []git.Ref) (changed, gone []git.Ref) {
	at := make(map[string]string, len(have))
	for _, r := range have {
		at[r.Name] = r.Commit
	}
	for _, r := range want {
		if at[r.Name] != r.Commit {
			changed = append(changed, r)
		}
		delete(at, r.Name)
	}
	for _, r := range have {
		if _, ok := at[r.Name]; ok {
			gone = append(gone, r)
		}
	}
	return changed, gone
}

// fetchNew fetches the objects that refs reach, without creating refs. Git checks that all these objects exist. Until it has done
// so, they are in a separate directory, because git fetch would otherwise keep the objects of every failed attempt.
func (r mirror) fetchNew(ctx context.Context, f *remote.Forwarder, refs []git.Ref, limit int64, progress func(string)) error {
	objects := filepath.Join(r.Dir, "objects")
	aside := filepath.Join(objects, "incoming-fetch")
	if err := os.MkdirAll(filepath.Join(aside, "pack"), 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	in := mirror{r.With("GIT_OBJECT_DIRECTORY="+aside, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+objects)}
	if err := in.fetchObjects(ctx, f, refs, limit, progress); err != nil {
		return err
	}
	return git.MoveObjects(filepath.Join(aside, "pack"), filepath.Join(objects, "pack"))
}

// fetchObjects runs git fetch for the objects that refs reach. The remote may send at most limit bytes.
func (r mirror) fetchObjects(ctx context.Context, f *remote.Forwarder, refs []git.Ref, limit int64, progress func(string)) error {
	f.Allow(limit)
	args := []string{}
	for _, id := range toleratedFaults {
		args = append(args, "-c", "fetch.fsck."+id+"=ignore")
	}
	args = append(args, "-c", "protocol.version=2", "fetch", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
		"--no-auto-maintenance", "--no-show-forced-updates", "--progress", "--stdin", "--end-of-options", f.URL())
	var want strings.Builder
	seen := map[string]bool{}
	for _, ref := range refs {
		if !seen[ref.Commit] {
			fmt.Fprintf(&want, "%s\n", ref.Commit)
		}
		seen[ref.Commit] = true
	}
	cmd := r.With(f.Protocol()).Git(ctx, args...)
	cmd.Stdin = strings.NewReader(want.String())
	said := &excerpt.Tail{Limit: git.MaxGitErrors}
	cmd.Stderr = &progressWriter{output: said, to: progress}
	if err := cmd.Run(); err != nil {
		return f.Explain(fetchError(said, err))
	}
	return nil
}

// fetchError explains a failure of git that the transport did not cause.
func fetchError(said *excerpt.Tail, err error) error {
	text := said.String()
	switch {
	case strings.Contains(text, "not our ref") || strings.Contains(text, "unadvertised object"):
		return caisson.Errorf(caisson.Unavailable, "the remote was changed while it was read; try again")
	case strings.Contains(text, "early EOF") || strings.Contains(text, "hung up unexpectedly") || strings.Contains(text, "unexpected disconnect"):
		return caisson.Errorf(caisson.Unavailable, "the remote ended the connection too early; try again")
	case strings.Contains(text, "fsck error") || strings.Contains(text, "did not send all necessary objects") || strings.Contains(text, "index-pack failed") || strings.Contains(text, "invalid index-pack output"):
		return caisson.Errorf(caisson.Denied, "what the remote sends is damaged or dangerous: %s", git.ErrorLines(text, 300))
	}
	if err = git.GitError("fetch", said, err); caisson.KindOf(err) == caisson.Internal {
		err = caisson.Wrap(err, caisson.Denied, "git cannot read what the remote sends: %s", git.ErrorLines(text, 300))
	}
	return err
}

// updateRefs updates r's refs. It deletes the refs that no longer exist first, because the name of a deleted ref may become the
// directory of a new one.
func (r mirror) updateRefs(ctx context.Context, changed, gone []git.Ref) error {
	for _, change := range []struct {
		refs []git.Ref
		verb string
	}{{gone, "delete"}, {changed, "update"}} {
		if len(change.refs) == 0 {
			continue
		}
		var b strings.Builder
		b.WriteString("start\n")
		for _, ref := range change.refs {
			if change.verb == "delete" {
				fmt.Fprintf(&b, "delete %s\n", ref.Name)
			} else {
				fmt.Fprintf(&b, "update %s %s\n", ref.Name, ref.Commit)
			}
		}
		b.WriteString("prepare\ncommit\n")
		if _, err := r.Output(ctx, b.String(), "update-ref", "--stdin"); err != nil {
			return err
		}
	}
	return nil
}

const (
	packRefsThreshold = 50 // number of changed refs from which all refs are packed into one file
	repackThreshold   = 8  // number of packs from which they are repacked; each pack slows down lookups
)

// optimize packs refs and objects to keep r fast. Its failures are ignored because nothing depends on it.
func (r mirror) optimize(ctx context.Context, changed int) {
	if changed > packRefsThreshold {
		_, _ = r.Output(ctx, "", "pack-refs", "--all", "--prune")
	}
	packs, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.pack"))
	if err == nil && len(packs) > repackThreshold {
		_, _ = r.Output(ctx, "", "repack", "--geometric=2", "-d", "-q")
	}
	if changed > 0 {
		_, _ = r.Output(ctx, "", "commit-graph", "write", "--reachable", "--no-progress")
	}
}

// A progressWriter passes the last line of git's progress output to a function, at most twice a second, and stores the end of the
// whole output.
type progressWriter struct {
	output *excerpt.Tail // the end of the whole output
	to     func(string)  // called with a line of progress; nil for no progress
	line   []byte        // output since the last end of a line
	last   time.Time     // time of the last call of to
}

func (p *progressWriter) Write(b []byte) (int, error) {
	p.output.Write(b)
	if p.to == nil {
		return len(b), nil
	}
	p.line = append(p.line, b...)
	if end := bytes.LastIndexAny(p.line, "\r\n"); end >= 0 {
		whole := bytes.TrimRight(p.line[:end], "\r\n")
		line := git.OneLine(string(whole[bytes.LastIndexAny(whole, "\r\n")+1:]), 200)
		p.line = append(p.line[:0], p.line[end+1:]...)
		if now := time.Now(); line != "" && now.Sub(p.last) >= 500*time.Millisecond {
			p.last = now
			p.to(line)
		}
	}
	if len(p.line) > 4<<10 { // this is not progress output, whose lines are shorter
		p.line = p.line[:0]
	}
	return len(b), nil
}
