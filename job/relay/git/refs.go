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

// MaxRefs is the maximum number of refs of any repository.
const MaxRefs = 50_000

// Refs returns the branches and tags of r, sorted by name, and the branch that HEAD points to.
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

// ParseRefs parses lines of the form "<id> <name>". It skips refs with invalid names, which a mirror does not have.
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

// AppendRefs appends refs to b, as lines of the form "<id> <name>".
func AppendRefs(b []byte, refs []Ref) []byte {
	for _, r := range refs {
		b = fmt.Appendf(b, "%s %s\n", r.Commit, r.Name)
	}
	return b
}

// HasCommit reports whether r has the commit id.
func (r Repo) HasCommit(ctx context.Context, id string) (bool, error) {
	out, err := r.Output(ctx, id+"\n", "cat-file", "--batch-check=%(objecttype)")
	return strings.TrimSpace(string(out)) == "commit", err
}

// A Remote has the refs of a remote repository, or of a mirror, view or store.
type Remote struct {
	Head string // full name of the branch that HEAD points to, such as "refs/heads/main"; "" if there is none
	Refs []Ref  // branches and tags, sorted by name
}
