package runs

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/internal/timing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// withPhaseTimer returns a context with which package sandboxes records the duration of parts of its work.
func withPhaseTimer(ctx context.Context, x *attempt) context.Context {
	return timing.WithTimer(ctx, x.addPart)
}

// assignment returns the assignment of a sandbox to the attempt.
func (x provisioner) assignment() *caisson.Assignment {
	a := &caisson.Assignment{
		Run: x.r.ID, Attempt: x.r.Attempt, Session: x.r.Session, Agent: x.r.Agent, User: x.r.Request.User,
		Lineage: x.r.Lineage, Trace: x.r.Trace, Tools: len(x.agent.SubAgents) > 0 && x.r.Limits.StartableRuns() > 0 && len(x.r.Lineage) < maxDepth,
	}
	if len(x.settings.Models) > 0 {
		a.Models = &caisson.ModelGrant{Models: x.settings.Models}
	}
	return a
}

// policy returns the egress policy of the run.
func (x provisioner) policy() *caisson.Policy {
	return &x.settings.Policy
}

// labels returns the labels of a run's sandbox; reconcile finds the sandbox by them.
func (x provisioner) labels() map[string]string {
	l := map[string]string{labelRun: string(x.r.ID), labelAgent: x.r.Agent}
	if x.r.Session != "" {
		l[labelSession] = string(x.r.Session)
	}
	maps.Copy(l, x.r.Request.Labels)
	return l
}

// The labels of sandboxes and snapshots that belong to the run core.
const (
	labelPrefix  = "caisson/"
	labelRun     = labelPrefix + "run"     // id of the run
	labelAgent   = labelPrefix + "agent"   // id of the agent
	labelSession = labelPrefix + "session" // id of the session
	labelKey     = labelPrefix + "warm"    // key of a warm snapshot; also set on the sandbox that it is captured in
)

// open provisions the attempt's sandbox: the session's, a fork of the warm snapshot, or a new one.
func (x provisioner) open(ctx context.Context, template *prepared) error {
	if x.r.Session != "" {
		ok, err := x.openSession(ctx)
		if err != nil || ok {
			return err
		}
	}
	// Until provisioning has succeeded, a session cannot use the sandbox.
	x.unprompted, x.removable = true, !x.r.Request.Keep
	ctx = x.asOwner(ctx)
	ok, err := x.openWarm(ctx, template)
	if err == nil && !ok {
		err = x.create(ctx, template)
	}
	if err == nil && x.r.Session != "" {
		x.removable = false
	}
	return err
}

// openWarm forks the agent's warm snapshot, and returns false if there is none that starts.
func (x provisioner) openWarm(ctx context.Context, template *prepared) (ok bool, err error) {
	if x.r.Request.Image != "" || !usesWarmSnapshot(x.agent) {
		return false, nil
	}
	limits, fits := x.forkLimits()
	if !fits {
		x.status("starting", "its limits are not those of the warm snapshot; starting cold")
		return false, nil
	}
	for again := true; ; again = false {
		snap, err := x.c.warmSnapshots.current(ctx, x.agent, template)
		if err != nil {
			x.warn(ctx, "the warm snapshot cannot be looked for; starting cold", err)
			return false, nil
		}
		if snap == nil {
			x.warn(ctx, "there is no warm snapshot yet and one is being made; starting cold", nil)
			x.c.warmSnapshots.makeInBackground(x.agent, x.r.Account)
			return false, nil
		}
		err = x.fork(ctx, snap, limits)
		_, lost := errors.AsType[memoryLost](err)
		switch kind := caisson.KindOf(err); {
		case err == nil:
			return true, nil
		case kind == caisson.NotFound && again:
			continue // A newer snapshot has just replaced it.
		case ctx.Err() != nil, kind == caisson.Exhausted, kind == caisson.Denied, caisson.FieldOf(err) != "", isFailure(err):
			return false, err // The cause is the host or the request, not the snapshot.
		case again && !lost:
			// One failure may be caused by a part of the host that is slow or restarting, and a new snapshot takes
			// minutes.
			x.log.WarnContext(ctx, "a fork of the warm snapshot did not start; trying again", "snapshot", snap.ID, "err", err)
			continue
		}
		x.warn(ctx, "the warm snapshot no longer starts and is rebuilt; starting cold", err)
		x.c.warmSnapshots.replace(x.agent, x.r.Account, snap)
		return false, nil
	}
}

