package engine

import (
	"context"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/hostcheck"
)

var _ caisson.Daemon = (*Engine)(nil)

// Info implements [caisson.Daemon].
func (e *Engine) Info(context.Context) (*caisson.Info, error) {
	return &caisson.Info{
		Version: e.cfg.Version, Build: e.build, Instance: e.data.instance, Node: e.sandboxes.Node(), StartedAt: e.started,
		Runtime: e.on.Runtime.Capabilities(),
	}, nil
}

// DiskUsage implements [caisson.Daemon].
func (e *Engine) DiskUsage(ctx context.Context) (*caisson.DiskUsage, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	use := &caisson.DiskUsage{}
	layers, err := e.on.Images.Layers()
	if err != nil {
		return nil, err
	}
	used, err := e.sandboxes.LayersInUse(ctx)
	if err != nil {
		return nil, err
	}
	u := caisson.Usage{Kind: "layers", Count: len(layers)}
	for _, l := range layers {
		u.Size += l.Size
		if !used[l.Path] {
			u.Reclaimable += l.Size
		}
	}
	use.Usages = append(use.Usages, u)
	for _, kind := range []string{"sandboxes", "snapshots"} {
		u, err := measure(kind, filepath.Join(e.cfg.Data.Dir, kind))
		if err != nil {
			return nil, err
		}
		use.Usages = append(use.Usages, u)
	}
	if u, err = e.volumes.Usage(ctx); err != nil {
		return nil, err
	}
	use.Usages = append(use.Usages, u)
	var st unix.Statfs_t
	if err := unix.Statfs(e.cfg.Data.Dir, &st); err != nil {
		return nil, err
	}
	use.Free = caisson.Size(st.Bavail * uint64(st.Bsize))
	use.Total = caisson.Size(st.Blocks * uint64(st.Bsize))
	return use, nil
}

// measure returns the number of objects in dir and the disk space that they use, in bytes.
func measure(kind, dir string) (caisson.Usage, error) {
	u := caisson.Usage{Kind: kind}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed in the meantime
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			u.Size += caisson.Size(st.Blocks * 512)
		}
		if filepath.Dir(path) == dir {
			u.Count++
		}
		return nil
	})
	return u, err
}

// CollectGarbage implements [caisson.Daemon].
func (e *Engine) CollectGarbage(ctx context.Context) ([]caisson.Garbage, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	return e.sandboxes.CollectGarbage(ctx)
}

// Examine implements [caisson.Daemon].
func (e *Engine) Examine(ctx context.Context) ([]caisson.Check, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	return hostcheck.Run(ctx, hostcheck.Config{DataDir: e.cfg.Data.Dir, Probe: Probe{Dir: e.cfg.Data.Dir}}), nil
}

// Idle reports whether the daemon may exit: no sandbox is live, in a transient state or has a deadline, no run is
// queued or running, and no other machine is served.
func (e *Engine) Idle(ctx context.Context) (bool, error) {
	if e.gateway.listener != nil || e.runs.Live() {
		return false, nil
	}
	return e.sandboxes.Idle(ctx)
}

// VerifyAudit implements [caisson.Audit].
func (e *Engine) VerifyAudit(ctx context.Context, head string) (*caisson.AuditReport, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	return e.data.store.Events().Verify(ctx, head)
}
