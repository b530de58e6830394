package testbin

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestPath(t *testing.T) {
	t.Setenv("CAISSON_TEST_BIN", "")
	path := Path(t, "caisson-guestd")
	if out, err := exec.Command(path, "test", "echo", "works").Output(); err != nil || string(out) != "works\n" {
		t.Errorf("%s says %q, %v", path, out, err)
	}
	again, err := build("caisson-guestd")
	if err != nil || again != path {
		t.Errorf("built again it is at %q, %v; first it was at %q", again, err, path)
	}
	for p := filepath.Dir(path); p != filepath.Dir(os.TempDir()) && p != "/"; p = filepath.Dir(p) {
		if info, err := os.Stat(p); err != nil || info.Mode()&0o005 != 0o005 {
			t.Errorf("%s is not open to everyone: %v, %v", p, info.Mode(), err)
		}
	}
}

func TestPrebuilt(t *testing.T) {
	dir := t.TempDir()
	want := filepath.Join(dir, "caisson-guestd")
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CAISSON_TEST_BIN", dir)
	if got := Path(t, "caisson-guestd"); got != want {
		t.Errorf("Path = %q, want %q", got, want)
	}
}

func TestPrune(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	for name, used := range map[string]time.Time{"old": now.Add(-2 * retention), "new": now} {
		p := filepath.Join(dir, name)
		if err := os.Mkdir(p, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, used, used); err != nil {
			t.Fatal(err)
		}
	}
	if err := prune(dir, now); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 1 || filepath.Base(left[0]) != "new" {
		t.Errorf("left are %q, %v", left, err)
	}
}
