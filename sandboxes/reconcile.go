package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
)

// reconciler finds out what became of what an earlier daemon was doing.
type reconciler struct{ c *Core }

// Reconcile brings store and host into agreement after a start: what was acknowledged is found or accounted for, what was
// under way is finished or undone, what nobody accounts for is removed. netns opens the network namespace of a running
// sandbox, for its wire. It must end before anything else uses the core.
func (c *Core) Reconcile(ctx context.Context, netns func(caisson.ID) (*os.File, error)) ([]caisson.Garbage, error) {
	running := map[caisson.ID]bool{}
	list, err := c.Runtime.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		running[r.ID] = r.Running
	}
	boxes, err := all(ctx, c.Store.Sandboxes(), caisson.Everyone(), func(s *caisson.Sandbox) caisson.ID { return s.ID })
	if err != nil {
		return nil, err
	}
	for _, sb := range boxes {
		if err := (&reconciler{c}).settle(ctx, sb, running[sb.ID]); err != nil {
			return nil, fmt.Errorf("reconcile sandbox %s: %w", sb.ID, err)
		}
	}
	garbage, err := c.CollectGarbage(ctx)
	if err != nil {
		return garbage, err
	}
	boxes, err = all(ctx, c.Store.Sandboxes(), caisson.Everyone(), func(s *caisson.Sandbox) caisson.ID { return s.ID })
	if err != nil {
		return garbage, err
	}
	for _, sb := range boxes {
		if sb.State == caisson.Running {
			if err := (&reconciler{c}).reattach(ctx, sb, netns); err != nil {
				return garbage, fmt.Errorf("reattach the wire of sandbox %s: %w", sb.ID, err)
			}
			c.watches.watch(sb)
		}
		c.deadlines.arm(sb)
	}
	return garbage, (&reconciler{c}).refillPools(ctx)
}

func (r *reconciler) reattach(ctx context.Context, sb *caisson.Sandbox, netns func(caisson.ID) (*os.File, error)) error {
	if r.c.Wires == nil {
		return nil
	}
	ns, err := netns(sb.ID)
	if err != nil {
		return err
	}
	defer ns.Close()
	return r.c.Wires.Reattach(ctx, sb.ID, ns)
}

func (r *reconciler) refillPools(ctx context.Context) error {
	tpls, err := all(ctx, r.c.Store.Templates(), caisson.Everyone(), func(t *caisson.Template) caisson.ID { return caisson.ID(t.Name) })
	for _, t := range tpls {
		if t.Pool > 0 {
			r.c.pool.refill(t)
		}
	}
	return err
}

// lost is why a sandbox failed that should be running and is not.
const lost = "the sandbox ended while no daemon was running (or the host restarted); what it had not saved by a pause, stop or snapshot is lost"

// settle decides what became of one sandbox.
func (r *reconciler) settle(ctx context.Context, sb *caisson.Sandbox, running bool) error {
	paused := existing(r.c.inDir(sb.ID, pauseDir)) != ""
	files := existing(r.c.inDir(sb.ID, filesTar)) != ""
	become := func(s caisson.State, reason string) error {
		if s != caisson.Running {
			if err := r.c.Runtime.Destroy(ctx, sb.ID); err != nil {
				return err
			}
		}
		updated, err := r.c.setState(ctx, sb.ID, s, func(x *caisson.Sandbox) error {
			if reason != "" {
				x.Reason = reason
			}
			return nil
		})
		if err == nil {
			r.c.event(ctx, updated, "sandbox."+string(s), map[string]string{"reconciled": string(sb.State)})
		}
		return err
	}
	switch sb.State {
	case caisson.Creating, caisson.Removing:
		// Nobody was told that it exists; or somebody was told that it will not.
		return r.c.Sandboxes().remove(ctx, sb.ID, "the daemon ended during "+string(sb.State))
	case caisson.Running:
		if !running {
			return become(caisson.Failed, lost)
		}
		return nil
	case caisson.Starting:
		if files {
			return become(caisson.Stopped, "")
		}
		return become(caisson.Created, "")
	case caisson.Resuming:
		if paused {
			return become(caisson.Paused, "")
		}
		if running { // all was done but the note
			return become(caisson.Running, "")
		}
		return become(caisson.Failed, lost)
	case caisson.Pausing:
		if paused {
			return become(caisson.Paused, "")
		}
		return r.settleRunning(ctx, sb, running, become)
	case caisson.Stopping:
		// A stop saves files before it ends anything, so either they are here or it still runs.
		if !running && files {
			return become(caisson.Stopped, "")
		}
		if !running && paused {
			return become(caisson.Paused, "")
		}
		return r.settleRunning(ctx, sb, running, become)
	case caisson.Paused:
		if !paused {
			return become(caisson.Failed, "its pause is gone from disk")
		}
		if running { // ended too late
			return become(caisson.Paused, "")
		}
	}
	return nil
}