// forkLimits returns the limits of the run that a fork can have in place of the snapshot's. fits is false if the run
// has limits that a fork cannot have: a fork with memory keeps the limits of disk and processes, and needs at least as
// much memory as the snapshot.
func (x provisioner) forkLimits() (r caisson.Resources, fits bool) {
	own, usual := resources(x.r.Limits), resources(withDefaults(x.agent.Limits))
	if own.CPUs != usual.CPUs {
		r.CPUs = own.CPUs
	}
	if own.Memory > usual.Memory {
		r.Memory = own.Memory
	}
	return r, own.Disk == usual.Disk && own.PIDs == usual.PIDs && own.Memory >= usual.Memory
}

// withDefaults returns an agent's limits with the defaults filled in.
func withDefaults(l caisson.AgentLimits) caisson.AgentLimits {
	d := caisson.DefaultAgentLimits()
	l.Memory, l.CPUs, l.Disk, l.PIDs = cmp.Or(l.Memory, d.Memory), cmp.Or(l.CPUs, d.CPUs), cmp.Or(l.Disk, d.Disk), cmp.Or(l.PIDs, d.PIDs)
	return l
}

// asOwner returns a context with the rights of the agent's author, if the run uses the agent's own policy. The author
// of built-in agents, and of agents in files on the host, is the host.
func (x provisioner) asOwner(ctx context.Context) context.Context {
	if x.r.Request.Policy == nil && x.r.Request.Image == "" && x.agent.Account == "" {
		return caisson.WithCaller(ctx, caisson.HostCaller(x.r.Account, "run an agent of the host's"))
	}
	return ctx
}

// memoryLost is the reason why a fork has only the snapshot's files.
type memoryLost string

func (e memoryLost) Error() string { return string(e) }

// fork creates the sandbox by forking the warm snapshot.
func (x provisioner) fork(ctx context.Context, snap *caisson.Snapshot, limits caisson.Resources) error {
	var forks []*caisson.Sandbox
	err := x.retryWhileAttached(ctx, func() error {
		workspace, err := x.workspace()
		if err != nil {
			return err
		}
		forks, err = x.c.Sandboxes.Snapshots.Fork(ctx, string(snap.ID), caisson.ForkRequest{
			Labels: x.labels(), Policy: x.policy(), Assigned: x.assignment(), Resources: limits, Workspace: workspace,
		})
		return err
	})
	x.phase("fork")
	if err != nil {
		return err
	}
	x.sandbox, x.warm = forks[0], true
	if x.sandbox.Reason != "" {
		// The fork has the snapshot's files but not its memory, so the agent's service does not run in it.
		var err error = memoryLost(x.sandbox.Reason)
		if rerr := x.c.Sandboxes.Lifecycle.Remove(context.WithoutCancel(ctx), string(x.sandbox.ID)); rerr != nil {
			err = errors.Join(err, rerr)
		}
		x.sandbox, x.warm = nil, false
		return err
	}
	x.version(map[string]string{"digest": x.sandbox.Spec.Digest})
	return nil
}

