package sqlite

import "strings"

// objectKind describes the objects of a table.
type objectKind[T any] struct {
	noun    string // For messages; also the name of the SQL table.
	byName  bool   // Objects are identified by account and name and listed by name; otherwise by ID and in order of creation.
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

// namedKind returns the kind of objects that are identified by account and name and listed by name.
func namedKind[T any](noun string, of func(*T) (account, name string)) objectKind[T] {
	return objectKind[T]{noun: noun, byName: true, columns: func(obj *T) objectColumns {
		c := objectColumns{}
		if c.account, c.name = of(obj); c.name != "" {
			c.key = c.account + "/" + c.name // It is unambiguous because account names contain no slash.
		}
		return c
	}}
}
