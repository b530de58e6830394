package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
)

// TestWrite: a file that cannot be written completely stays as it was.
func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := durable.WriteJSON(path, []int{1}); err != nil {
		t.Fatal(err)
	}
	err := durable.Write(path, func(f *os.File) error {
		_, err := f.WriteString("part")
		return errors.Join(err, &os.PathError{Op: "write", Path: path, Err: unix.ENOSPC})
	})
	if caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("on a full disk: %v", err)
	}
	data, err := os.ReadFile(path)
	entries, dirErr := os.ReadDir(dir)
	if err != nil || dirErr != nil || string(data) != "[1]" || len(entries) != 1 {
		t.Errorf("the file has %q, the directory %v; %v, %v", data, entries, err, dirErr)
	}
}
