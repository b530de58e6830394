package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/caisson-dev/caisson"
)

// docs stores objects as JSON documents beside the columns that queries need. The fixed columns are those that updates cannot
// change: the ID or key, the account, and others. [table] and [idTable] add the functions that find objects.
type docs[T any] struct {
	db   *db
	noun string // The kind of the objects, for messages.

	fixed         func(*T) []string // Returns the values of the fixed columns.
	required      int               // Number of fixed columns, from the first one, whose values must not be "".
	requiredNames string            // Names of the required columns in the error for an empty value.
	fixedNames    string            // Names of the fixed columns in the error for an update that has changed them.
	columns       func(*T) []any    // Returns the values of all columns but the fixed ones and the document.

	insert *sql.Stmt // Inserts an object. Arguments: the values of fixed and of columns, document.
	update *sql.Stmt // Updates an object. Arguments: the values of columns, document, seq.

	// find returns the object that ref refers to, or an error if there is none. tx is the transaction in which the object is
	// read; nil means that it is read without one.
	find           func(ctx context.Context, tx *sql.Tx, in caisson.Scope, ref string) (row, error)
	duplicateError func(err error, obj *T) error // Returns the error for a duplicate value; nil if only the ID is unique.
	documentFor    func(*T) any                  // Returns the value that is encoded for an object; nil means the object itself.
	fill           func(*T, row)                 // Sets the fields that the document does not contain; may be nil.
}

// row is an object as it is stored.
type row struct {
	seq      int64  // Number of the row in its table.
	children int64  // Number of sub-runs of a run at all levels; 0 for other objects.
	doc      []byte // JSON document of the object.
}

// scanRow reads the columns seq and doc.
func scanRow(s scanner) (r row, err error) {
	err = s.Scan(&r.seq, &r.doc)
	return r, err
}

// Insert implements [caisson.Table], [caisson.WorkspaceStore] and [caisson.DeliveryStore].
func (d *docs[T]) Insert(ctx context.Context, obj *T) error {
	fixed := d.fixed(obj)
	if slices.Contains(fixed[:d.required], "") {
		return caisson.Errorf(caisson.Internal, "a %s without %s cannot be stored", d.noun, d.requiredNames)
	}
	doc, err := d.encode(obj)
	if err != nil {
		return err
	}
	var args []any
	for _, value := range fixed {
		args = append(args, value)
	}
	_, err = d.db.writeOne(ctx, d.insert, append(append(args, d.columns(obj)...), doc)...)
	return d.explainDuplicate(err, obj)
}

// explainDuplicate returns err, or a Conflict error if err reports that another object has the same unique value as obj.
func (d *docs[T]) explainDuplicate(err error, obj *T) error {
	switch {
	case !isDuplicate(err):
		return err
	case d.duplicateError != nil:
		return d.duplicateError(err, obj)
	}
	return caisson.Wrap(err, caisson.Conflict, "%s %s exists already", d.noun, d.fixed(obj)[0])
}

// Get implements [caisson.Table], [caisson.WorkspaceStore] and [caisson.DeliveryStore].
func (d *docs[T]) Get(ctx context.Context, in caisson.Scope, ref string) (*T, error) {
	r, err := d.find(ctx, nil, in, ref)
	if err != nil {
		return nil, d.db.explain(err)
	}
	return d.decode(r)
}

// change updates the object that ref refers to with the function change: it implements the methods Update of the stores.
func (d *docs[T]) change(ctx context.Context, in caisson.Scope, ref string, change func(*T) error) (*T, error) {
	var obj *T
	var refused error // The error that the function change has returned. It is returned to the caller unmodified.
	err := d.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r, err := d.find(ctx, tx, in, ref)
		if err != nil {
			return err
		}
		if obj, err = d.decode(r); err != nil {
			return err
		}
		was := d.fixed(obj)
		if refused = change(obj); refused != nil {
			return refused
		}
		if !slices.Equal(d.fixed(obj), was) {
			return caisson.Errorf(caisson.Internal, "an update of %s %s changed %s", d.noun, was[0], d.fixedNames)
		}
		doc, err := d.encode(obj)
		if err != nil || doc == string(r.doc) {
			return err // An unchanged document is not written: a transaction without writes commits without a sync.
		}
		_, err = tx.StmtContext(ctx, d.update).ExecContext(ctx, append(d.columns(obj), doc, r.seq)...)
		return err
	})
	switch {
	case refused != nil:
		return nil, refused
	case err != nil:
		return nil, d.explainDuplicate(err, obj)
	}
	return obj, nil
}

// encode returns the JSON document of obj.
func (d *docs[T]) encode(obj *T) (string, error) {
	doc, err := json.Marshal(d.document(obj))
	if err != nil {
		return "", fmt.Errorf("encode %s %s: %w", d.noun, d.fixed(obj)[0], err)
	}
	return string(doc), nil
}

