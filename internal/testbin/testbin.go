// Package testbin provides tests with the static binaries that start sandboxes: a test binary itself is built with
// -race and so dynamically linked, and cannot be executed in gVisor's empty root.
package testbin

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// retention is the time after the last use for which binaries are kept for later test processes.
const retention = 24 * time.Hour

var (
	mu    sync.Mutex
	built = map[string]string{} // path of the binary by package; guarded by mu
)

// Path returns the static binary of command name (caisson, caisson-sentry, caisson-guestd, caisson-agent,
// caisson-worker): the one that make has built in the directory CAISSON_TEST_BIN, otherwise a fresh build.
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

// Run runs the tests of a package like [testing.M.Run]. As root, it sets *self to the path of the package's test binary
// in a form that can be executed in an empty root: the running binary if it is static, otherwise the same built without
// cgo and the race detector.
func Run(m *testing.M, self *string) (code int) {
	if os.Geteuid() == 0 {
		path, remove, err := buildSelf()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer remove()
		*self = path
	}
	return m.Run()
}

// buildSelf returns the path of a static binary of the current test package: the running binary if it is static, otherwise a
// new build, which remove deletes.
func buildSelf() (path string, remove func(), err error) {
	if isStatic("/proc/self/exe") {
		return "/proc/self/exe", func() {}, nil
	}
	dir, err := os.MkdirTemp("", "caisson-testbin-self-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	path = filepath.Join(dir, "self")
	cmd := exec.Command("go", "test", "-c", "-trimpath", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build the test binary without cgo: %w\n%s", err, out)
	}
	// Programs that run as another user must be able to execute the binary.
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.Chmod(path, 0o755)); err != nil {
		remove()
		return "", nil, err
	}
	return path, remove, nil
}

// isStatic reports whether the program at path needs no dynamic linker.
func isStatic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// build updates the binary in a directory that this user's test processes share, and returns a link to it whose path
// contains the hash of its content: a later build does not change the binary that a running test uses.
func build(name string) (string, error) {
	dir, err := sharedDir()
	if err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // Closing the file releases the lock.
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

// sharedDir returns a directory that only this user can write to. All users can read it, because sandboxes have other uids.
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

// prune removes binaries whose last use was longer ago than retention.
func prune(dir string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && now.Sub(info.ModTime()) > retention {
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
