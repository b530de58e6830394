package runs

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/timing"
)

// provisioner provisions the sandboxes of attempts: it resumes the sandbox of the run's session, or makes a new sandbox, and
// puts the workspace into it.
type provisioner struct {
	resumer   *resumer          // resumes the sandboxes of sessions
	retrier   *retrier          // retries operations on sandboxes
	services  *services         // starts the services of agents
	warm      *warmSnapshots    // makes warm snapshots
	snapshots *snapshots        // finds warm snapshots
	lifecycle caisson.Sandboxes // creates, changes and removes sandboxes
	service   caisson.Snapshots // forks snapshots
	files     caisson.Files     // files in sandboxes
	dirs      *directories      // directories of runs
	relay     caisson.Relay     // gives access to repositories; nil if the daemon has no relay
}

// isNotExist reports whether err means that a file does not exist.
func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// The labels of sandboxes and snapshots that belong to the core of runs.
const (
	labelPrefix  = "caisson/"              // prefix of all labels that Caisson sets
	labelRun     = labelPrefix + "run"     // id of the run
	labelAgent   = labelPrefix + "agent"   // id of the agent
	labelSession = labelPrefix + "session" // id of the session
	labelKey     = labelPrefix + "warm"    // key of a warm snapshot; also set on sandboxes for captures and checks of agents
)

// provision gets the attempt's sandbox running, with its workspace. It gives no prompt to the agent.
func (p *provisioner) provision(ctx context.Context, x *attempt, template *preparedTemplate, deadline time.Time) error {
	x.clock.start()
	if err := p.open(timing.WithTimer(ctx, x.clock.addPart), x, template); err != nil {
		return err
	}
	if _, err := x.update(ctx, func(r *caisson.Run) {
		r.State, r.Sandbox, r.StartedAt, r.Deadline = caisson.RunRunning, x.box.sandbox.ID, now(), deadline.UTC()
		r.Workspace, r.Terminal = x.box.sandbox.Spec.Workspace, ""
	}); err != nil {
		return err
	}
	if err := p.copyIn(ctx, x); err != nil {
		return err
	}
	if err := p.clone(ctx, x); err != nil {
		return err
	}
	x.status("running", "")
	return nil
}

// open provisions the attempt's sandbox: the sandbox of the run's session, a fork of the warm snapshot, or a new sandbox.
func (p *provisioner) open(ctx context.Context, x *attempt, template *preparedTemplate) error {
	if x.r.Session != "" {
		ok, err := p.resumer.open(ctx, x)
		if err != nil || ok {
			return err
		}
	}
	// Until it is provisioned completely, the sandbox cannot be used by the session.
	x.box.isNew, x.box.removable = true, !x.r.Request.Keep
	ctx = x.asOwner(ctx)
	ok, err := p.openWarm(ctx, x, template)
	if err == nil && !ok {
		err = p.create(ctx, x, template)
	}
	if err == nil && x.r.Session != "" {
		x.box.removable = false
	}
	return err
}

// openWarm forks the agent's warm snapshot. It returns false if the sandbox must be created in another way.
func (p *provisioner) openWarm(ctx context.Context, x *attempt, template *preparedTemplate) (ok bool, err error) {
	if x.r.Request.Image != "" || !usesWarmSnapshot(x.agent) {
		return false, nil
	}
	limits, fits := p.forkLimits(x)
	if !fits {
		x.status("starting", "its limits are not those of the warm snapshot; starting cold")
		return false, nil
	}
	for again := true; ; again = false {
		snap, err := p.snapshots.current(ctx, x.agent, template)
		if err != nil {
			x.warn(ctx, "the warm snapshot cannot be looked for; starting cold", err)
			return false, nil
		}
		if snap == nil {
			x.warn(ctx, "there is no warm snapshot yet and one is being made; starting cold", nil)
			p.warm.makeInBackground(x.agent, x.r.Account)
			return false, nil
		}
		err = p.fork(ctx, x, snap, limits)
		_, lost := errors.AsType[memoryLost](err)
		switch kind := caisson.KindOf(err); {
		case err == nil:
			return true, nil
		case kind == caisson.NotFound && again:
			continue // A newer snapshot has just replaced snap.
		case ctx.Err() != nil, kind == caisson.Exhausted, kind == caisson.Denied, caisson.FieldOf(err) != "", isFailure(err):
			return false, err // The cause of the error is the host or the request, not the snapshot.
		case again && !lost:
			// A single failure may be caused by a part of the host that is slow or restarting. The fork is tried again, because
			// a new snapshot takes minutes.
			x.log.WarnContext(ctx, "a fork of the warm snapshot did not start; trying again", "snapshot", snap.ID, "err", err)
			continue
		}
		x.warn(ctx, "the warm snapshot no longer starts and is rebuilt; starting cold", err)
		p.warm.replace(x.agent, x.r.Account, snap)
		return false, nil
	}
}

// forkLimits returns those limits of the run that a fork gets instead of the snapshot's limits; 0 keeps the limit of the
// snapshot. fits is false if the run has limits that a fork cannot have: a fork with memory keeps the limits of disk and
// processes, and needs at least as much memory as the snapshot.
func (p *provisioner) forkLimits(x *attempt) (r caisson.Resources, fits bool) {
	own, usual := resources(x.r.Limits), resources(withDefaults(x.agent.Limits))
	if own.CPUs != usual.CPUs {
		r.CPUs = own.CPUs
	}
	if own.Memory > usual.Memory {
		r.Memory = own.Memory
	}
	return r, own.Disk == usual.Disk && own.PIDs == usual.PIDs && own.Memory >= usual.Memory
}

