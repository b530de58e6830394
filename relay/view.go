package relay

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
)

// makeView makes a bare repository of exactly refs in v.dir, an empty directory, with all the objects that they reach in the
// repository at mirror and no others. Packed objects are copied as they are, and bitmaps of them are kept so that clones need not
// count again.
func makeView(ctx context.Context, v repo, mirror string, refs []Ref) error {
	if err := checkRefs(refs); err != nil {
		return err
	}
	digits, err := repo{dir: mirror}.digits()
	if err != nil {
		return err
	}
	for _, r := range refs {
		if len(r.Commit) != digits {
			return caisson.Invalidf("refs", "%s is at %s, which is no object of this repository", r.Name, r.Commit)
		}
	}
	if err := v.make(digits); err != nil {
		return err
	}
	if len(refs) == 0 {
		return nil
	}
	if err := packFrom(ctx, v, mirror, refs); err != nil {
		return err
	}
	if err := v.writeRefs(refs); err != nil {
		return err
	}
	// Nothing depends on it: it makes walks of history fast.
	_, _ = v.output(ctx, "", "commit-graph", "write", "--reachable", "--no-progress")
	return nil
}

// packFrom writes one pack of what refs reach. Git reads v's configuration, and of the mirror nothing but objects.
func packFrom(ctx context.Context, v repo, mirror string, refs []Ref) error {
	var want strings.Builder
	for _, r := range refs {
		want.WriteString(r.Commit + "\n")
	}
	from := v.with("GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(mirror, "objects"))
	_, err := from.output(ctx, want.String(), "pack-objects", "--revs", "--quiet", "--delta-base-offset", "--write-bitmap-index",
		filepath.Join(v.dir, "objects/pack/pack"))
	if err != nil && strings.Contains(caisson.MessageOf(err), "bad object") {
		return caisson.Wrap(err, caisson.Conflict, "a ref is at a commit that the mirror does not have (any more); fetch, and ask again")
	}
	return err
}

// makeStore makes the bare repository of a sandbox in s.dir, an empty directory: refs of the view s.view, whose objects it borrows.
func makeStore(s repo, refs []Ref, head string) error {
	if err := checkRefs(refs); err != nil {
		return err
	}
	if !refname.ValidFull(head) || !strings.HasPrefix(head, "refs/heads/") {
		return caisson.Invalidf("head", "%.100q is not the full name of a branch", head)
	}
	digits, err := repo{dir: s.view}.digits()
	if err != nil {
		return err
	}
	if err := s.make(digits); err != nil {
		return err
	}
	borrowed := filepath.Join(s.view, "objects") + "\n"
	if err := os.WriteFile(filepath.Join(s.dir, "objects/info/alternates"), []byte(borrowed), 0o600); err != nil {
		return err
	}
	if err := s.writeRefs(refs); err != nil {
		return err
	}
	return s.setHead(head)
}
