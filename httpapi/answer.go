package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// Functions with a name of the form …Answer return copies of stored objects without the fields that callers must not see. Every
// sandbox, snapshot, image and template in a response is such a copy.

// sandboxAnswer returns a copy of s without Rootfs, which contains paths of the host, and without Plan and Announced.
func sandboxAnswer(s *caisson.Sandbox) *caisson.Sandbox {
	out := *s
	out.Rootfs, out.Plan, out.Announced = caisson.Rootfs{}, nil, nil
	return &out
}

// snapshotAnswer returns a copy of s without Rootfs, which contains paths of the host.
func snapshotAnswer(s *caisson.Snapshot) *caisson.Snapshot {
	out := *s
	out.Rootfs = caisson.Rootfs{}
	return &out
}

// imageAnswer returns a copy of i without Rootfs, which contains paths of the host.
func imageAnswer(i *caisson.Image) *caisson.Image {
	out := *i
	out.Rootfs = caisson.Rootfs{}
	return &out
}

// templateAnswer returns a copy of t without Built.Rootfs, which contains paths of the host.
func templateAnswer(t *caisson.Template) *caisson.Template {
	out := *t
	if t.Built != nil {
		built := *t.Built
		built.Rootfs = caisson.Rootfs{}
		out.Built = &built
	}
	return &out
}

// policyAnswer returns p. If p has no rules, the result has a list of rules that is [] in JSON, not null.
func policyAnswer(p *caisson.Policy) *caisson.Policy {
	if p.Rules == nil {
		return &caisson.Policy{Rules: []caisson.Rule{}}
	}
	return p
}

// asIs returns v. It is the function of the form …Answer for objects of which callers may see all fields.
func asIs[T any](v T) T { return v }

// mapAnswers applies answer, such as [sandboxAnswer], to each element of a list. The result is not nil, so that it is [] in JSON.
func mapAnswers[T any](list []T, answer func(T) T) []T {
	out := make([]T, 0, len(list))
	for _, v := range list {
		out = append(out, answer(v))
	}
	return out
}

// withAnswer returns a handler that applies answer, such as [sandboxAnswer], to the result of fn.
func withAnswer[I, T any](fn func(context.Context, *I) (*T, error), answer func(*T) *T) func(context.Context, *I) (*T, error) {
	return func(ctx context.Context, in *I) (*T, error) {
		v, err := fn(ctx, in)
		if err != nil {
			return nil, err
		}
		return answer(v), nil
	}
}

// newPage returns one page of a list. It applies answer, such as [sandboxAnswer], to each object. If more pages follow, it sets
// the field next of the page to the id of the last object.
func newPage[T any](list []T, more bool, answer func(T) T, id func(T) caisson.ID) protocol.Page[T] {
	p := protocol.Page[T]{Items: mapAnswers(list, answer)}
	if more && len(list) > 0 {
		p.Next = id(list[len(list)-1])
	}
	return p
}

// listPages returns a handler that responds with one page of a list of objects whose ids have this prefix; see [newPage].
func listPages[P pageParams, T any](prefix string, list func(context.Context, caisson.Filter) ([]T, bool, error), answer func(T) T,
	id func(T) caisson.ID,
) func(context.Context, *P) (protocol.Page[T], error) {
	return func(ctx context.Context, in *P) (protocol.Page[T], error) {
		f, err := (*in).filter(prefix)
		if err != nil {
			return protocol.Page[T]{}, err
		}
		page, more, err := list(ctx, f)
		return newPage(page, more, answer, id), err
	}
}
