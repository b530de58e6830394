package gvisor

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testbin"
	"github.com/caisson-dev/caisson/internal/testneed"
)

const testUIDBase = 0x50000000

// open returns a Runtime on a new directory. It is removed with its sandboxes at the end of the test.
func open(t testing.TB) *Runtime {
	t.Helper()
	return openWith(t, nil)
}

// openWith is like open, with a configuration that change, if it is not nil, has modified.
func openWith(t testing.TB, change func(*Config)) *Runtime {
	t.Helper()
	testneed.Root(t)
	dir := filepath.Join(t.TempDir(), "sandboxes")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, group := range groupDirs(testCgroup(dir)) {
			if err := os.Remove(group); err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
		}
	})
	return reopenWith(t, dir, change)
}

// testCgroup returns the cgroup for runtimes on a directory, so that parallel tests have different cgroups.
func testCgroup(dir string) string {
	return fmt.Sprintf("/caisson-test-%d-%x", os.Getpid(), sha256.Sum256([]byte(dir)))[:40]
}

// reopen returns a Runtime on the directory of an earlier one, as after a restart of the daemon.
func reopen(t testing.TB, dir string) *Runtime {
	t.Helper()
	return reopenWith(t, dir, nil)
}

func reopenWith(t testing.TB, dir string, change func(*Config)) *Runtime {
	t.Helper()
	cfg := Config{
		Dir: dir, ToolsDir: filepath.Join(dir, "..", "tools"), Build: "test",
		Programs: Programs{Exe: testbin.Path(t, "caisson-sentry"), Guestd: testbin.Path(t, "caisson-guestd")},
		Cgroup:   testCgroup(dir),
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if change != nil {
		change(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		list, err := r.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, s := range list {
			if err := r.Destroy(context.Background(), s.ID); err != nil {
				t.Error(err)
			}
		}
		r.Close()
	})
	return r
}

// newSpec returns a spec for a sandbox with the host's /usr, and creates its directory.
func newSpec(t testing.TB, r *Runtime, id caisson.ID) caisson.RuntimeSpec {
	t.Helper()
	dir := filepath.Join(r.cfg.Dir, string(id))
	layer := filepath.Join(dir, "layer")
	for _, d := range []string{"", "usr", "etc", "proc", "dev", "sys", "tmp", "root"} {
		p := filepath.Join(layer, d)
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := setLayerOwner(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+d, filepath.Join(layer, d)); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(filepath.Join(layer, d), caisson.LayerUIDBase, caisson.LayerUIDBase); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n", "group": "root:x:0:\nuser:x:1000:\n"} {
		p := filepath.Join(layer, "etc", name)
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := setLayerOwner(p, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	res := caisson.DefaultResources()
	res.Memory, res.Disk = 512<<20, 1<<30
	return caisson.RuntimeSpec{
		Hostname: string(id), UIDBase: testUIDBase, Dir: dir, Resources: res,
		Rootfs: caisson.Rootfs{Digest: "test", Layers: []string{layer}, Binds: []caisson.Bind{{Source: "/usr", Target: "/usr"}}},
	}
}

func run(t testing.TB, r *Runtime, id caisson.ID, argv ...string) (string, caisson.ExitStatus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := r.Exec(ctx, id, caisson.RuntimeExec{Command: argv})
	if err != nil {
		t.Fatalf("exec %q: %v", argv, err)
	}
	defer p.Close()
	errc := make(chan []byte, 1)
	go func() { b, _ := io.ReadAll(p.Stderr()); errc <- b }()
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return string(out) + string(<-errc), st
}

// TestSetsidSurvivesRestore tests leaveExecSession of package sentry: processes of an exec session are killed at a restore,
// unless they have called setsid.
func TestSetsidSurvivesRestore(t *testing.T) {
	t.Parallel()
	r := open(t)
	id, fork := caisson.NewID("sb"), caisson.NewID("sb")
	if err := r.Create(t.Context(), id, newSpec(t, r, id)); err != nil {
		t.Fatal(err)
	}
	run(t, r, id, "/bin/sh", "-c", "(setsid sleep 1000 & sleep 1001 &) >/dev/null 2>&1")
	count := func(id caisson.ID) int {
		list, err := r.Processes(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, p := range list {
			if p.Command == "sleep" {
				n++
			}
		}
		return n
	}
	poll.Until(t, time.Minute, func() bool { return count(id) == 2 })
	image := t.TempDir()
	if err := r.Checkpoint(t.Context(), id, image, true); err != nil {
		t.Fatal(err)
	}
	if n := count(id); n != 2 {
		t.Errorf("original has %d processes after its checkpoint, want 2", n)
	}
	if err := r.Restore(t.Context(), fork, newSpec(t, r, fork), image); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, time.Minute, func() bool { return count(fork) == 1 })
}
