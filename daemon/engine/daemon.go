package engine

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/backup"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/internal/hostcheck"
)

var _ caisson.Daemon = (*Engine)(nil)

// Info implements [caisson.Daemon]: it returns the daemon's version and start, and what its runtime supports.
func (e *Engine) Info(context.Context) (*caisson.Info, error) {
	return &caisson.Info{
		Version: e.cfg.Version, Build: e.process.build, Instance: e.data.instance, Node: e.sandboxes.Node(), StartedAt: e.process.started,
		Runtime: e.drivers.Runtime.Capabilities(), Upload: e.cfg.Agents.Limits.WithDefaults().Workspace,
	}, nil
}

// Status implements [caisson.Daemon]: it returns the daemon's process id, settings and accounts, and counts sandboxes and runs.
func (e *Engine) Status(ctx context.Context) (*caisson.DaemonStatus, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	info, err := e.Info(ctx)
	if err != nil {
		return nil, err
	}
	st := &caisson.DaemonStatus{Info: *info, PID: os.Getpid(), DataDir: e.cfg.Data.Dir, Listen: []string{}}
	for after, more := caisson.ID(""), true; more; {
		var page []*caisson.Sandbox
		if page, more, err = e.data.store.Sandboxes().List(ctx, caisson.AllAccounts(), caisson.Filter{After: after, Limit: statusPage}); err != nil {
			return nil, err
		}
		for _, sb := range page {
			after = sb.ID
			st.Sandboxes++
			switch sb.State {
			case caisson.Running:
				st.Running++
			case caisson.Suspended:
				st.Suspended++
			}
		}
	}
	under := []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}
	for before, more := caisson.ID(""), true; more; {
		var page []*caisson.Run
		if page, more, err = e.data.store.Runs().List(ctx, caisson.AllAccounts(), caisson.RunFilter{States: under, Before: before, Limit: statusPage}); err != nil {
			return nil, err
		}
		for _, r := range page {
			before = r.ID
			if st.Runs++; r.State != caisson.RunQueued && !r.Request.Interactive {
				st.Begun++
			}
		}
	}
	accounts, err := e.data.store.Accounts().List(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range accounts {
		st.Accounts = append(st.Accounts, a.Name)
	}
	if e.cfg.Settings != nil {
		e.cfg.Settings.State(st)
	}
	return st, nil
}

// statusPage is the number of objects that Status reads from the store at once.
const statusPage = 1000

// Reload implements [caisson.Daemon]: it reads the configuration file again.
func (e *Engine) Reload(ctx context.Context) (*caisson.Reloaded, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	if e.cfg.Settings == nil {
		return nil, caisson.Errorf(caisson.Unavailable, "this daemon has no configuration to read again")
	}
	return e.cfg.Settings.Reload(ctx)
}

// SetOffer replaces the offer of providers and models.
func (e *Engine) SetOffer(ctx context.Context, o models.Offer) error {
	return e.gateway.catalog.SetOffer(ctx, o)
}

// DiskUsage implements [caisson.Daemon]: it returns how much disk each kind of object uses.
func (e *Engine) DiskUsage(ctx context.Context) (*caisson.DiskUsage, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	use := &caisson.DiskUsage{}
	layers, err := e.drivers.Images.Layers()
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
	for _, kind := range []string{"programs", "tools", "runs", "ledger"} {
		u, err := measure(kind, filepath.Join(e.cfg.Data.Dir, kind))
		if err != nil {
			return nil, err
		}
		use.Usages = append(use.Usages, u)
	}
	use.Usages = append(use.Usages, measureStore(e.cfg.Data.Dir))
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
			return nil // the file or directory was removed during the walk
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

// measureStore returns the disk space of the store in a data directory, including SQLite's journals.
func measureStore(dir string) caisson.Usage {
	u := caisson.Usage{Kind: "store", Count: 1}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, backup.StoreName+suffix), &st) == nil {
			u.Size += caisson.Size(st.Blocks * 512)
		}
	}
	return u
}

// CollectGarbage implements [caisson.Daemon].
func (e *Engine) CollectGarbage(ctx context.Context) ([]caisson.Garbage, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	return e.sandboxes.CollectGarbage(ctx)
}

// Examine implements [caisson.Daemon]: it checks whether the host meets the requirements of Caisson.
func (e *Engine) Examine(ctx context.Context) ([]caisson.Check, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	return hostcheck.Run(ctx, hostcheck.Config{DataDir: e.cfg.Data.Dir, Probe: Probe{Dir: e.cfg.Data.Dir}}), nil
}

// Idle reports whether the daemon may exit. It may if no sandbox has processes, changes its state or is to be changed at a
// certain time, no run is queued or running, and the daemon has no listener for other machines, for routes or for SSH.
func (e *Engine) Idle(ctx context.Context) (bool, error) {
	if e.gateway.listener != nil || e.gateway.ingress != nil || e.access.ssh.Listening() || e.runs.Live() {
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
