package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/caisson-dev/caisson"
)

// A plan describes how a sandbox is created. It is resolved once, from a request to create, fork or restore a sandbox, and
// executed by [creator]. A part of it is stored until the sandbox has been created, so that a crash during this can be undone.
type plan struct {
	sandbox   *caisson.Sandbox          // record of the sandbox, in the state Creating
	from      *origin                   // what the sandbox is forked from; nil for a new sandbox
	dir       string                    // directory of the capture that the sandbox is forked from
	start     bool                      // whether the processes of the sandbox are started
	workspace *caisson.WorkspaceRequest // requested workspace; nil for none
	handles   []caisson.Handle          // descriptors of the host directories in the sandbox's mounts
	// If randomness is "openssl", OpenSSL's random generators in restored processes reseed.
	randomness string
	request    recheckedFields // fields of the request that are validated again
}

// store sets Plan of the sandbox to the part of the plan that is stored with the sandbox.
func (p *plan) store() {
	p.sandbox.Plan = &caisson.Plan{Version: caisson.PlanVersion, Start: p.start}
	if p.from != nil {
		p.sandbox.Plan.From, p.sandbox.Plan.Capture, p.sandbox.Plan.Memory = p.from.id, p.from.capture, p.from.memory
	}
	if p.workspace != nil {
		p.sandbox.Plan.Workspace = p.workspace.Kind
	}
}

// recheckedFields contains the fields of a request that [creator.recheck] validates again before the plan is executed, because
// rights, policies and limits may have changed in the meantime.
type recheckedFields struct {
	policy   *caisson.Policy     // requested policy
	models   *caisson.ModelGrant // requested grant of models
	assigned *caisson.Assignment // run that the sandbox serves; nil for none
	mounts   []caisson.Mount     // requested mounts, without that of the workspace
}

// planner resolves requests into plans.
type planner struct {
	catalog    catalog                                       // reads templates, including the built-in one
	images     *ImageService                                 // finds and pulls images
	holds      interface{ ProtectLayers() (release func()) } // protects layers from pruning until release is called
	snapshots  caisson.Table[caisson.Snapshot]
	network    network          // configures wires and creates budgets
	workspaces *workspaces      // workspaces and volumes of sandboxes
	dirs       dirs             // paths and files in the data directory
	node       string           // name of this machine
	programs   caisson.Programs // sets of programs that this daemon supports
}

// create resolves a request to create a sandbox. The sandbox's layers are protected from pruning until the caller calls
// release, which it must do once the sandbox is in the store.
func (p *planner) create(ctx context.Context, req *caisson.CreateRequest) (pl *plan, release func(), err error) {
	if err := p.check(ctx, req); err != nil {
		return nil, nil, err
	}
	if req.Snapshot == "" {
		return p.fresh(ctx, req)
	}
	pl, err = p.restore(ctx, req)
	return pl, func() {}, err
}

// check checks everything about a request to create a sandbox that does not depend on the state of the host: its form and limits,
// the directories and workspace that the caller may use, policy and models, and the run that the sandbox is assigned to. The
// host's capacity is checked by [admission.admit], and money by the lease of each call of a model.
func (p *planner) check(ctx context.Context, req *caisson.CreateRequest) error {
	if err := validateCreate(req); err != nil {
		return err
	}
	if err := checkDirectories(ctx, req); err != nil {
		return err
	}
	if err := errors.Join(p.workspaces.check(ctx, req.Workspace, req.Mounts), checkPlaceholder(req)); err != nil {
		return err
	}
	if err := p.network.check(ctx, "", req.Policy, req.Models); err != nil {
		return err
	}
	return p.network.checkAssignment(ctx, req.Assigned)
}

