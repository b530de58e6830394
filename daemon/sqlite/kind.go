package sqlite

import "strings"

// objectKind describes the objects of a table.
type objectKind[T any] struct {
	noun string // The kind in words, for messages; also the name of the SQL table.
	// byName means that objects are identified by account and name, and listed by name. Otherwise they are identified by ID, and
	// listed in order of creation.
	byName  bool
	columns func(*T) objectColumns // Returns the values of the columns for an object.
}

// sql replaces TABLE in query with the name of the table.
func (k objectKind[T]) sql(query string) string { return strings.ReplaceAll(query, "TABLE", k.noun) }

// objectColumns are the values of an object that are also stored in columns, because queries need them.
type objectColumns struct {
	key     string // ID, or account and name; unique among all accounts.
	account string
	name    string // Unique in the account; "" means no name.
	state   string // State by which lists are filtered; "" for objects without states.
}

// namedKind returns the kind of objects that are identified by account and name, and listed by name. of returns the account and
// the name of an object.
func namedKind[T any](noun string, of func(*T) (account, name string)) objectKind[T] {
	return objectKind[T]{noun: noun, byName: true, columns: func(obj *T) objectColumns {
		c := objectColumns{}
		if c.account, c.name = of(obj); c.name != "" {
			c.key = c.account + "/" + c.name // The key is unambiguous because account names contain no slash.
		}
		return c
	}}
}
