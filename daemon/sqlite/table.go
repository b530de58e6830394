package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/caisson-dev/caisson"
)

// maxRemovedPositions is the number of deleted objects of a type whose positions in lists are kept, so that a listing can
// continue after an object that has been deleted in the meantime.
const maxRemovedPositions = 10_000

// table implements [caisson.Table] on the SQL table of its kind. It records the positions of deleted objects in lists, so that a
// listing can continue after such an object. Objects that are listed by name (kind.byName) need no such records.
type table[T any] struct {
	docs[T]
	kind          objectKind[T]
	lookup        lookup       // Finds an object, without a transaction.
	txLookup      lookup       // Finds an object, in a writing transaction.
	position      pagePosition // Finds the start of a page of List; not used if kind.byName.
	remove        *sql.Stmt    // Deletes an object by seq.
	recordRemoved *sql.Stmt    // Records the position in lists of a deleted object; nil if kind.byName.
	pruneRemoved  *sql.Stmt    // Deletes the oldest recorded positions of deleted objects; nil if kind.byName.
}

// lookup contains the statements that find an object by key or name.
type lookup struct {
	byKey            *sql.Stmt // Finds an object. Arguments: key, and account or NULL.
	byName           *sql.Stmt // Finds an object of an account. Arguments: name, account.
	byNameAnyAccount *sql.Stmt // Finds up to two objects. Argument: name.
}

// The statements of [lookup]; TABLE is replaced by the name of the SQL table.
const (
	selectByKey            = `SELECT seq, doc FROM TABLE WHERE key = ?1 AND (?2 IS NULL OR account = ?2)`
	selectByName           = `SELECT seq, doc FROM TABLE WHERE name = ?1 AND account = ?2`
	selectByNameAnyAccount = `SELECT seq, doc FROM TABLE WHERE name = ?1 LIMIT 2`
)

// newTable returns the part of the store for the objects of the kind k, with its statements prepared by p.
func newTable[T any](p *preparer, k objectKind[T]) *table[T] {
	q := k.sql
	t := &table[T]{
		docs: docs[T]{
			db: p.db, noun: k.noun, required: 1, requiredNames: "an id or name", fixedNames: "its key or account",
			fixed:   func(obj *T) []string { c := k.columns(obj); return []string{c.key, c.account} },
			columns: func(obj *T) []any { c := k.columns(obj); return []any{nullable(c.name), c.state} },
			insert:  p.write(q(`INSERT INTO TABLE (key, account, name, state, doc) VALUES (?, ?, ?, ?, ?)`)),
			update:  p.write(q(`UPDATE TABLE SET name = ?, state = ?, doc = ? WHERE seq = ?`)),
		},
		kind:     k,
		lookup:   lookup{p.read(q(selectByKey)), p.read(q(selectByName)), p.read(q(selectByNameAnyAccount))},
		txLookup: lookup{p.write(q(selectByKey)), p.write(q(selectByName)), p.write(q(selectByNameAnyAccount))},
		remove:   p.write(q(`DELETE FROM TABLE WHERE seq = ?`)),
	}
	t.find, t.duplicateError = t.byRef, t.nameConflict
	if !k.byName {
		t.position = pagePosition{p.read(q(`SELECT max(seq) FROM (
			SELECT seq, account FROM TABLE WHERE key = ?1 UNION ALL SELECT seq, account FROM TABLE_gone WHERE key = ?1
		) WHERE ?2 IS NULL OR account = ?2`)), "after", "%.40q is not in this list, or was long ago; start from the first page"}
		t.recordRemoved = p.write(q(`REPLACE INTO TABLE_gone (key, account, seq) VALUES (?, ?, ?)`))
		t.pruneRemoved = p.write(q(`DELETE FROM TABLE_gone WHERE n <= ?`))
	}
	return t
}

// Update implements [caisson.Table].
func (t *table[T]) Update(ctx context.Context, in caisson.Scope, ref string, change func(*T) error) (*T, error) {
	return t.change(ctx, in, ref, change)
}

// Delete implements [caisson.Table].
func (t *table[T]) Delete(ctx context.Context, in caisson.Scope, ref string) error {
	return t.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r, err := t.find(ctx, tx, in, ref)
		if err != nil {
			return err
		}
		if _, err := tx.StmtContext(ctx, t.remove).ExecContext(ctx, r.seq); err != nil || t.kind.byName {
			return err
		}
		obj, err := t.decode(r)
		if err != nil {
			return err
		}
		c := t.kind.columns(obj)
		res, err := tx.StmtContext(ctx, t.recordRemoved).ExecContext(ctx, c.key, c.account, r.seq)
		if err != nil {
			return err
		}
		n, err := res.LastInsertId()
		if err != nil {
			return err
		}
		_, err = tx.StmtContext(ctx, t.pruneRemoved).ExecContext(ctx, n-maxRemovedPositions)
		return err
	})
}

// byRef is the function docs.find of a table: it returns the object whose key (unless kind.byName) or else whose name is ref.
func (t *table[T]) byRef(ctx context.Context, tx *sql.Tx, in caisson.Scope, ref string) (r row, err error) {
	l, use := t.lookup, func(s *sql.Stmt) *sql.Stmt { return s }
	if tx != nil {
		l, use = t.txLookup, func(s *sql.Stmt) *sql.Stmt { return tx.StmtContext(ctx, s) }
	}
	account := accountParam(in)
	if !t.kind.byName {
		r, err := scanRow(use(l.byKey).QueryRowContext(ctx, ref, account))
		if !errors.Is(err, sql.ErrNoRows) {
			return r, err
		}
	}
	if account.Valid {
		r, err = scanRow(use(l.byName).QueryRowContext(ctx, ref, account))
	} else {
		r, err = t.findInAnyAccount(ctx, ref, use(l.byNameAnyAccount))
	}
	if errors.Is(err, sql.ErrNoRows) {
		return r, caisson.Errorf(caisson.NotFound, "there is no %s %.100q; see caisson %s ls", t.noun, ref, t.noun)
	}
	return r, err
}

// findInAnyAccount returns the only object with a name in all accounts. It returns a Conflict error if several accounts have one.
func (t *table[T]) findInAnyAccount(ctx context.Context, name string, stmt *sql.Stmt) (row, error) {
	found, err := readRows(scanRow)(stmt.QueryContext(ctx, name))
	switch {
	case err != nil:
		return row{}, err
	case len(found) == 0:
		return row{}, sql.ErrNoRows
	case len(found) > 1:
		return row{}, caisson.Errorf(caisson.Conflict, "more than one account has a %s %.100q; specify the account", t.noun, name)
	}
	return found[0], nil
}

// nameConflict returns the Conflict error for obj, whose key or name another object has. err is the error of the insertion or
// update.
func (t *table[T]) nameConflict(err error, obj *T) error {
	c := t.kind.columns(obj)
	if !t.kind.byName && strings.Contains(err.Error(), t.noun+".key") {
		return caisson.Wrap(err, caisson.Conflict, "%s %s exists already", t.noun, c.key)
	}
	return caisson.Wrap(err, caisson.Conflict, "a %s named %.100q exists already; choose another name or remove it first", t.noun, c.name)
}

// nullable returns name as a parameter of a statement; "" becomes NULL.
func nullable(name string) sql.NullString { return sql.NullString{String: name, Valid: name != ""} }
