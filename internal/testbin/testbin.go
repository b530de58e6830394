// Package testbin gives tests the static binaries that start sandboxes: a test binary itself, built with -race and so
// dynamically linked, cannot be executed in gVisor's empty root.
package testbin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// keep is for how long after their last use binaries are kept for the next test process.
const keep = 24 * time.Hour

var (
	mu    sync.Mutex
	built = map[string]string{} // package → path; guarded by mu
)

// Path returns the static binary of command name (caisson, caisson-sentry, caisson-inside, caisson-agent): the one that make has built in
// the directory CAISSON_TEST_BIN, else a fresh build.
func Path(t testing.TB, name string) string {
	t.Helper()
	if dir := os.Getenv("CAISSON_TEST_BIN"); dir != "" {
		if path := filepath.Join(dir, name); isFile(path) {
			return path
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if path := built[name]; isFile(path) {
		return path
	}
	path, err := build(name)
	if err != nil {
		t.Fatalf("build %s: %v", name, err)
	}
	built[name] = path
	return path
}

// build brings the binary up to date in a directory that this user's test processes share, and returns a link to it whose
// path says what is in it: a later build does not change what a running test uses.
func build(name string) (string, error) {
	dir, err := sharedDir()
	if err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // and with it the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	latest := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", latest, "github.com/caisson-dev/caisson/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	sum, err := hashFile(latest)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, sum, name)
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	if err := os.Link(latest, path); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	now := time.Now()
	return path, errors.Join(os.Chtimes(filepath.Dir(path), now, now), prune(dir, now))
}

// sharedDir returns a directory of this user's own. Everyone may look into it: sandboxes have other uids.
func sharedDir() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("caisson-testbin-%d", os.Geteuid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	const others = 0o022
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode()&others != 0 {
		return "", fmt.Errorf("%s is no directory that only this user can write to; remove it", dir)
	}
	return dir, os.Chmod(dir, 0o755)
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)[:8]), err
}

// prune removes what has not been used for long.
func prune(dir string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && now.Sub(info.ModTime()) > keep {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
