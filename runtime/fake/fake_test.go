package fake_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
	"github.com/caisson-dev/caisson/runtime/runtimetest"
)

func TestRuntime(t *testing.T) {
	runtimetest.Test(t, func(t *testing.T) runtimetest.Harness {
		r := open(t, t.TempDir())
		return runtimetest.Harness{
			Runtime: r, Inside: guest.Path,
			Spec: func(t *testing.T, id caisson.ID, layer string) caisson.RuntimeSpec { return spec(t, id, layer) },
			Kill: func(t *testing.T, id caisson.ID) {
				if err := r.Kill(id); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func open(t *testing.T, dir string) *fake.Runtime {
	t.Helper()
	r, err := fake.New(fake.Config{Dir: dir, Programs: guest.Programs()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func spec(t *testing.T, id caisson.ID, layers ...string) caisson.RuntimeSpec {
	t.Helper()
	dir := filepath.Join(t.TempDir(), string(id))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return caisson.RuntimeSpec{
		Hostname: string(id), Dir: dir, Resources: caisson.DefaultResources(), Rootfs: caisson.Rootfs{Layers: layers},
	}
}
