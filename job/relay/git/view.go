package git

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
)

// MakeView creates a bare repository in v.Dir, an empty directory, with exactly refs, which must be valid, and the
// objects that they reach in the repository at mirror. Packed objects are copied as they are, and bitmaps of them are kept so
// that clones need not count objects again.
func MakeView(ctx context.Context, v Repo, mirror string, refs []Ref) error {
	digits, err := Repo{Dir: mirror}.Digits()
	if err != nil {
		return err
	}
	for _, r := range refs {
		if len(r.Commit) != digits {
			return caisson.Invalidf("refs", "%s is at %s, which is no object of this repository", r.Name, r.Commit)
		}
	}
	if err := v.Init(digits); err != nil {
		return err
	}
	if len(refs) == 0 {
		return nil
	}
	if err := packFrom(ctx, v, mirror, refs); err != nil {
		return err
	}
	if err := v.WriteRefs(refs); err != nil {
		return err
	}
	// A failure is ignored: the commit graph only speeds up walks of the history.
	_, _ = v.Output(ctx, "", "commit-graph", "write", "--reachable", "--no-progress")
	return nil
}

// packFrom writes one pack with the objects that refs reach. Git uses v's configuration and reads only objects from the mirror.
func packFrom(ctx context.Context, v Repo, mirror string, refs []Ref) error {
	var want strings.Builder
	for _, r := range refs {
		want.WriteString(r.Commit + "\n")
	}
	from := v.With("GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(mirror, "objects"))
	_, err := from.Output(ctx, want.String(), "pack-objects", "--revs", "--quiet", "--delta-base-offset", "--write-bitmap-index",
		filepath.Join(v.Dir, "objects/pack/pack"))
	if err != nil && strings.Contains(caisson.MessageOf(err), "bad object") {
		return caisson.Wrap(err, caisson.Conflict, "a ref is at a commit that the mirror does not have (any more); fetch, and ask again")
	}
	return err
}

// MakeStore creates the bare repository that a sandbox pushes to in s.Dir, which must be empty. The repository has the given
// refs, which must be valid, and HEAD, and reads the objects of the view s.View through git alternates.
func MakeStore(s Repo, refs []Ref, head string) error {
	if !refname.ValidFull(head) || !strings.HasPrefix(head, "refs/heads/") {
		return caisson.Invalidf("head", "%.100q is not the full name of a branch", head)
	}
	digits, err := Repo{Dir: s.View}.Digits()
	if err != nil {
		return err
	}
	if err := s.Init(digits); err != nil {
		return err
	}
	borrowed := filepath.Join(s.View, "objects") + "\n"
	if err := os.WriteFile(filepath.Join(s.Dir, "objects/info/alternates"), []byte(borrowed), 0o600); err != nil {
		return err
	}
	if err := s.WriteRefs(refs); err != nil {
		return err
	}
	return s.SetHead(head)
}
