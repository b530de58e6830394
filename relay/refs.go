package relay

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

// maxRefs bounds the refs of a repository, whoever it belongs to.
const maxRefs = 50_000

// refs returns the branches and tags of r, by name.
func (r repo) refs(ctx context.Context) (*Remote, error) {
	out, err := r.output(ctx, "", "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/", "refs/tags/")
	if err != nil {
		return nil, err
	}
	refs, err := parseRefs(out)
	if err != nil {
		return nil, err
	}
	remote := &Remote{Refs: refs}
	head, err := os.ReadFile(filepath.Join(r.dir, "HEAD"))
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

// parseRefs reads lines of "<id> <name>". Names that are not valid here are left out: a mirror has none.
func parseRefs(out []byte) ([]Ref, error) {
	var refs []Ref
	for line := range bytes.Lines(out) {
		id, name, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		if !ok || !validCommit(id) {
			return nil, caisson.Errorf(caisson.Internal, "git lists refs as %.100q", line)
		}
		if !refname.ValidFull(name) {
			continue
		}
		if len(refs) == maxRefs {
			return nil, caisson.Errorf(caisson.Exhausted, "a repository has more than %d branches and tags", maxRefs)
		}
		refs = append(refs, Ref{Name: name, Commit: id})
	}
	return refs, nil
}

// appendRefs is the opposite of parseRefs.
func appendRefs(b []byte, refs []Ref) []byte {
	for _, r := range refs {
		b = fmt.Appendf(b, "%s %s\n", r.Commit, r.Name)
	}
	return b
}

// hasCommit reports whether the commit id is in r.
func (r repo) hasCommit(ctx context.Context, id string) (bool, error) {
	out, err := r.output(ctx, id+"\n", "cat-file", "--batch-check=%(objecttype)")
	return strings.TrimSpace(string(out)) == "commit", err
}

// A Remote is the refs of a repository.
type Remote struct {
	Head string // the branch that HEAD is, in full, "refs/heads/main"; "" if there is none
	Refs []Ref  // branches and tags, by name
}
