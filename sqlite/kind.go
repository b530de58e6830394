package sqlite

import (
	"strings"

	"github.com/caisson-dev/caisson"
)

// kind describes the objects of a table.
type kind[T any] struct {
	noun    string // For messages; also the name of the SQL table.
	named   bool   // Objects are identified by account and name and listed by name; otherwise by ID and in order of creation.
	columns func(*T) columns
}

// sql replaces TABLE in query with the name of the table.
func (k kind[T]) sql(query string) string { return strings.ReplaceAll(query, "TABLE", k.noun) }

// columns are the values of an object that queries need.
type columns struct {
	key     string // Unique among all accounts.
	account string
	name    string // Unique in the account; "" means no name.
	state   string
}

func sandboxKind() kind[caisson.Sandbox] {
	return kind[caisson.Sandbox]{noun: "sandbox", columns: func(s *caisson.Sandbox) columns {
		return columns{key: string(s.ID), account: s.Account, name: s.Name, state: string(s.State)}
	}}
}

func snapshotKind() kind[caisson.Snapshot] {
	return kind[caisson.Snapshot]{noun: "snapshot", columns: func(s *caisson.Snapshot) columns {
		return columns{key: string(s.ID), account: s.Account, name: s.Name}
	}}
}

func templateKind() kind[caisson.Template] {
	return kind[caisson.Template]{noun: "template", named: true, columns: func(t *caisson.Template) columns {
		return columns{key: namedKey(t.Account, t.Name), account: t.Account, name: t.Name}
	}}
}

func imageKind() kind[caisson.Image] {
	return kind[caisson.Image]{noun: "image", named: true, columns: func(i *caisson.Image) columns {
		return columns{key: namedKey(i.Account, i.Reference), account: i.Account, name: i.Reference}
	}}
}

func agentKind() kind[caisson.Agent] {
	return kind[caisson.Agent]{noun: "agent", named: true, columns: func(a *caisson.Agent) columns {
		return columns{key: namedKey(a.Account, a.ID), account: a.Account, name: a.ID}
	}}
}

func volumeKind() kind[caisson.Volume] {
	return kind[caisson.Volume]{noun: "volume", columns: func(v *caisson.Volume) columns {
		return columns{key: string(v.ID), account: v.Account, name: v.Name}
	}}
}

func sessionKind() kind[caisson.Session] {
	return kind[caisson.Session]{noun: "session", columns: func(s *caisson.Session) columns {
		return columns{key: string(s.ID), account: s.Account, name: caisson.SessionName(s.Agent, s.User, s.Key)}
	}}
}

func repoKind() kind[caisson.Repo] {
	return kind[caisson.Repo]{noun: "repo", named: true, columns: func(r *caisson.Repo) columns {
		return columns{key: namedKey(r.Account, r.Name), account: r.Account, name: r.Name}
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
