package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson"
)

// keepGone is how many deleted objects of a type can still be a position in a listing.
const keepGone = 10_000

// table is a [caisson.Table] on the SQL table that has its kind's name.
type table[T any] struct {
	kind[T]
	db       *db
	get      lookup // for readers
	getHere  lookup // for transactions of the writer
	position *sql.Stmt
	insert   *sql.Stmt
	update   *sql.Stmt
	remove   *sql.Stmt
	remember *sql.Stmt // nil if named
	forget   *sql.Stmt // nil if named
}

// lookup finds an object by what people call it.
type lookup struct {
	byKey      *sql.Stmt // key, account or NULL
	byName     *sql.Stmt // name, account
	byNameOnly *sql.Stmt // name
}

// The statements of lookup, for the table that TABLE stands for.
const (
	selectByKey      = `SELECT seq, doc FROM TABLE WHERE key = ?1 AND (?2 IS NULL OR account = ?2)`
	selectByName     = `SELECT seq, doc FROM TABLE WHERE name = ?1 AND account = ?2`
	selectByNameOnly = `SELECT seq, doc FROM TABLE WHERE name = ?1 LIMIT 2`
)

func newTable[T any](p *preparer, k kind[T]) *table[T] {
	q := k.sql
	t := &table[T]{
		kind:    k,
		db:      p.db,
		get:     lookup{p.read(q(selectByKey)), p.read(q(selectByName)), p.read(q(selectByNameOnly))},
		getHere: lookup{p.write(q(selectByKey)), p.write(q(selectByName)), p.write(q(selectByNameOnly))},
		insert:  p.write(q(`INSERT INTO TABLE (key, account, name, state, doc) VALUES (?, ?, ?, ?, ?)`)),
		update:  p.write(q(`UPDATE TABLE SET name = ?, state = ?, doc = ? WHERE seq = ?`)),
		remove:  p.write(q(`DELETE FROM TABLE WHERE seq = ?`)),
	}
	if !k.named {
		t.position = p.read(q(`SELECT max(seq) FROM (
			SELECT seq, account FROM TABLE WHERE key = ?1 UNION ALL SELECT seq, account FROM TABLE_gone WHERE key = ?1
		) WHERE ?2 IS NULL OR account = ?2`))
		t.remember = p.write(q(`REPLACE INTO TABLE_gone (key, account, seq) VALUES (?, ?, ?)`))
		t.forget = p.write(q(`DELETE FROM TABLE_gone WHERE n <= ?`))
	}
	return t
}

// row is an object as it is stored.
type row struct {
	seq int64
	doc []byte
}

// Insert implements [caisson.Table].
func (t *table[T]) Insert(ctx context.Context, obj *T) error {
	c := t.columns(obj)
	if c.key == "" {
		return caisson.Errorf(caisson.Internal, "a %s without an id or name cannot be stored", t.noun)
	}
	doc, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", t.noun, c.key, err)
	}
	_, err = t.db.writeOne(ctx, t.insert, c.key, c.account, nullable(c.name), c.state, string(doc))
	if taken(err) {
		return t.takenError(err, c)
	}
	return err
}

// Get implements [caisson.Table].
func (t *table[T]) Get(ctx context.Context, in caisson.Scope, ref string) (*T, error) {
	r, err := t.find(ctx, in, ref, t.get, func(s *sql.Stmt) *sql.Stmt { return s })
	if err != nil {
		return nil, t.db.explain(err)
	}
	return t.decode(r.doc)
}

