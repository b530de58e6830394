package volumes

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/caisson-dev/caisson"
)

// Reconcile brings the store, the directories and the sandboxes into agreement at startup: it detaches volumes from sandboxes
// that no longer exist, and removes directories without a volume in the background. Call it when the store's sandboxes match
// those of the host, before any other use of the core. A volume without its directory is logged and kept, because an empty
// volume with the same name would hide that data was lost. Entries whose names are not ids of volumes were not created by this
// package and are kept as well, such as a directory that an administrator has moved aside.
func (c *Core) Reconcile(ctx context.Context) error {
	known := map[string]bool{}
	list, err := c.all(ctx)
	if err != nil {
		return err
	}
	for _, v := range list {
		known[string(v.ID)] = true
		data, err := c.openData(v.ID, 0)
		switch {
		case err == nil:
			data.Close()
		case errors.Is(err, fs.ErrNotExist):
			c.Log.ErrorContext(ctx, "the files of a volume are gone from disk; put its directory back, or remove the volume", "volume", v.ID, "name", v.Name, "dir", c.dir(v.ID))
		default:
			return err
		}
		if err := c.detachStale(ctx, v); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(c.top.Name())
	if err != nil {
		return err
	}
	var garbage []string
	for _, e := range entries {
		switch _, err := caisson.ParseID(caisson.VolumePrefix, e.Name()); {
		case known[e.Name()]:
		case err != nil:
			c.Log.WarnContext(ctx, "an entry among the volumes is not a volume; it is kept", "name", e.Name())
		default:
			garbage = append(garbage, e.Name())
		}
	}
	if len(garbage) > 0 {
		c.background.Start(func(ctx context.Context) { c.sweep(ctx, garbage) })
	}
	return nil
}

// detachStale detaches a volume from a sandbox that does not exist or whose spec does not have the volume.
func (c *Core) detachStale(ctx context.Context, v *caisson.Volume) error {
	if v.Sandbox == "" {
		return nil
	}
	sb, err := c.Store.Sandboxes().Get(ctx, caisson.AllAccounts(), string(v.Sandbox))
	if err == nil && sb.Spec.Volume != nil && sb.Spec.Volume.ID == v.ID {
		return nil
	}
	if err := caisson.IgnoreNotFound(err); err != nil {
		return err
	}
	if c.HasProcesses != nil {
		// If processes of the sandbox could not be killed, they may still write to the volume.
		if runs, err := c.HasProcesses(ctx, v.Sandbox); err != nil || runs {
			c.Log.ErrorContext(ctx, "a volume belongs to a sandbox that no longer has it, but whose processes may still run; the volume stays attached until they have ended", "volume", v.ID, "sandbox", v.Sandbox, "err", err)
			return nil
		}
	}
	c.Log.WarnContext(ctx, "a volume was freed whose sandbox is gone", "volume", v.ID, "sandbox", v.Sandbox)
	return c.Attachments().Detach(ctx, v.ID, v.Sandbox)
}

// detachIfSandboxGone detaches a volume from a sandbox that is not in the store, because the rollback of its creation did not
// detach the volume. A sandbox that is being created is stored before it attaches a volume, so it is not mistaken for one that is
// gone.
func (c *Core) detachIfSandboxGone(ctx context.Context, id caisson.ID) error {
	v, err := c.Store.Volumes().Get(ctx, caisson.AllAccounts(), string(id))
	if err != nil || v.Sandbox == "" {
		return err
	}
	if _, err := c.Store.Sandboxes().Get(ctx, caisson.AllAccounts(), string(v.Sandbox)); caisson.KindOf(err) != caisson.NotFound || err == nil {
		return err
	}
	return c.detachStale(ctx, v)
}

// sweep removes directories without a volume: those of removed volumes, and those whose creation a crash has interrupted.
func (c *Core) sweep(ctx context.Context, names []string) {
	for _, name := range names {
		err := c.removeDir(ctx, name)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.Log.ErrorContext(ctx, "a directory of no volume could not be removed; the next start of the daemon tries again", "name", name, "err", err)
		default:
			c.Log.WarnContext(ctx, "removed a directory of no volume", "name", name)
		}
	}
}

// all returns the volumes of all accounts.
func (c *Core) all(ctx context.Context) ([]*caisson.Volume, error) {
	return caisson.ListAll(ctx, c.Store.Volumes(), caisson.AllAccounts(), func(v *caisson.Volume) caisson.ID { return v.ID })
}