// create creates the sandbox from the agent's template.
func (x provisioner) create(ctx context.Context, template *prepared) error {
	req := template.create(x.agent)
	req.Image, req.Labels, req.Policy, req.Assigned = x.r.Request.Image, x.labels(), x.policy(), x.assignment()
	if own := resources(x.r.Limits); own != resources(withDefaults(x.agent.Limits)) {
		req.Resources = own
	}
	var box *caisson.Sandbox
	err := x.retryWhileAttached(ctx, func() (err error) {
		if req.Workspace, err = x.workspace(); err != nil {
			return err
		}
		box, err = x.c.Sandboxes.Lifecycle.Create(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	x.sandbox = box
	x.version(map[string]string{"digest": x.sandbox.Spec.Digest})
	err = x.serve(ctx)
	x.phase("create")
	return err
}

// serve starts the agent's service in a sandbox where it does not run.
func (x provisioner) serve(ctx context.Context) error {
	models, err := x.c.builder.grantedModels(ctx, x.assignment().Models)
	if err != nil {
		return err
	}
	return x.c.builder.serve(ctx, x.sandbox.ID, x.agent, models)
}

// retryWhileFull retries f while the host is full, as opposed to a limit that a field of the request exceeds, and other
// attempts run whose end frees resources.
func (x provisioner) retryWhileFull(ctx context.Context, f func() error) error {
	told := false
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := f()
		if caisson.KindOf(err) != caisson.Exhausted || caisson.FieldOf(err) != "" {
			return err
		}
		if x.c.sessions.pauseOldest(ctx) {
			continue
		}
		if !x.c.othersRunning() {
			return err
		}
		if !told {
			told = true
			x.status("queued", "this host is full: "+caisson.MessageOf(err))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// othersRunning reports whether other attempts are running or being cleaned up.
func (c *Core) othersRunning() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.cleanups) > 0 || c.queue.running() > 1
}

// resources converts an agent's limits to those of a sandbox.
func resources(l caisson.AgentLimits) caisson.Resources {
	return caisson.Resources{CPUs: l.CPUs, Memory: l.Memory, PIDs: l.PIDs, Disk: l.Disk}
}

// copyIn unpacks the run's archive into the workspace.
func (x provisioner) copyIn(ctx context.Context) error {
	if !x.r.HasWorkspace || x.mounted() {
		return nil
	}
	x.start()
	defer x.phase("workspace")
	box, dir := string(x.sandbox.ID), x.agent.Workdir
	f, err := x.c.Dir.Open(path.Join(runDir(x.r.ID), uploadTar))
	if err != nil && !isNotExist(err) {
		return err
	}
	if err == nil {
		defer f.Close()
		if err := x.c.Sandboxes.Files.MakeDir(ctx, box, dir, true); err != nil && caisson.KindOf(err) != caisson.Conflict {
			return err
		}
		return x.c.Sandboxes.Files.WriteTree(ctx, box, dir, f)
	}
	f, err = x.c.Dir.Open(path.Join(runDir(x.r.ID), workspaceTar))
	switch {
	case isNotExist(err):
		return failf(caisson.RunInternal, "the copy of %s is gone; start another run", x.r.Request.Source)
	case err != nil:
		return err
	}
	defer f.Close()
	if path.Base(dir) == workspaceName {
		return x.c.Sandboxes.Files.WriteTree(ctx, box, path.Dir(dir), f)
	}
	// The archive is unpacked beside its target, and moved there afterwards.
	parent := path.Dir(dir)
	if err := x.c.Sandboxes.Files.WriteTree(ctx, box, parent, f); err != nil {
		return err
	}
	if err := x.c.Sandboxes.Files.RemoveFile(ctx, box, dir, true); err != nil && caisson.KindOf(err) != caisson.NotFound {
		return err
	}
	return x.c.Sandboxes.Files.MoveFile(ctx, box, path.Join(parent, workspaceName), dir)
}

// killNew kills the processes that are not in before, except the background processes that the agent declares. If
// processes survive, the sandbox is stopped, which keeps its files.
func (c guestExec) killNew(ctx context.Context, id caisson.ID, a *caisson.Agent, before map[int]bool) (stopped bool, err error) {
	for wait := time.Millisecond; wait < killTimeout/2; wait *= 2 {
		list, err := c.Sandboxes.Processes.ListProcesses(ctx, string(id))
		if err != nil {
			return false, err
		}
		left := 0
		for _, p := range list {
			if before[p.PID] || p.PID == 1 || slices.Contains(a.Background, p.Command) {
				continue
			}
			left++
			if err := c.Sandboxes.Processes.Kill(ctx, string(id), p.PID, int(unix.SIGKILL)); err != nil && caisson.KindOf(err) != caisson.NotFound {
				return false, err
			}
		}
		if left == 0 {
			return false, nil
		}
		time.Sleep(wait) // Killed processes do not disappear at once.
	}
	c.Log.WarnContext(ctx, "processes that an agent left running could not be killed; its sandbox is stopped", "sandbox", id)
	_, err = c.Sandboxes.Lifecycle.Stop(ctx, string(id), 0)
	return err == nil, err
}

// killTimeout is how long the processes that an agent has left may take to exit.
const killTimeout = 2 * time.Second
