package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/caisson-dev/caisson"
)

// applicationID marks a database as Caisson's: it is the application ID in the header of the file, "Cais" in ASCII.
const applicationID = 0x43616973

// migrate brings the database to the newest schema, that of the last file in migrations, with all steps in one transaction. It
// leaves a database that cannot be migrated unchanged, and returns a Conflict error with the reason. If any step was applied and
// finish is not nil, finish completes the migration in the same transaction.
func migrate(ctx context.Context, db *sql.DB, path string, migrations fs.FS, finish migrationFinisher, log *slog.Logger) error {
	steps, err := loadMigrations(migrations)
	if err != nil {
		return err
	}
	// The version is checked before writing: even the journal mode of a file that is not Caisson's must not be changed.
	if _, err := schemaVersion(ctx, db, path, len(steps)); err != nil {
		return err
	}
	if err := checkIntegrity(ctx, db, path); err != nil {
		return err
	}
	if err := enableWAL(ctx, db); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	// The version is read again inside the transaction, which holds the write lock: another process may have migrated the
	// database.
	from, err := schemaVersion(ctx, tx, path, len(steps))
	if err != nil || from == len(steps) {
		return err
	}
	for i, step := range steps[from:] {
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("migrate the database to schema %d: %w", from+i+1, err)
		}
	}
	if finish != nil {
		if err := finish(ctx, tx, from); err != nil {
			return err
		}
	}
	stamp := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, len(steps))
	if _, err := tx.ExecContext(ctx, stamp); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if from > 0 {
		log.InfoContext(ctx, "database upgraded", "from", from, "to", len(steps))
	}
	return nil
}

// A migrationFinisher completes a migration from the schema version from, which is 0 for a new database.
type migrationFinisher func(ctx context.Context, tx *sql.Tx, from int) error

// loadMigrations returns the contents of the files 0001.sql, 0002.sql and so on. The element with index i migrates from schema i
// to schema i+1.
func loadMigrations(fsys fs.FS) ([]string, error) {
	files, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, err
	}
	var steps []string
	for i, f := range files {
		if want := fmt.Sprintf("%04d.sql", i+1); f.Name() != want {
			return nil, fmt.Errorf("migration %s should be %s: the numbers must be consecutive", f.Name(), want)
		}
		step, err := fs.ReadFile(fsys, f.Name())
		if err != nil {
			return nil, err
		}
		steps = append(steps, string(step))
	}
	return steps, nil
}

// querier is implemented by *sql.DB and *sql.Tx.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// schemaVersion returns the version of the schema, or 0 for an empty database. It returns a Conflict error if this build cannot
// use the database. newest is the newest version that this build knows.
func schemaVersion(ctx context.Context, q querier, path string, newest int) (int, error) {
	var id, version, objects int
	for _, v := range []struct {
		query string
		into  *int
	}{
		{"PRAGMA application_id", &id},
		{"PRAGMA user_version", &version},
		{"SELECT count(*) FROM sqlite_schema", &objects},
	} {
		if err := q.QueryRowContext(ctx, v.query).Scan(v.into); err != nil {
			return 0, invalidDatabase(err, path)
		}
	}
	switch {
	case id == 0 && version == 0 && objects == 0:
		return 0, nil
	case id != applicationID || version < 1:
		return 0, caisson.Errorf(caisson.Conflict, "%s is not a database of caisson; move it away or use another --data", path)
	case version > newest:
		return 0, caisson.Errorf(caisson.Conflict, "the data directory was written by a newer Caisson (schema %d, this build knows %d); upgrade caisson or use another --data", version, newest)
	}
	return version, nil
}

// checkIntegrity reads the whole database once to detect damage, and returns a Conflict error if it is damaged.
func checkIntegrity(ctx context.Context, q querier, path string) error {
	var result string
	if err := q.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&result); err != nil {
		return invalidDatabase(err, path)
	}
	if result != "ok" {
		return invalidDatabase(fmt.Errorf("quick_check: %s", result), path)
	}
	return nil
}

// invalidDatabase returns a Conflict error that the file at path is damaged or not a database. It returns err unchanged if err is
// an error of SQLite with another cause.
func invalidDatabase(err error, path string) error {
	if resultCode(err) != 0 && !isCorrupt(err) {
		return err
	}
	return caisson.Wrap(err, caisson.Conflict, "%s is damaged or not a database; restore it from a backup or use another --data", path)
}

// enableWAL sets the journal mode to write-ahead log, in which readers and the writer do not block each other, and a commit is
// one sequential write and one sync. SQLite stores the mode in the file.
func enableWAL(ctx context.Context, q querier) error {
	var mode string
	if err := q.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return caisson.Errorf(caisson.Conflict, "the file system of the data directory cannot share memory between processes; use a --data on a local disk")
	}
	return nil
}
