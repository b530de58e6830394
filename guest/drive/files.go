package drive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson/guest/task"
)

// prepare removes and writes the files that the task lists, and changes the current directory to the task's working directory.
func prepare(t *task.Task) error {
	for _, name := range t.Remove {
		if filepath.Clean(name) == "/" {
			return errors.New("the task removes /")
		}
		if err := os.RemoveAll(name); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	for _, f := range t.Files {
		mode := os.FileMode(f.Mode) & os.ModePerm
		if f.Mode == 0 {
			mode = 0o644
		}
		if err := writeFile(f.Path, f.Data, mode); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	if err := os.MkdirAll(t.Workdir, 0o755); err != nil {
		return fmt.Errorf("make the working directory: %w", err)
	}
	if err := os.Chdir(t.Workdir); err != nil {
		return err
	}
	return writeHistory(t)
}

// writeFile writes a file atomically. It replaces an existing file or symbolic link, and does not follow a link.
func writeFile(name, data string, mode os.FileMode) error {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".caisson-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // has no effect once the file has been renamed
	_, err = f.WriteString(data)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
