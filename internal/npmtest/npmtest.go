// Package npmtest installs packages from npm for tests: once for all test processes of a user, below the user's cache directory.
package npmtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/testneed"
)

// installTimeout limits one installation, including the wait for another process's installation.
const installTimeout = 10 * time.Minute

// Dir returns a directory that contains files (package.json, package-lock.json and others, by name) and the
// node_modules that "npm ci" with the additional arguments args installs. Scripts of packages are not run. The
// directory is shared and must not be written to. The test is skipped if npm or Node is not installed.
func Dir(t testing.TB, name string, files map[string]string, args ...string) string {
	t.Helper()
	for _, program := range []string{"npm", "node"} {
		if _, err := exec.LookPath(program); err != nil {
			testneed.Skip(t, "node", err.Error())
		}
	}
	dir, err := install(name, files, args)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// install returns the directory of [Dir] and installs the packages in it if it does not exist.
func install(name string, files map[string]string, args []string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(sum, "%q %q\n", name, files[name])
	}
	fmt.Fprintf(sum, "%q\n", args)
	dir := filepath.Join(cache, "caisson-test", name+"-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // Closing the file releases the lock.
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// Create the directory under a temporary name and rename it, so that it is either complete or absent.
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte(data), 0o644); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", append([]string{"ci", "--ignore-scripts", "--no-audit", "--no-fund"}, args...)...)
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	return dir, os.Rename(tmp, dir)
}

// Files returns the files of a directory as an argument for [Dir].
func Files(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	return files
}