// withDefaults returns an agent's limits, with the default memory, CPUs, disk space and processes where they are not set.
func withDefaults(l caisson.AgentLimits) caisson.AgentLimits {
	d := caisson.DefaultAgentLimits()
	l.Memory, l.CPUs, l.Disk, l.PIDs = cmp.Or(l.Memory, d.Memory), cmp.Or(l.CPUs, d.CPUs), cmp.Or(l.Disk, d.Disk), cmp.Or(l.PIDs, d.PIDs)
	return l
}

// memoryLost is the error of a fork that has the files of the warm snapshot but not its memory. The text is the reason.
type memoryLost string

func (e memoryLost) Error() string { return string(e) }

// fork creates the sandbox by forking the warm snapshot.
func (p *provisioner) fork(ctx context.Context, x *attempt, snap *caisson.Snapshot, limits caisson.Resources) error {
	var forks []*caisson.Sandbox
	err := p.retrier.whileAttached(ctx, x, func() error {
		workspace, err := p.dirs.workspace(x)
		if err != nil {
			return err
		}
		forks, err = p.service.Fork(ctx, string(snap.ID), caisson.ForkRequest{
			Labels: x.labels(), Policy: &x.plan.Policy, Assigned: x.assignment(), Resources: limits, Workspace: workspace,
		})
		return err
	})
	x.clock.phase("fork")
	if err != nil {
		return err
	}
	x.box.sandbox, x.box.warm = forks[0], true
	if x.box.sandbox.Reason != "" {
		// The fork has the snapshot's files but not its memory, so the agent's service does not run in it.
		var err error = memoryLost(x.box.sandbox.Reason)
		if rerr := p.lifecycle.Remove(context.WithoutCancel(ctx), string(x.box.sandbox.ID)); rerr != nil {
			err = errors.Join(err, rerr)
		}
		x.box.sandbox, x.box.warm = nil, false
		return err
	}
	x.addVersions(map[string]string{"digest": x.box.sandbox.Spec.Digest})
	return nil
}

// create creates the sandbox from the agent's template.
func (p *provisioner) create(ctx context.Context, x *attempt, template *preparedTemplate) error {
	req := template.createRequest(x.agent)
	req.Image, req.Labels, req.Policy, req.Assigned = x.r.Request.Image, x.labels(), &x.plan.Policy, x.assignment()
	if own := resources(x.r.Limits); own != resources(withDefaults(x.agent.Limits)) {
		req.Resources = own
	}
	var box *caisson.Sandbox
	err := p.retrier.whileAttached(ctx, x, func() (err error) {
		if req.Workspace, err = p.dirs.workspace(x); err != nil {
			return err
		}
		box, err = p.lifecycle.Create(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	x.box.sandbox = box
	x.addVersions(map[string]string{"digest": x.box.sandbox.Spec.Digest})
	err = p.services.startWithGrant(ctx, x)
	x.clock.phase("create")
	return err
}

// resources converts an agent's limits to those of a sandbox.
func resources(l caisson.AgentLimits) caisson.Resources {
	return caisson.Resources{CPUs: l.CPUs, Memory: l.Memory, PIDs: l.PIDs, Disk: l.Disk}
}

// copyIn unpacks the run's archive into the workspace. It does nothing if the run has no workspace or a mounted one.
func (p *provisioner) copyIn(ctx context.Context, x *attempt) error {
	if !x.r.HasWorkspace || x.mounted() {
		return nil
	}
	x.clock.start()
	defer x.clock.phase("workspace")
	box, dir := string(x.box.sandbox.ID), x.agent.Workdir
	f, err := p.dirs.openArchive(x.r.ID, uploadTar)
	if err != nil && !isNotExist(err) {
		return err
	}
	if err == nil {
		defer f.Close()
		if err := p.files.MakeDir(ctx, box, dir, true); err != nil && caisson.KindOf(err) != caisson.Conflict {
			return err
		}
		return p.files.WriteTree(ctx, box, dir, f)
	}
	f, err = p.dirs.openArchive(x.r.ID, workspaceTar)
	switch {
	case isNotExist(err):
		return failf(caisson.RunInternal, "the copy of %s is gone; start another run", x.r.Request.Source)
	case err != nil:
		return err
	}
	defer f.Close()
	if path.Base(dir) == workspaceName {
		return p.files.WriteTree(ctx, box, path.Dir(dir), f)
	}
	// The archive is unpacked beside its target, and moved there afterwards.
	parent := path.Dir(dir)
	if err := p.files.WriteTree(ctx, box, parent, f); err != nil {
		return err
	}
	if err := caisson.IgnoreNotFound(p.files.RemoveFile(ctx, box, dir, true)); err != nil {
		return err
	}
	return p.files.MoveFile(ctx, box, path.Join(parent, workspaceName), dir)
}

// clone grants the attempt's sandbox access to the run's repository, and clones it into the workspace, if there is a repository.
func (p *provisioner) clone(ctx context.Context, x *attempt) error {
	req := x.r.Request.Repo
	if req == nil {
		return nil
	}
	x.clock.start()
	defer x.clock.phase("workspace")
	g, err := p.relay.Grant(ctx, caisson.RepoAccess{
		Account: x.r.Account, Sandbox: x.box.sandbox.ID, Run: x.r.ID, Session: x.r.Session, Repo: *req, Dir: x.agent.Workdir,
		Warn: func(what string) { x.warn(ctx, what, nil) },
	})
	if err != nil {
		return err
	}
	x.box.repo = g
	return nil
}
