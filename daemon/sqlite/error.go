package sqlite

import (
	"context"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/caisson-dev/caisson"
)

// explain converts errors of SQLite to errors with a [caisson.Kind] and a message that suggests an action. It returns other
// errors unmodified.
func (d *db) explain(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if caisson.KindOf(err) == caisson.Internal && d.closed.Load() {
		return caisson.Wrap(err, caisson.Unavailable, "the store is closed")
	}
	code := resultCode(err)
	switch code & 0xff { // The low byte of an extended result code is the primary result code.
	case 0:
		return err
	case sqlite3.SQLITE_FULL:
		return caisson.Wrap(err, caisson.Exhausted, "the disk of the data directory is full; free some space and try again")
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return caisson.Wrap(err, caisson.Unavailable, "another process has locked the database; stop it and try again")
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return caisson.Wrap(err, caisson.Internal, "the database is damaged; stop caisson and restore the data directory from a backup")
	}
	return fmt.Errorf("database: %w", err)
}

// resultCode returns SQLite's extended result code of err, or 0 if err is not an error of SQLite.
func resultCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return 0
}

// isDuplicate reports whether err is a violation of a unique or primary key constraint.
func isDuplicate(err error) bool {
	switch resultCode(err) {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return true
	}
	return false
}

// isUnstorable reports whether err means that a value does not fit into its column or the database.
func isUnstorable(err error) bool {
	switch resultCode(err) & 0xff {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE:
		return true
	}
	return false
}

// isCorrupt reports whether err means that a file is not a valid database.
func isCorrupt(err error) bool {
	switch resultCode(err) & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return true
	}
	return false
}