// decode returns the object whose document a row contains.
func (d *docs[T]) decode(r row) (*T, error) {
	obj := new(T)
	if err := decodeDoc(d.noun, r.doc, d.document(obj)); err != nil {
		return nil, err
	}
	if d.fill != nil {
		d.fill(obj, r)
	}
	return obj, nil
}

// document returns the value that is encoded as the document of obj, and into which the document is decoded.
func (d *docs[T]) document(obj *T) any {
	if d.documentFor != nil {
		return d.documentFor(obj)
	}
	return obj
}

// page reads up to limit objects that q finds, fewer if their documents are long. more reports whether q finds others after them.
func (d *docs[T]) page(
	ctx context.Context, q *query, limit int, scan func(scanner) (row, error),
) (page []*T, more bool, err error) {
	size := 0
	page, more, err = readPage(func(s scanner, n int) (*T, error) {
		if n == limit || size > maxDocPage {
			return nil, errPageFull
		}
		r, err := scan(s)
		if err != nil {
			return nil, err
		}
		size += len(r.doc)
		return d.decode(r)
	})(q.rows(ctx, d.db))
	return page, more, d.db.explain(err)
}

// idTable stores objects that are identified by an ID.
type idTable[T any] struct {
	docs[T]
	notFoundFormat string                     // Format of the error if no object matches; its argument is the reference.
	get            *sql.Stmt                  // Finds an object. Arguments: reference, and account or NULL.
	getTx          *sql.Stmt                  // Finds an object, in a writing transaction. Arguments: ID, and account or NULL.
	scan           func(scanner) (row, error) // Reads a row that get or getTx has found.
	position       pagePosition               // Finds the start of a page of a list of the objects.
	remove         *sql.Stmt                  // Deletes an object. Arguments: ID, and account or NULL. Nil if Delete is not used.
}

// newIDTable completes t for the SQL table with that name: it sets the statements that are not set yet.
func newIDTable[T any](p *preparer, name string, t *idTable[T]) *idTable[T] {
	one := `SELECT seq, doc FROM ` + name + ` WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`
	t.db, t.find = p.db, t.byID
	if t.get == nil {
		t.get = p.read(one)
	}
	if t.getTx == nil {
		t.getTx, t.scan = p.write(one), scanRow
	}
	if t.position.stmt == nil {
		t.position = pagePosition{p.read(`SELECT max(seq) FROM ` + name + ` WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`), "before",
			"%.40q is not in this list, or not any more; start from the first page"}
	}
	return t
}

// byID is the function docs.find of an idTable: it returns the object that get or, in a transaction, getTx finds for ref.
func (t *idTable[T]) byID(ctx context.Context, tx *sql.Tx, in caisson.Scope, ref string) (row, error) {
	stmt := t.get
	if tx != nil {
		stmt = tx.StmtContext(ctx, t.getTx)
	}
	r, err := t.scan(stmt.QueryRowContext(ctx, ref, accountParam(in)))
	if errors.Is(err, sql.ErrNoRows) {
		err = t.missing(ref)
	}
	return r, err
}

// missing returns the NotFound error for a reference that matches no object.
func (t *idTable[T]) missing(ref string) error {
	return caisson.Errorf(caisson.NotFound, t.notFoundFormat, ref)
}

// Update implements [caisson.RunStore], [caisson.WorkspaceStore] and [caisson.DeliveryStore].
func (t *idTable[T]) Update(ctx context.Context, in caisson.Scope, id caisson.ID, change func(*T) error) (*T, error) {
	return t.change(ctx, in, string(id), change)
}

// Delete implements [caisson.WorkspaceStore] and [caisson.DeliveryStore].
func (t *idTable[T]) Delete(ctx context.Context, in caisson.Scope, id caisson.ID) error {
	return t.db.writeFound(ctx, t.missing(string(id)), t.remove, string(id), accountParam(in))
}

// list completes the query q, which selects documents, with the scope and the position of the page, and reads one page of
// objects, newest first.
func (t *idTable[T]) list(
	ctx context.Context, q *query, in caisson.Scope, before caisson.ID, limit int,
) (page []*T, more bool, err error) {
	if limit, err = pageLimit(limit); err != nil {
		return nil, false, err
	}
	q.inScope(in)
	if err := q.startAfter(ctx, t.db, t.position, in, before); err != nil {
		return nil, false, err
	}
	q.add(" ORDER BY seq DESC LIMIT ?", limit+1)
	return t.page(ctx, q, limit, func(s scanner) (r row, err error) {
		err = s.Scan(&r.doc)
		return r, err
	})
}
