package engine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/backup"
	"github.com/caisson-dev/caisson/daemon/sqlite"
	"github.com/caisson-dev/caisson/internal/durable"
)

// storeCopy is the pattern of the names of copies of the store that are being written to an archive.
const storeCopy = "backup-*" + durable.Part

// removeStoreCopies removes the copies of the store that unfinished backups have left after a crash. The caller must hold the
// lock of the data directory.
func removeStoreCopies(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, storeCopy+"*")) // the * also matches SQLite's journals of the copies
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// openSource copies the store and returns the source of an archive that contains this copy. The caller must close s.Store, an
// open file whose name openSource has already removed from the directory.
func openSource(ctx context.Context, cfg *Config, root *os.Root) (s backup.Source, err error) {
	f, err := os.CreateTemp(cfg.Data.Dir, storeCopy)
	if err != nil {
		return s, durable.DiskFull(err)
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name()), f.Close()) }()
	s = backup.Source{Data: root, Config: cfg.Data.ConfigFile, Agents: cfg.Agents.Dir}
	s.Header.Version = cfg.Version
	if s.Header.Schema, err = sqlite.Copy(ctx, filepath.Join(cfg.Data.Dir, backup.StoreName), f.Name()); err != nil {
		return s, err
	}
	s.Store, err = os.Open(f.Name())
	return s, err
}

// Backup implements [caisson.Daemon].
func (e *Engine) Backup(ctx context.Context) (io.ReadCloser, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	// After Ingest the store has all finished calls of models. Calls during the backup are in the archived journals. If a call
	// is not yet in an archived journal, its lease still counts as spent after a restore.
	if err := e.gateway.book.Ingest(ctx); err != nil {
		return nil, err
	}
	source, err := openSource(ctx, &e.cfg, e.data.root)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(errors.Join(backup.Write(ctx, w, source), source.Store.Close()))
	}()
	return &backupStream{r, done}, nil
}

// A backupStream reads an archive while a goroutine writes it.
type backupStream struct {
	*io.PipeReader
	done chan struct{} // closed when the goroutine has ended
}

// Close stops the goroutine and waits for its end.
func (s *backupStream) Close() error {
	err := s.PipeReader.Close()
	<-s.done
	return err
}

// Backup writes a backup of the data directory cfg.Data.Dir to w. It holds the directory's lock until it returns, because no
// daemon may use the directory in the meantime. Of cfg it uses only Data, Agents.Dir and Version. Returns NotFound if there is no
// data directory, and Conflict if a daemon uses it.
func Backup(ctx context.Context, cfg Config, w io.Writer) (err error) {
	if _, err := os.Stat(filepath.Join(cfg.Data.Dir, backup.StoreName)); errors.Is(err, fs.ErrNotExist) {
		return caisson.Errorf(caisson.NotFound, "%s is no data directory of Caisson; name it with --data or CAISSON_DATA", cfg.Data.Dir)
	}
	unlock, err := lockDir(ctx, cfg.Data.Dir, cfg.Data.LockWait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := removeStoreCopies(cfg.Data.Dir); err != nil {
		return err
	}
	root, err := os.OpenRoot(cfg.Data.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	source, err := openSource(ctx, &cfg, root)
	if err != nil {
		return err
	}
	return errors.Join(backup.Write(ctx, w, source), source.Store.Close())
}

// Restore creates the data directory dir from the backup that it reads from r. dir must be empty or not exist. Returns
// Conflict if the restored store is damaged or too new for this build, and Invalid if its schema is not the one in the header.
func Restore(ctx context.Context, r io.Reader, dir string) (*backup.Header, *backup.Manifest, error) {
	return backup.Restore(ctx, r, dir, func(ctx context.Context, dir string, h *backup.Header) error {
		schema, err := sqlite.Check(ctx, filepath.Join(dir, backup.StoreName))
		if err == nil && schema != h.Schema {
			err = caisson.Invalidf("backup", "its store has schema %d, not %d", schema, h.Schema)
		}
		return err
	})
}
