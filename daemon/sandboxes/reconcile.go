package sandboxes

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/guesttree"
)

// reconciler makes store and host consistent when the daemon starts.
type reconciler struct {
	runtime    lister          // lists the sandboxes on the host
	states     states          // stored records of sandboxes
	resolver   *resolver       // determines outcomes of interrupted changes
	garbage    *garbage        // removes what belongs to no object in the store
	network    network         // configures wires and creates budgets
	watches    *watches        // monitors running sandboxes
	deadlines  *deadlines      // timers for TTLs and autoPause
	missing    *missingObjects // removes objects without files from the store
	pools      *pools          // manages pools of sandboxes
	unresolved *idSet          // sandboxes whose last change has an outcome that is not stored
	log        *slog.Logger
}

// reconcile makes store and host consistent, and returns what it removed. netns opens the network namespace of a running sandbox.
func (r *reconciler) reconcile(ctx context.Context, netns func(caisson.ID) (*os.File, error)) ([]caisson.Garbage, error) {
	list, err := r.runtime.List(ctx)
	if err != nil {
		return nil, err
	}
	exist := map[caisson.ID]caisson.RuntimeSandbox{}
	for _, x := range list {
		exist[x.ID] = x
	}
	boxes, err := r.states.list(ctx, caisson.AllAccounts())
	if err != nil {
		return nil, err
	}
	for _, sb := range boxes {
		if err := r.resolver.reconcile(ctx, sb, exist[sb.ID]); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			// One sandbox that cannot be reconciled must not make the others unavailable. It can still be removed, and its next
			// change tries to reconcile it again.
			r.unresolved.set(sb.ID, true)
			r.log.ErrorContext(ctx, "a sandbox could not be reconciled", "sandbox", sb.ID, "state", sb.State, "err", err)
		}
	}
	garbage, err := r.garbage.collect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return garbage, context.Cause(ctx)
		}
		r.log.ErrorContext(ctx, "not everything that an earlier daemon left could be removed; caisson gc tries again", "err", err)
	}
	boxes, err = r.states.list(ctx, caisson.AllAccounts())
	if err != nil {
		return garbage, err
	}
	for _, sb := range boxes {
		if hasWire(sb) {
			if err := r.network.reattach(ctx, sb, netns); err != nil {
				// The sandbox may have died just now, which its watch detects. Otherwise it has no network access, which is safe.
				r.log.ErrorContext(ctx, "the wire of a sandbox could not be reattached", "sandbox", sb.ID, "err", err)
				r.states.event(ctx, sb, "sandbox.disconnected", nil)
			}
			r.watches.watch(sb)
		}
		r.deadlines.arm(sb)
	}
	return garbage, nil
}

// garbage finds and removes processes and directories on the host that belong to no object of the store.
type garbage struct {
	runtime interface {
		lister
		Remains() ([]caisson.ID, error)
	}
	states    states // stored records of sandboxes
	snapshots caisson.Table[caisson.Snapshot]
	dirs      dirs       // paths and files in the data directory
	unstored  *idSet     // ids of sandboxes and captures in use that are not in the store
	leftovers *idSet     // sandboxes that could not be stopped, or whose resources could not be freed
	processes *processes // starts and kills processes of sandboxes
}

// collect removes the processes and directories that belong to no object of the store, and returns them.
func (g *garbage) collect(ctx context.Context) ([]caisson.Garbage, error) {
	// The host is read first, then g.unstored, then the store. An id is put into g.unstored or the store before anything with
	// this id is created on the host. What was found on the host, and whose id is in neither of them afterwards, is garbage.
	list, err := g.runtime.List(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := g.runtime.Remains()
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		ids = append(ids, r.ID)
	}
	ids = append(ids, g.leftovers.list()...)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var names []string // paths of directories, relative to the data directory
	for _, kind := range []string{"sandboxes", "snapshots"} {
		entries, err := os.ReadDir(filepath.Join(g.dirs.root, kind))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			names = append(names, filepath.Join(kind, e.Name()))
		}
	}
	known, err := g.knownIDs(ctx)
	if err != nil {
		return nil, err
	}
	var found []caisson.Garbage
	var errs []error
	for _, id := range ids {
		if !known[id] {
			errs = append(errs, g.processes.halt(ctx, id))
			found = append(found, caisson.Garbage{Kind: "process", Name: string(id)})
		}
	}
	for _, name := range names {
		// The directory of a snapshot that is being written has a suffix; it is kept if the snapshot's id is known.
		id := strings.TrimSuffix(filepath.Base(name), partSuffix)
		if !known[caisson.ID(id)] {
			errs = append(errs, guesttree.Remove(context.Background(), filepath.Join(g.dirs.root, name)))
			found = append(found, caisson.Garbage{Kind: "directory", Name: name})
		}
	}
	return found, errors.Join(errs...)
}

// knownIDs returns the ids of the sandboxes and snapshots in the store, and of the sandboxes and captures that are in use
// although they are not in the store, such as stand-ins.
func (g *garbage) knownIDs(ctx context.Context) (map[caisson.ID]bool, error) {
	known := map[caisson.ID]bool{}
	for _, id := range g.unstored.list() {
		known[id] = true
	}
	boxes, err := g.states.list(ctx, caisson.AllAccounts())
	if err != nil {
		return nil, err
	}
	snaps, err := caisson.ListAll(ctx, g.snapshots, caisson.AllAccounts(), snapshotID)
	if err != nil {
		return nil, err
	}
	for _, s := range boxes {
		known[s.ID] = true
	}
	for _, s := range snaps {
		known[s.ID] = true
	}
	return known, nil
}

// programsInUse returns the ids of the sets of programs that sandboxes and snapshots of any account depend on.
func (g *garbage) programsInUse(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	boxes, err := g.states.list(ctx, caisson.AllAccounts())
	if err != nil {
		return nil, err
	}
	for _, sb := range boxes {
		used[sb.Build] = true
	}
	snapshots, err := caisson.ListAll(ctx, g.snapshots, caisson.AllAccounts(), snapshotID)
	for _, s := range snapshots {
		used[s.Depends.Build] = true
	}
	return used, err
}
