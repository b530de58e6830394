package sqlite_test

import (
	"context"
	"testing"

	"github.com/caisson-dev/caisson"
)

// sessionTable finds the sessions of one agent and user by their keys, as other objects are found by their names.
type sessionTable struct{ caisson.Table[caisson.Session] }

func (s sessionTable) name(ref string) string {
	if _, err := caisson.ParseID(caisson.SessionPrefix, ref); err == nil || ref == "" {
		return ref
	}
	return caisson.SessionName("shell", "u", ref)
}

func (s sessionTable) Get(ctx context.Context, in caisson.Scope, ref string) (*caisson.Session, error) {
	return s.Table.Get(ctx, in, s.name(ref))
}

func (s sessionTable) List(ctx context.Context, in caisson.Scope, f caisson.Filter) ([]*caisson.Session, bool, error) {
	f.Name = s.name(f.Name)
	return s.Table.List(ctx, in, f)
}

func (s sessionTable) Update(ctx context.Context, in caisson.Scope, ref string, change func(*caisson.Session) error) (*caisson.Session, error) {
	return s.Table.Update(ctx, in, s.name(ref), change)
}

func (s sessionTable) Delete(ctx context.Context, in caisson.Scope, ref string) error {
	return s.Table.Delete(ctx, in, s.name(ref))
}

func sessionKind() objectKind[caisson.Session] {
	return objectKind[caisson.Session]{
		table: func(s caisson.Store) caisson.Table[caisson.Session] { return sessionTable{s.Sessions()} },
		make: func(account, name string) *caisson.Session {
			return &caisson.Session{
				ID: caisson.NewID(caisson.SessionPrefix), Account: account, Agent: "shell", User: "u", Key: name,
				Run: caisson.NewID(caisson.RunPrefix), Runs: 7, CreatedAt: noon(), UsedAt: noon(),
			}
		},
		ref:       func(s *caisson.Session) string { return string(s.ID) },
		account:   func(s *caisson.Session) *string { return &s.Account },
		name:      func(s *caisson.Session) *string { return &s.Key },
		key:       func(s *caisson.Session) *string { return (*string)(&s.ID) },
		textField: func(s *caisson.Session) *string { return (*string)(&s.Sandbox) },
		pageToken: func(s *caisson.Session) caisson.ID { return s.ID },
	}
}

// testSessionNames tests that a key is unique within account, agent and user, and that no two of these combinations are
// confused.
func testSessionNames(t *testing.T, s caisson.Store) {
	ctx := t.Context()
	add := func(account, agent, user, key string) (*caisson.Session, error) {
		c := &caisson.Session{ID: caisson.NewID(caisson.SessionPrefix), Account: account, Agent: agent, User: user, Key: key}
		return c, s.Sessions().Insert(ctx, c)
	}
	for _, c := range [][4]string{
		{"a", "x", "", "k"}, {"b", "x", "", "k"}, {"a", "y", "", "k"}, {"a", "x", "u", "k"}, {"a", "x", "k", ""}, {"a", "x", "", "K"},
		{"a", "x", `","`, "k"}, {"a", `x","`, "", "k"}, {"a", "x", "", `","k`}, {"a", "x", "u,k", ""}, {"a", "xu", "", "k"},
	} {
		c, added := c, get[*caisson.Session](t)(add(c[0], c[1], c[2], c[3]))
		if got := get[*caisson.Session](t)(s.Sessions().Get(ctx, caisson.In(c[0]), caisson.SessionName(c[1], c[2], c[3]))); got.ID != added.ID {
			t.Errorf("%q found %+v", c, got)
		}
		_, err := add(c[0], c[1], c[2], c[3])
		wantKind(t, err, caisson.Conflict)
	}
}
