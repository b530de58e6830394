package git

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
)

// MaxRefs bounds the refs of a repository, whoever it belongs to.
const MaxRefs = 50_000

// Refs returns the branches and tags of r, by name.
func (r Repo) Refs(ctx context.Context) (*Remote, error) {
	out, err := r.Output(ctx, "", "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/", "refs/tags/")
	if err != nil {
		return nil, err
	}
	refs, err := ParseRefs(out)
	if err != nil {
		return nil, err
	}
	remote := &Remote{Refs: refs}
	head, err := os.ReadFile(filepath.Join(r.Dir, "HEAD"))
	if err != nil {
		return nil, err
	}
	name := strings.TrimSpace(strings.TrimPrefix(string(head), "ref: "))
	for _, ref := range refs {
		if ref.Name == name && strings.HasPrefix(name, "refs/heads/") {
			remote.Head = name
		}
	}
	return remote, nil
}

// ParseRefs reads lines of "<id> <name>". Names that are not valid here are left out: a mirror has none.
func ParseRefs(out []byte) ([]Ref, error) {
	var refs []Ref
	for line := range bytes.Lines(out) {
		id, name, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		if !ok || !ValidCommit(id) {
			return nil, caisson.Errorf(caisson.Internal, "git lists refs as %.100q", line)
		}
		if !refname.ValidFull(name) {
			continue
		}
		if len(refs) == MaxRefs {
			return nil, caisson.Errorf(caisson.Exhausted, "a repository has more than %d branches and tags", MaxRefs)
		}
		refs = append(refs, Ref{Name: name, Commit: id})
	}
	return refs, nil
}

// AppendRefs is the opposite of ParseRefs.
func AppendRefs(b []byte, refs []Ref) []byte {
	for _, r := range refs {
		b = fmt.Appendf(b, "%s %s\n", r.Commit, r.Name)
	}
	return b
}

// HasCommit reports whether the commit id is in r.
func (r Repo) HasCommit(ctx context.Context, id string) (bool, error) {
	out, err := r.Output(ctx, id+"\n", "cat-file", "--batch-check=%(objecttype)")
	return strings.TrimSpace(string(out)) == "commit", err
}

// A Remote is the refs of a repository.
type Remote struct {
	Head string // the branch that HEAD is, in full, "refs/heads/main"; "" if there is none
	Refs []Ref  // branches and tags, by name
}
