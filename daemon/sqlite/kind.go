package sqlite

import (
	"strings"

	"github.com/caisson-dev/caisson"
)

// objectKind describes the objects of a table.
type objectKind[T any] struct {
	noun    string // For messages; also the name of the SQL table.
	named   bool   // Objects are identified by account and name and listed by name; otherwise by ID and in order of creation.
	columns func(*T) objectColumns
}

// sql replaces TABLE in query with the name of the table.
func (k objectKind[T]) sql(query string) string { return strings.ReplaceAll(query, "TABLE", k.noun) }

// objectColumns are the values of an object that queries need.
type objectColumns struct {
	key     string // Unique among all accounts.
	account string
	name    string // Unique in the account; "" means no name.
	state   string
}

func sandboxKind() objectKind[caisson.Sandbox] {
	return objectKind[caisson.Sandbox]{noun: "sandbox", columns: func(s *caisson.Sandbox) objectColumns {
		return objectColumns{key: string(s.ID), account: s.Account, name: s.Name, state: string(s.State)}
	}}
}

func snapshotKind() objectKind[caisson.Snapshot] {
	return objectKind[caisson.Snapshot]{noun: "snapshot", columns: func(s *caisson.Snapshot) objectColumns {
		return objectColumns{key: string(s.ID), account: s.Account, name: s.Name}
	}}
}

func templateKind() objectKind[caisson.Template] {
	return objectKind[caisson.Template]{noun: "template", named: true, columns: func(t *caisson.Template) objectColumns {
		return objectColumns{key: namedKey(t.Account, t.Name), account: t.Account, name: t.Name}
	}}
}

func imageKind() objectKind[caisson.Image] {
	return objectKind[caisson.Image]{noun: "image", named: true, columns: func(i *caisson.Image) objectColumns {
		return objectColumns{key: namedKey(i.Account, i.Reference), account: i.Account, name: i.Reference}
	}}
}

func agentKind() objectKind[caisson.Agent] {
	return objectKind[caisson.Agent]{noun: "agent", named: true, columns: func(a *caisson.Agent) objectColumns {
		return objectColumns{key: namedKey(a.Account, a.ID), account: a.Account, name: a.ID}
	}}
}

func volumeKind() objectKind[caisson.Volume] {
	return objectKind[caisson.Volume]{noun: "volume", columns: func(v *caisson.Volume) objectColumns {
		return objectColumns{key: string(v.ID), account: v.Account, name: v.Name}
	}}
}

func routeKind() objectKind[caisson.Route] {
	return objectKind[caisson.Route]{noun: "route", columns: func(r *caisson.Route) objectColumns {
		return objectColumns{key: string(r.ID), account: r.Account, name: r.Name}
	}}
}

func sessionKind() objectKind[caisson.Session] {
	return objectKind[caisson.Session]{noun: "session", columns: func(s *caisson.Session) objectColumns {
		return objectColumns{key: string(s.ID), account: s.Account, name: caisson.SessionName(s.Agent, s.User, s.Key)}
	}}
}

func repoKind() objectKind[caisson.Repo] {
	return objectKind[caisson.Repo]{noun: "repo", named: true, columns: func(r *caisson.Repo) objectColumns {
		return objectColumns{key: namedKey(r.Account, r.Name), account: r.Account, name: r.Name}
	}}
}

// namedKey returns a key for account and name, or "" for an object without a name. It is unambiguous because account
// names contain no slash.
func namedKey(account, name string) string {
	if name == "" {
		return ""
	}
	return account + "/" + name
}
