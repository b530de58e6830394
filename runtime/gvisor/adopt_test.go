package gvisor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// mountDir returns a directory owned by an unprivileged user, and a writable mount of it.
func mountDir(t *testing.T, target string) (string, caisson.RuntimeMount) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chown(dir, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return dir, caisson.RuntimeMount{Source: f, Target: target, Writable: true}
}

// TestAdoption checks a sandbox whose command exits after one daemon has stopped and before the next one starts.
func TestAdoption(t *testing.T) {
	t.Parallel()
	first := open(t)
	dir, mount := mountDir(t, "/tmp/shared")
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := newSpec(t, first, id)
	spec.Mounts = []caisson.RuntimeMount{mount}
	spec.Command = []string{"/bin/sh", "-c", "while ! test -e /tmp/shared/go; do sleep 0.01; done; touch /tmp/shared/done; exit 9"}
	create(t, first, id, spec)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, time.Minute, func() bool { return exists(filepath.Join(dir, "done")) })

	second := reopen(t, first.cfg.Dir)
	list, err := second.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || !list[0].Running {
		t.Fatalf("the next daemon lists %+v, %v", list, err)
	}
	if out, _ := run(t, second, id, "/bin/echo", "alive"); out != "alive\n" {
		t.Errorf("the sandbox says %q", out)
	}
	if st, err := second.WaitCommand(t.Context(), id); err != nil || st != (caisson.ExitStatus{Code: 9}) {
		t.Errorf("the command ended with %+v, %v", st, err)
	}
	done := second.Done(id)
	if err := second.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	<-done
	wantNothing(t, second, id, spec)
}

// TestAdoptFrozen checks that a second daemon detects that a sandbox is frozen, and a third that it is not.
func TestAdoptFrozen(t *testing.T) {
	t.Parallel()
	first := open(t)
	s, _ := start(t, first, "/bin/sleep", "1000")
	if err := first.Freeze(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	wantConflict := func(what string, err error) {
		t.Helper()
		if caisson.KindOf(err) != caisson.Conflict {
			t.Errorf("%s: %v, want a conflict", what, err)
		}
	}
	second := reopen(t, first.cfg.Dir)
	_, err := second.Exec(t.Context(), s.id, caisson.RuntimeExec{Command: []string{"/bin/true"}})
	wantConflict("exec while frozen", err)
	wantConflict("second freeze", second.Freeze(t.Context(), s.id))
	if err := second.Thaw(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	third := reopen(t, first.cfg.Dir)
	wantConflict("thaw of what is not frozen", third.Thaw(t.Context(), s.id))
	if out, _ := run(t, third, s.id, "/bin/echo", "alive"); out != "alive\n" {
		t.Errorf("the sandbox says %q", out)
	}
}

// TestRemains removes the directory of a running sandbox.
func TestRemains(t *testing.T) {
	t.Parallel()
	first := open(t)
	s, spec := start(t, first, "/bin/sleep", "1000")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(spec.Dir); err != nil {
		t.Fatal(err)
	}
	second := reopen(t, first.cfg.Dir)
	if list, err := second.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("a sandbox without a directory is listed: %v, %v", list, err)
	}
	remains, err := second.Remains()
	if err != nil || !slices.Equal(remains, []caisson.ID{s.id}) {
		t.Errorf("Remains = %v, %v", remains, err)
	}
	if err := second.Destroy(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	wantNothing(t, second, s.id, spec)
}
