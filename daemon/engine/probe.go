package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor"
)

// Probe checks whether gVisor works on this machine with one of its platforms, such as systrap: it runs a program in a sandbox
// that contains only Caisson's own files. It implements hostcheck.Probe.
type Probe struct {
	Dir string // working directory, in which nothing is left; "" is the system's temporary directory
}

// Probe returns nil if gVisor can run a program on the platform ("systrap" or "ptrace"), and otherwise the reason why it cannot.
func (p Probe) Probe(ctx context.Context, platform string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("only root can check it")
	}
	dir, err := os.MkdirTemp(p.Dir, "probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs, err := openPrograms(filepath.Join(dir, "programs"))
	if err != nil {
		return err
	}
	r, err := gvisor.New(gvisor.Config{
		Dir: filepath.Join(dir, "sandboxes"), Programs: programs.set, Find: programs.Find, ToolsDir: filepath.Join(dir, "tools"),
		Cgroup: "/caisson/probe-" + string(caisson.NewID(caisson.InstancePrefix)), Platform: platform, Build: programs.current,
	})
	if err != nil {
		return err
	}
	defer r.Close()
	id := caisson.NewID(caisson.SandboxPrefix)
	sandbox := filepath.Join(dir, "sandboxes", string(id))
	layer := filepath.Join(sandbox, "layer")
	if err := os.MkdirAll(layer, 0o755); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(layer, 0o755), os.Chown(layer, caisson.LayerUIDBase, caisson.LayerUIDBase)); err != nil {
		return err
	}
	res := caisson.DefaultResources()
	res.Memory, res.Disk = 128<<20, 16<<20
	defer func() { err = errors.Join(err, r.Destroy(context.WithoutCancel(ctx), id)) }()
	err = r.Create(ctx, id, caisson.RuntimeSpec{
		Hostname: "probe", UIDBase: workUID, Dir: sandbox, Resources: res, Rootfs: caisson.Rootfs{Layers: []string{layer}},
	})
	if err != nil {
		return err
	}
	proc, err := r.Exec(ctx, id, caisson.RuntimeExec{Command: []string{"/.caisson/init", "-"}})
	if err != nil {
		return err
	}
	defer proc.Close()
	status, err := proc.Wait(ctx)
	if err == nil && !status.Success() {
		err = fmt.Errorf("a program %s", status)
	}
	return err
}
