package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/runtimetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	r := open(t)
	base := newBase(t)
	runtimetest.Test(t, func(*testing.T) runtimetest.Harness {
		return runtimetest.Harness{
			Runtime: r,
			Guestd:  guestdPath,
			Reopen:  func(t *testing.T) caisson.Runtime { return reopen(t, r.cfg.Dir) },
			Kill: func(t *testing.T, id caisson.ID) {
				s, err := r.get(id)
				if err == nil {
					err = unix.Kill(s.state.Main.PID, unix.SIGKILL)
				}
				if err != nil {
					t.Fatal(err)
				}
			},
			Spec: func(t *testing.T, id caisson.ID, layer string) caisson.RuntimeSpec {
				dir := filepath.Join(r.cfg.Dir, string(id))
				if err := errors.Join(os.Mkdir(dir, 0o700), setLayerOwner(layer, 0o755)); err != nil {
					t.Fatal(err)
				}
				res := caisson.DefaultResources()
				res.Memory, res.Disk = 512<<20, 1<<30
				return caisson.RuntimeSpec{
					Hostname: string(id), UIDBase: testUIDBase, Dir: dir, Resources: res,
					Rootfs: caisson.Rootfs{Digest: "test", Layers: []string{layer, base}},
				}
			},
		}
	})
}

// newBase creates a layer that contains only the directories of every root file system.
func newBase(t *testing.T) string {
	t.Helper()
	layer := t.TempDir()
	for _, d := range []string{"", "usr", "etc", "proc", "dev", "sys", "tmp", "root"} {
		p := filepath.Join(layer, d)
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := setLayerOwner(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return layer
}
