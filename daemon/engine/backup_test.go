package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/backup"
)

// TestBackupOffline tests that a directory that no daemon uses is backed up under its lock, that what a crash has left is removed, and that a
// restored store must be the one that the backup names.
func TestBackupOffline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Config{Data: DataConfig{Dir: dir}}
	if err := Backup(t.Context(), cfg, io.Discard); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("of a directory without a store: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	d, err := openDataDir(t.Context(), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.store.Events().Append(t.Context(), &caisson.Event{Account: "local", Subject: "x", Type: "sandbox.stopped"}); err != nil {
		t.Fatal(err)
	}
	if err := Backup(t.Context(), cfg, io.Discard); caisson.KindOf(err) != caisson.Conflict || !strings.Contains(err.Error(), "caisson daemon stop") {
		t.Errorf("while a daemon uses it: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"backup-1.part", "backup-1.part-journal"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var archive bytes.Buffer
	if err := Backup(t.Context(), cfg, &archive); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "backup*")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := Backup(t.Context(), cfg, failingWriter{}); !errors.Is(err, errFull) {
		t.Errorf("to a writer that fails: %v", err)
	}
	to := filepath.Join(t.TempDir(), "new")
	if _, _, err := Restore(t.Context(), bytes.NewReader(archive.Bytes()), to); err != nil {
		t.Fatal(err)
	}
	restored := Config{Data: DataConfig{Dir: to}, Log: slog.New(slog.DiscardHandler)}
	r, err := openDataDir(t.Context(), &restored)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if report, err := r.store.Events().Verify(t.Context(), ""); err != nil || report.Problem != "" || report.Events != 1 {
		t.Errorf("the events: %+v, %v", report, err)
	}
	if r.instance == d.instance {
		t.Error("the restored directory has the name of the first on the host")
	}
}

// TestRestoreChecksStore tests that a store that is damaged, or that is not what the backup says, is not restored.
func TestRestoreChecksStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Config{Data: DataConfig{Dir: dir}}
	d, err := openDataDir(t.Context(), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, change := range map[string]func(*backup.Source){
		"another schema": func(s *backup.Source) { s.Header.Schema = 1 },
		"no database":    func(s *backup.Source) { s.Store, _ = root.Open("instance") },
	} {
		s, err := openSource(t.Context(), &cfg, root)
		if err != nil {
			t.Fatal(err)
		}
		change(&s)
		var b bytes.Buffer
		err = errors.Join(backup.Write(context.Background(), &b, s), s.Store.Close())
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(t.TempDir(), "new")
		if _, _, err := Restore(t.Context(), &b, to); err == nil {
			t.Errorf("%s: it was restored", name)
		}
		if _, err := os.Stat(to); !os.IsNotExist(err) {
			t.Errorf("%s: something is left: %v", name, err)
		}
	}
}

var errFull = errors.New("full")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errFull }
