package volumes

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/caisson-dev/caisson"
)

// Reconcile brings the store, the directories and the sandboxes into agreement after a start: volumes whose sandbox has gone are
// free, and directories of no volume are removed, in the background. Call it when the store's sandboxes are those of the host,
// before anything else uses the core. A volume without its directory is logged and stays: it was somebody's, and an empty one of
// that name in its place would hide that it is lost. What has not the name of a volume was not made here and stays as well, such as
// a directory that somebody has moved aside.
func (c *Core) Reconcile(ctx context.Context) error {
	known := map[string]bool{}
	err := c.each(ctx, func(v *caisson.Volume) error {
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
		return c.settle(ctx, v)
	})
	if err != nil {
		return err
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
			c.Log.WarnContext(ctx, "what is no volume is among the volumes; it stays", "name", e.Name())
		default:
			garbage = append(garbage, e.Name())
		}
	}
	if len(garbage) > 0 {
		c.do(func(ctx context.Context) { c.sweep(ctx, garbage) })
	}
	return nil
}

// settle frees a volume whose sandbox is not there, or has never known that it has it.
func (c *Core) settle(ctx context.Context, v *caisson.Volume) error {
	if v.Sandbox == "" {
		return nil
	}
	sb, err := c.Store.Sandboxes().Get(ctx, caisson.Everyone(), string(v.Sandbox))
	if err == nil && sb.Spec.Volume != nil && sb.Spec.Volume.ID == v.ID {
		return nil
	}
	if err != nil && caisson.KindOf(err) != caisson.NotFound {
		return err
	}
	if c.Runs != nil {
		// What could not be ended still writes.
		if runs, err := c.Runs(ctx, v.Sandbox); err != nil || runs {
			c.Log.ErrorContext(ctx, "the sandbox that has a volume is gone and its processes may not be; the volume is given to nobody until a start of the daemon finds that they are", "volume", v.ID, "sandbox", v.Sandbox, "err", err)
			return nil
		}
	}
	c.Log.WarnContext(ctx, "a volume was freed whose sandbox is gone", "volume", v.ID, "sandbox", v.Sandbox)
	return c.Holds().Leave(ctx, v.ID, v.Sandbox)
}

// settleGone frees a volume whose sandbox is not there any more, though it could not leave: its making was undone in part. One that
// is being made is in the store before it takes a volume.
func (c *Core) settleGone(ctx context.Context, id caisson.ID) error {
	v, err := c.Store.Volumes().Get(ctx, caisson.Everyone(), string(id))
	if err != nil || v.Sandbox == "" {
		return err
	}
	if _, err := c.Store.Sandboxes().Get(ctx, caisson.Everyone(), string(v.Sandbox)); caisson.KindOf(err) != caisson.NotFound || err == nil {
		return err
	}
	return c.settle(ctx, v)
}

// sweep removes directories of no volume: removed ones, and those that a crash has kept from becoming one.
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

// each calls do for every volume, until one fails.
func (c *Core) each(ctx context.Context, do func(*caisson.Volume) error) error {
	f := caisson.Filter{Limit: 1000}
	for {
		page, more, err := c.Store.Volumes().List(ctx, caisson.Everyone(), f)
		if err != nil {
			return err
		}
		for _, v := range page {
			f.After = v.ID
			if err := do(v); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}