// fresh resolves a request into the plan of a sandbox that is not a fork. The sandbox's layers are protected from pruning until
// the caller calls release, which it must do once the sandbox is in the store.
func (p *planner) fresh(ctx context.Context, req *caisson.CreateRequest) (pl *plan, release func(), err error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	t, err := p.catalog.get(ctx, cmp.Or(req.Template, caisson.HostTemplate))
	if err != nil {
		return nil, nil, err
	}
	if req.Image != "" {
		t.Image, t.Built, t.Setup = req.Image, nil, nil
	}
	if len(t.Setup) > 0 && t.Built == nil {
		return nil, nil, caisson.Errorf(caisson.Conflict, "template %s has set-up steps and has not been built; run caisson template build %s", t.Name, t.Name)
	}
	unprotect := p.holds.ProtectLayers()
	defer func() {
		if err != nil {
			unprotect()
		}
	}()
	img, err := p.images.image(ctx, t.Image)
	if err != nil {
		return nil, nil, err
	}
	rootfs := img.Rootfs
	if t.Built != nil {
		rootfs = t.Built.Rootfs
	}
	sb := &caisson.Sandbox{
		ID: caisson.NewID(caisson.SandboxPrefix), Account: caller.Account, Name: req.Name, Template: t.Name,
		State: caisson.Creating, Labels: labels(t.Labels, req.Labels), Spec: resolve(t, img, rootfs, req), Rootfs: rootfs, Assigned: req.Assigned,
		Node: p.node, Build: p.programs.Current, CreatedAt: now(), ChangedAt: now(),
	}
	pl = &plan{
		sandbox: sb, start: !req.NoStart, workspace: req.Workspace,
		request: recheckedFields{req.Policy, req.Models, req.Assigned, req.Mounts},
	}
	sb.Spec.Mounts, pl.handles = addDirectMount(req.Workspace, req.Mounts, req.Directories)
	sb.Spec.WorkspaceAt = req.Placeholder
	pl.store()
	return pl, unprotect, nil
}

// restore resolves a request to create a sandbox from a snapshot. The sandbox is a fork of the snapshot.
func (p *planner) restore(ctx context.Context, req *caisson.CreateRequest) (*plan, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	snap, err := p.snapshots.Get(ctx, in, string(req.Snapshot))
	if err != nil {
		return nil, err
	}
	override(&snap.Spec.TTL, req.TTL)
	override(&snap.Spec.HardTTL, req.HardTTL)
	snap.Spec.Randomness = cmp.Or(req.Randomness, snap.Spec.Randomness)
	plans, err := p.forks(snapshotOrigin(snap), p.dirs.snapshotDir(snap.ID), &caisson.ForkRequest{
		Count: 1, Name: req.Name, Labels: req.Labels, Policy: req.Policy, Models: req.Models, Assigned: req.Assigned,
		Workspace: req.Workspace, KeepRandomness: req.KeepRandomness, AutoPause: req.AutoPause, FinalSnapshot: req.FinalSnapshot,
	})
	if err != nil {
		return nil, err
	}
	return plans[0], nil
}

// checkFork checks the form and rights of a request for forks, and fills in its defaults.
func (p *planner) checkFork(ctx context.Context, req *caisson.ForkRequest) error {
	if req.Count == 0 {
		req.Count = 1
	}
	if req.Count < 1 || req.Count > 100 {
		return caisson.Invalidf("count", "%d is not between 1 and 100", req.Count)
	}
	if err := errors.Join(
		validateName("name", req.Name), caisson.CheckLabels("labels", req.Labels), validateTimes(nil, nil, req.AutoPause),
	); err != nil {
		return err
	}
	if err := p.network.check(ctx, "", req.Policy, req.Models); err != nil {
		return err
	}
	if err := errors.Join(p.network.checkAssignment(ctx, req.Assigned), validateResources("resources", req.Resources)); err != nil {
		return err
	}
	return p.workspaces.check(ctx, req.Workspace, nil)
}

