// Package testbin gives tests the static binaries that start sandboxes: a test binary itself, built with -race and so
// dynamically linked, cannot be executed in gVisor's empty root.
package testbin

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var (
	mu    sync.Mutex
	built = map[string]string{} // package → path; guarded by mu
)

// Path returns the static binary of command name (caisson, caisson-sentry, caisson-inside): the one that make has built in
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
	dir, err := os.MkdirTemp("", "caisson-testbin-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/caisson-dev/caisson/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	built[name] = path
	return path
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