// settleRunning is for a sandbox that may stand still because of a change that did not happen.
func (r *reconciler) settleRunning(ctx context.Context, sb *caisson.Sandbox, running bool, become func(caisson.State, string) error) error {
	if !running {
		return become(caisson.Failed, lost)
	}
	// Thawing what is not frozen is an error, and no harm.
	_ = r.c.Runtime.Thaw(ctx, sb.ID)
	return become(caisson.Running, "")
}

// CollectGarbage removes what belongs to this data directory and to no object of the store, and returns it.
func (c *Core) CollectGarbage(ctx context.Context) ([]caisson.Garbage, error) {
	var found []caisson.Garbage
	boxes, err := all(ctx, c.Store.Sandboxes(), caisson.Everyone(), func(s *caisson.Sandbox) caisson.ID { return s.ID })
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, sb := range boxes {
		known[string(sb.ID)] = true
	}
	list, err := c.Runtime.List(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]caisson.ID, 0, len(list))
	for _, r := range list {
		ids = append(ids, r.ID)
	}
	remains, err := c.Runtime.Remains()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, id := range append(ids, remains...) {
		if known[string(id)] || c.inUse(id) {
			continue
		}
		errs = append(errs, c.host.halt(ctx, id))
		found = append(found, caisson.Garbage{Kind: "process", Name: string(id)})
	}
	dirs, err := (&reconciler{c}).sweep("sandboxes", func(name string) bool { return known[name] || c.inUse(caisson.ID(name)) })
	errs = append(errs, err)
	found = append(found, dirs...)
	snaps, err := all(ctx, c.Store.Snapshots(), caisson.Everyone(), func(s *caisson.Snapshot) caisson.ID { return s.ID })
	if err != nil {
		return found, errors.Join(append(errs, err)...)
	}
	for _, s := range snaps {
		known[string(s.ID)] = true
	}
	dirs, err = (&reconciler{c}).sweep("snapshots", func(name string) bool { return known[name] || c.inUse(caisson.ID(name)) })
	found = append(found, dirs...)
	return found, errors.Join(append(errs, err)...)
}

// inUse reports whether something under way uses this id; see hide.
func (c *Core) inUse(id caisson.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hidden[id]
}

// sweep removes the directories below kind that keep does not know, and half-written ones.
func (r *reconciler) sweep(kind string, keep func(name string) bool) (found []caisson.Garbage, err error) {
	parent := filepath.Join(r.c.Dir, kind)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if keep(e.Name()) {
			errs = append(errs, sweepParts(filepath.Join(parent, e.Name())))
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(parent, e.Name())))
		found = append(found, caisson.Garbage{Kind: "directory", Name: filepath.Join(kind, e.Name())})
	}
	return found, errors.Join(errs...)
}

// sweepParts removes what a crash left half-written.
func sweepParts(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), partSuffix) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Idle reports whether no sandbox needs a daemon: none runs, changes, or has a deadline.
func (c *Core) Idle(ctx context.Context) (bool, error) {
	boxes, err := all(ctx, c.Store.Sandboxes(), caisson.Everyone(), func(s *caisson.Sandbox) caisson.ID { return s.ID })
	if err != nil {
		return false, err
	}
	for _, sb := range boxes {
		if sb.State.Live() || sb.State.Transient() || sb.PauseAt != nil || sb.RemoveAt != nil {
			return false, nil
		}
	}
	return true, nil
}