// forks resolves a request that has been checked into the plans of forks of from, whose capture is in the directory dir.
func (p *planner) forks(from origin, dir string, req *caisson.ForkRequest) ([]*plan, error) {
	if err := p.workspaces.checkForkable(&from, req); err != nil {
		return nil, err
	}
	limits, err := from.limits(req.Resources)
	if err != nil {
		return nil, err
	}
	plans := make([]*plan, req.Count)
	for i := range plans {
		name := req.Name
		if name != "" && req.Count > 1 {
			name = fmt.Sprintf("%s-%d", name, i+1)
		}
		sb := &caisson.Sandbox{
			ID: caisson.NewID(caisson.SandboxPrefix), Account: from.account, Name: name, Template: from.template,
			State: caisson.Creating, Labels: req.Labels, Spec: from.spec, Rootfs: from.rootfs, Parent: from.id,
			Node: p.node, Build: p.programs.Current, CreatedAt: now(), ChangedAt: now(), Assigned: req.Assigned,
		}
		pl := &plan{
			sandbox: sb, from: &from, dir: dir, start: true, workspace: req.Workspace,
			// If several sandboxes are restored from the same memory, each must draw its own random numbers.
			randomness: randomnessOpenSSL, request: recheckedFields{req.Policy, req.Models, req.Assigned, nil},
		}
		sb.Spec.Resources, sb.Spec.Models, sb.Spec.Workspace, sb.Spec.Volume = limits, req.Models, "", nil
		if sb.Spec.Mounts, pl.handles = addDirectMount(req.Workspace, nil, nil); len(pl.handles) > 0 {
			sb.Spec.WorkspaceAt = ""
		}
		override(&sb.Spec.Policy, req.Policy)
		override(&sb.Spec.AutoPause, req.AutoPause)
		override(&sb.Spec.FinalSnapshot, req.FinalSnapshot)
		if req.KeepRandomness {
			pl.randomness, sb.Spec.Randomness = "", ""
		}
		pl.store()
		plans[i] = pl
	}
	return plans, nil
}

// pooled returns the plan of a sandbox that is created in a pool, and the size of the pool. If the template or snapshot of the
// pool has no pool or no longer exists, the size is 0 and there is no plan. The sandbox's layers are protected from pruning until
// the caller calls release.
func (p *planner) pooled(ctx context.Context, key poolKey) (pl *plan, size int, release func(), err error) {
	if key.snapshot == "" {
		tpl, err := p.catalog.get(ctx, key.template)
		if caisson.KindOf(err) == caisson.NotFound || err == nil && tpl.Pool == 0 {
			return nil, 0, func() {}, nil
		}
		if err != nil {
			return nil, 0, nil, err
		}
		pl, release, err := p.fresh(ctx, &caisson.CreateRequest{Template: key.template})
		return pl, tpl.Pool, release, err
	}
	snap, err := p.snapshots.Get(ctx, caisson.In(key.account), string(key.snapshot))
	if caisson.KindOf(err) == caisson.NotFound || err == nil && snap.Pool == 0 {
		return nil, 0, func() {}, nil
	}
	if err != nil {
		return nil, 0, nil, err
	}
	plans, err := p.forks(snapshotOrigin(snap), p.dirs.snapshotDir(snap.ID), &caisson.ForkRequest{Count: 1})
	if err != nil {
		return nil, 0, nil, err
	}
	return plans[0], snap.Pool, func() {}, nil
}

// An origin is the sandbox or snapshot that forks are created from.
type origin struct {
	id       caisson.ID     // id of the sandbox or snapshot
	account  string         // account of the sandbox or snapshot
	template string         // template of the sandbox or snapshot
	spec     caisson.Spec   // spec of the sandbox or snapshot
	rootfs   caisson.Rootfs // root file system of the sandbox or snapshot
	memory   bool           // whether the capture contains memory
	capture  caisson.ID     // id of the temporary capture of a sandbox; "" for none
}

// limits returns the resource limits of a fork whose request has the resources ask. A fork with memory keeps the origin's limits
// of disk, processes and open files, and needs at least the memory that the origin may use.
func (o *origin) limits(ask caisson.Resources) (caisson.Resources, error) {
	had, r := o.spec.Resources, replaceLimits(o.spec.Resources, ask)
	if !o.memory {
		return r, nil
	}
	switch {
	case r.Memory < had.Memory:
		return r, caisson.Invalidf("resources.memory", "%s is less than the %s that it is forked from may use", r.Memory, had.Memory)
	case r.Disk != had.Disk:
		return r, caisson.Invalidf("resources.disk", "a fork with memory keeps the limit of what it is forked from, %s", had.Disk)
	case r.PIDs != had.PIDs:
		return r, caisson.Invalidf("resources.pids", "a fork with memory keeps the limit of what it is forked from, %d", had.PIDs)
	case r.OpenFiles != had.OpenFiles:
		return r, caisson.Invalidf("resources.openFiles", "a fork with memory keeps the limit of what it is forked from, %d", had.OpenFiles)
	}
	return r, nil
}

// snapshotOrigin returns a snapshot as the origin of forks.
func snapshotOrigin(s *caisson.Snapshot) origin {
	return origin{id: s.ID, account: s.Account, template: s.Template, spec: s.Spec, rootfs: s.Rootfs, memory: s.Memory}
}
