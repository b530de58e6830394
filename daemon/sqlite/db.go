package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync/atomic"

	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"github.com/caisson-dev/caisson"
)

// maxReaders is the maximum number of connections that read. Each connection has its own cache.
const maxReaders = 4

// db contains the two connection pools of the database.
type db struct {
	writer *sql.DB     // One connection: database/sql queues the writers, so SQLite never has two.
	reader *sql.DB     // Read-only connections. They read the last committed state.
	closed atomic.Bool // Whether close was called; write then returns Unavailable.
}

// openDB opens the file at path and brings its schema up to date. finish, unless nil, completes a migration in its transaction.
func openDB(ctx context.Context, path string, migrations fs.FS, finish migrationFinisher, log *slog.Logger) (_ *db, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := secureFile(path); err != nil {
		return nil, err
	}
	d := &db{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.writer, err = sql.Open("sqlite", dsn(path, "rw")); err != nil {
		return nil, err
	}
	d.writer.SetMaxOpenConns(1)
	if err := migrate(ctx, d.writer, path, migrations, finish, log); err != nil {
		return nil, err
	}
	if d.reader, err = sql.Open("sqlite", dsn(path, "ro")); err != nil {
		return nil, err
	}
	d.reader.SetMaxOpenConns(maxReaders)
	d.reader.SetMaxIdleConns(maxReaders)
	return d, nil
}

// dsn returns the data source name for the file at path, with mode "ro" or "rw" and the settings that every connection has. The
// write-ahead log is not among them: it is a property of the file, which [migrate] sets.
func dsn(path, mode string) string {
	q := url.Values{
		"mode": {mode},
		// BEGIN IMMEDIATE: a writing transaction takes the write lock at its start, so that it cannot fail half-way because of
		// another writing transaction.
		"_txlock": {"immediate"},
		// Limit the effect of a file that is damaged or was prepared by an attacker: no writes to the schema's own tables, no
		// functions with side effects in views and triggers, and an error instead of a string for a misspelt column.
		"_defensive": {"1"},
		"_dqs":       {"0"},
		"_pragma": {
			// Only another process can hold the lock, such as an operator's sqlite3 shell. Wait up to 5 seconds for it.
			"busy_timeout(5000)",
			// Sync the write-ahead log at every commit. NORMAL syncs it only at checkpoints, so that a power failure would undo
			// acknowledged writes.
			"synchronous(FULL)",
			// Foreign keys are off by default and must be enabled on each connection.
			"foreign_keys(1)",
			"trusted_schema(0)",
			// Check pages when they are read, so that damage causes an error and not a wrong result.
			"cell_size_check(1)",
			// Temporary data, such as that of sorting, stays in memory and is never written to the shared directory /tmp.
			"temp_store(MEMORY)",
			// After a burst of writes the write-ahead log is truncated to this size instead of keeping its greatest length.
			"journal_size_limit(8388608)",
			// 1 MiB of cache per connection; the kernel caches the rest.
			"cache_size(-1024)",
		},
	}
	if mode == "ro" {
		q.Set("_query_only", "1") // mode=ro protects the file. With query_only, a write by a reader is also an error.
	}
	// The name must be a URL, because a path may contain characters, such as ?, that begin the parameters.
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// write runs do in one transaction and commits it. If do fails or ctx ends, nothing changes.
//
// ctx is checked while waiting for other writers and once more before the commit, not by each statement: a statement
// takes microseconds, and a commit that has started must finish so that its result is known.
func (d *db) write(ctx context.Context, do func(ctx context.Context, tx *sql.Tx) error) error {
	if d.closed.Load() {
		return caisson.Errorf(caisson.Unavailable, "the store is closed")
	}
	conn, err := d.writer.Conn(ctx)
	if err != nil {
		return d.explain(err)
	}
	defer conn.Close()
	inside := context.WithoutCancel(ctx)
	tx, err := conn.BeginTx(inside, nil)
	if err != nil {
		return d.explain(err)
	}
	defer tx.Rollback() // Also runs if do panics. After a commit it has no effect.
	if err := do(inside, tx); err != nil {
		return d.explain(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.explain(tx.Commit())
}

// writeOne runs one statement in a transaction and returns the number of rows that the statement has changed.
func (d *db) writeOne(ctx context.Context, stmt *sql.Stmt, args ...any) (rows int64, err error) {
	err = d.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		rows, err = affected(tx.StmtContext(ctx, stmt).ExecContext(ctx, args...))
		return err
	})
	return rows, err
}

// writeFound runs one statement that must change a row. It returns the error none if the statement changes no row.
func (d *db) writeFound(ctx context.Context, none error, stmt *sql.Stmt, args ...any) error {
	n, err := d.writeOne(ctx, stmt, args...)
	if err == nil && n == 0 {
		err = none
	}
	return err
}

// explainRow converts the error of a query for one row: to none if the query found no row, otherwise as explain does.
func (d *db) explainRow(err, none error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return none
	}
	return d.explain(err)
}

// affected returns the number of rows that a statement with the result res has changed, or err if that is not nil.
func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// close waits for running operations and rejects later ones. The connections that read are closed first: the last connection that
// is closed moves the write-ahead log into the database, which a connection that reads is not permitted to do.
func (d *db) close() error {
	d.closed.Store(true)
	return errors.Join(drain(d.reader, maxReaders), drain(d.writer, 1))
}

// drain closes a pool of at most n connections when none of its connections is in use. [sql.DB.Close] alone does not wait for
// that.
func drain(pool *sql.DB, n int) error {
	if pool == nil {
		return nil
	}
	var held []*sql.Conn
	for range n {
		conn, err := pool.Conn(context.Background())
		if err != nil {
			break // The connection cannot be opened, so it is not in use.
		}
		held = append(held, conn)
	}
	errs := []error{pool.Close()} // Callers that wait for a connection now get an error.
	for _, conn := range held {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// preparer prepares statements until the first error. Afterwards it only returns nil statements.
type preparer struct {
	ctx context.Context
	db  *db
	err error // The first error of prepare.
}

// read prepares a statement on the read-only connections.
func (p *preparer) read(query string) *sql.Stmt { return p.prepare(p.db.reader, query) }

// write prepares a statement on the connection that writes.
func (p *preparer) write(query string) *sql.Stmt { return p.prepare(p.db.writer, query) }

// prepare prepares a statement on a pool. After an error, which it stores in p.err, it returns nil.
func (p *preparer) prepare(pool *sql.DB, query string) *sql.Stmt {
	if p.err != nil {
		return nil
	}
	var stmt *sql.Stmt
	stmt, p.err = pool.PrepareContext(p.ctx, query)
	return stmt
}

// accountParam returns the account of a scope as a parameter of a statement; NULL means all accounts.
func accountParam(in caisson.Scope) sql.NullString {
	account, all := in.Account()
	return sql.NullString{String: account, Valid: !all}
}
