package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"

	"github.com/caisson-dev/caisson"
)

// Copy writes the database at path, as it is at one instant, to the file into, and returns the version of its schema. The file
// into must be empty or not exist. A daemon may use the database meanwhile. The copy has no free pages, which could contain data
// of deleted rows. Returns Conflict if the file at path is not a database that this build can use.
func Copy(ctx context.Context, path, into string) (schema int, err error) {
	schema, err = withDatabase(ctx, path, func(src *sql.DB) error {
		_, err := src.ExecContext(ctx, "VACUUM INTO ?", into)
		return (&db{}).explain(err)
	})
	if err != nil {
		return 0, err
	}
	return schema, os.Chmod(into, 0o600)
}

// Check reads the whole database at path to detect damage, and returns the version of its schema. Returns Conflict if the
// database is damaged or this build cannot use it.
func Check(ctx context.Context, path string) (schema int, err error) {
	return withDatabase(ctx, path, func(db *sql.DB) error { return checkIntegrity(ctx, db, path) })
}

// withDatabase opens the database at path without migrating it, calls do with it and closes it. Returns Conflict if this build
// does not know the version of the database's schema.
func withDatabase(ctx context.Context, path string, do func(*sql.DB) error) (schema int, err error) {
	if _, err := os.Lstat(path); err != nil {
		return 0, err
	}
	sub, err := fs.Sub(migrations, "migration")
	if err != nil {
		return 0, err
	}
	steps, err := loadMigrations(sub)
	if err != nil {
		return 0, err
	}
	db, err := sql.Open("sqlite", dsn(path, "rw"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if schema, err = schemaVersion(ctx, db, path, len(steps)); err != nil {
		return 0, err
	}
	if schema == 0 {
		return 0, caisson.Errorf(caisson.Conflict, "%s is empty", path)
	}
	return schema, do(db)
}