// Update implements [caisson.Table].
func (t *table[T]) Update(ctx context.Context, in caisson.Scope, ref string, change func(*T) error) (*T, error) {
	var obj *T
	var now columns
	var refused error // by change: returned as it is
	err := t.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r, err := t.find(ctx, in, ref, t.getHere, func(s *sql.Stmt) *sql.Stmt { return tx.StmtContext(ctx, s) })
		if err != nil {
			return err
		}
		if obj, err = t.decode(r.doc); err != nil {
			return err
		}
		was := t.columns(obj)
		if refused = change(obj); refused != nil {
			return refused
		}
		now = t.columns(obj)
		if now.key != was.key || now.account != was.account {
			return caisson.Errorf(caisson.Internal, "an update of %s %s changed what it is known by", t.noun, was.key)
		}
		doc, err := json.Marshal(obj)
		if err != nil {
			return fmt.Errorf("encode %s %s: %w", t.noun, now.key, err)
		}
		if bytes.Equal(doc, r.doc) {
			return nil // saves the sync: an empty transaction commits without one
		}
		_, err = tx.StmtContext(ctx, t.update).ExecContext(ctx, nullable(now.name), now.state, string(doc), r.seq)
		return err
	})
	switch {
	case err == nil:
		return obj, nil
	case refused != nil:
		return nil, refused
	case taken(err):
		return nil, t.takenError(err, now)
	default:
		return nil, err
	}
}

// Delete implements [caisson.Table].
func (t *table[T]) Delete(ctx context.Context, in caisson.Scope, ref string) error {
	return t.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r, err := t.find(ctx, in, ref, t.getHere, func(s *sql.Stmt) *sql.Stmt { return tx.StmtContext(ctx, s) })
		if err != nil {
			return err
		}
		if _, err := tx.StmtContext(ctx, t.remove).ExecContext(ctx, r.seq); err != nil || t.named {
			return err
		}
		obj, err := t.decode(r.doc)
		if err != nil {
			return err
		}
		c := t.columns(obj)
		res, err := tx.StmtContext(ctx, t.remember).ExecContext(ctx, c.key, c.account, r.seq)
		if err != nil {
			return err
		}
		n, err := res.LastInsertId()
		if err != nil {
			return err
		}
		_, err = tx.StmtContext(ctx, t.forget).ExecContext(ctx, n-keepGone)
		return err
	})
}

// find returns the object that is called ref; use makes a prepared statement part of a transaction. A key beats a name.
func (t *table[T]) find(ctx context.Context, in caisson.Scope, ref string, l lookup, use func(*sql.Stmt) *sql.Stmt) (r row, err error) {
	account := accountOf(in)
	if !t.named {
		err := use(l.byKey).QueryRowContext(ctx, ref, account).Scan(&r.seq, &r.doc)
		if !errors.Is(err, sql.ErrNoRows) {
			return r, err
		}
	}
	if account.Valid {
		err = use(l.byName).QueryRowContext(ctx, ref, account).Scan(&r.seq, &r.doc)
	} else {
		r, err = t.findAnywhere(ctx, ref, use(l.byNameOnly))
	}
	if errors.Is(err, sql.ErrNoRows) {
		return r, caisson.Errorf(caisson.NotFound, "there is no %s %.100q", t.noun, ref)
	}
	return r, err
}

// findAnywhere returns the only object of that name in any account.
func (t *table[T]) findAnywhere(ctx context.Context, name string, stmt *sql.Stmt) (r row, err error) {
	rows, err := stmt.QueryContext(ctx, name)
	if err != nil {
		return r, err
	}
	defer rows.Close()
	found := 0
	for ; rows.Next(); found++ {
		if err := rows.Scan(&r.seq, &r.doc); err != nil {
			return r, err
		}
	}
	switch err := rows.Err(); {
	case err != nil:
		return r, err
	case found == 0:
		return r, sql.ErrNoRows
	case found > 1:
		return r, caisson.Errorf(caisson.Conflict, "more than one account has a %s %.100q; say which", t.noun, name)
	}
	return r, nil
}

func (t *table[T]) decode(doc []byte) (*T, error) {
	obj := new(T)
	if err := json.Unmarshal(doc, obj); err != nil {
		return nil, fmt.Errorf("decode stored %s: %w", t.noun, err)
	}
	return obj, nil
}

// takenError says which of an object's unique values exists already.
func (t *table[T]) takenError(err error, c columns) error {
	if !t.named && strings.Contains(err.Error(), t.noun+".key") {
		return caisson.Wrap(err, caisson.Conflict, "%s %s exists already", t.noun, c.key)
	}
	return caisson.Wrap(err, caisson.Conflict, "a %s named %.100q exists already; choose another name or remove it first", t.noun, c.name)
}

// nullable makes no name NULL.
func nullable(name string) sql.NullString { return sql.NullString{String: name, Valid: name != ""} }
