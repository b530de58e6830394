package sqlite

import (
	"strings"

	"github.com/caisson-dev/caisson"
)

// kind is what a table must know about the type of its objects.
type kind[T any] struct {
	noun    string // in messages, and the name of the SQL table
	named   bool   // objects are known by account and name, and listed by name; else by ID, and in order of creation
	columns func(*T) columns
}

// sql returns a statement about the table that TABLE stands for.
func (k kind[T]) sql(query string) string { return strings.ReplaceAll(query, "TABLE", k.noun) }

// columns are what queries need of an object.
type columns struct {
	key     string // unique among all accounts
	account string
	name    string // unique in the account; "" is none
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

// namedKey is unambiguous because no account's name contains a slash. It is "" for an object without a name.
func namedKey(account, name string) string {
	if name == "" {
		return ""
	}
	return account + "/" + name
}
