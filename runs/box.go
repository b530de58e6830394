package runs

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// withPhases lets the sandbox core say how long parts of its work took.
func withPhases(ctx context.Context, x *attempt) context.Context {
	return caisson.WithTimer(ctx, x.inside)
}

// assignment is what makes a sandbox serve the attempt.
func (x lodging) assignment() *caisson.Assignment {
	a := &caisson.Assignment{
		Run: x.r.ID, Attempt: x.r.Attempt, Session: x.r.Session, Agent: x.r.Agent, User: x.r.Request.User,
		Lineage: x.r.Lineage, Trace: x.r.Trace, Tools: len(x.agent.SubAgents) > 0 && x.r.Limits.Runs > 0 && len(x.r.Lineage) < maxDepth,
	}
	if len(x.set.Models) > 0 {
		a.Models = &caisson.ModelGrant{Models: x.set.Models}
	}
	return a
}

// policy is what the run may reach.
func (x lodging) policy() *caisson.Policy {
	return &x.set.Policy
}

// labels are those of a run's sandbox; reconcile finds it by them.
func (x lodging) labels() map[string]string {
	l := map[string]string{labelRun: string(x.r.ID), labelAgent: x.r.Agent}
	if x.r.Session != "" {
		l[labelSession] = string(x.r.Session)
	}
	for k, v := range x.r.Request.Labels {
		if _, ours := l[k]; !ours {
			l[k] = v
		}
	}
	return l
}

// The labels of sandboxes and snapshots that are the run core's.
const (
	labelRun     = "caisson/run"
	labelAgent   = "caisson/agent"
	labelSession = "caisson/session"
	labelKey     = "caisson/warm" // of warm snapshots, and of what they are made in
)

// open gets the attempt its sandbox: the session's, a fork of the warm snapshot, or a new one.
func (x lodging) open(ctx context.Context, template *prepared) error {
	if x.r.Session != "" {
		ok, err := x.openSession(ctx)
		if err != nil || ok {
			return err
		}
	}
	x.first, x.mine = true, x.r.Session == "" && !x.r.Request.Keep
	ctx = x.asOwner(ctx)
	if x.r.Request.Image == "" {
		snap, err := x.c.warmth.current(ctx, x.agent, template)
		if err != nil {
			x.warn(ctx, "the warm snapshot cannot be looked for; starting cold", err)
		}
		if snap != nil {
			err := x.fork(ctx, snap)
			switch {
			case err == nil:
				return nil
			case caisson.KindOf(err) == caisson.Exhausted || ctx.Err() != nil:
				return err
			}
			x.warn(ctx, "the warm snapshot no longer starts and is made anew; starting cold", err)
			x.c.warmth.replace(x.agent, x.r.Account, snap)
		} else if x.agent.Warm != nil && len(x.agent.Service) > 0 {
			x.warn(ctx, "there is no warm snapshot yet and one is being made; starting cold", nil)
			x.c.warmth.later(x.agent, x.r.Account)
		}
	}
	return x.create(ctx, template)
}

// asOwner lets the agent's own policy lead where its author may lead it. Built-in agents and those of the host's files are the
// host's.
func (x lodging) asOwner(ctx context.Context) context.Context {
	if x.r.Request.Policy == nil && x.agent.Account == "" {
		return caisson.WithCaller(ctx, caisson.Caller{Account: x.r.Account, Local: true})
	}
	return ctx
}

// fork makes the sandbox of the warm snapshot.
func (x lodging) fork(ctx context.Context, snap *caisson.Snapshot) error {
	var forks []*caisson.Sandbox
	err := x.whileFull(ctx, func() (err error) {
		forks, err = x.c.Sandboxes.Fork(ctx, string(snap.ID), caisson.ForkRequest{
			Labels: x.labels(), Policy: x.policy(), Assigned: x.assignment(),
		})
		return err
	})
	x.phase("fork")
	if err != nil {
		return err
	}
	x.box, x.warm = forks[0], true
	if x.box.Reason != "" {
		// It has the snapshot's files and not its memory: its service is not there.
		err := errors.New(x.box.Reason)
		if rerr := x.c.Sandboxes.Remove(context.WithoutCancel(ctx), string(x.box.ID)); rerr != nil {
			err = errors.Join(err, rerr)
		}
		x.box, x.warm = nil, false
		return err
	}
	x.version(map[string]string{"digest": x.box.Spec.Digest})
	return nil
}

// create makes the sandbox from the agent's template.
func (x lodging) create(ctx context.Context, template *prepared) error {
	req := template.create(x.agent)
	req.Image, req.Labels, req.Policy, req.Assigned = x.r.Request.Image, x.labels(), x.policy(), x.assignment()
	if own := resources(x.r.Limits); own != resources(x.agent.Limits) {
		req.Resources = own
	}
	err := x.whileFull(ctx, func() (err error) {
		x.box, err = x.c.Sandboxes.Create(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	x.version(map[string]string{"digest": x.box.Spec.Digest})
	err = x.serve(ctx)
	x.phase("create")
	return err
}

// serve starts the agent's service in a sandbox that has none.
func (x lodging) serve(ctx context.Context) error {
	models, err := x.c.making.grantedModels(ctx, x.assignment().Models)
	if err != nil {
		return err
	}
	return x.c.making.serve(ctx, x.box.ID, x.agent, models)
}

// whileFull does f again while the host is full and others are at work whose end makes room.
func (x lodging) whileFull(ctx context.Context, f func() error) error {
	told := false
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := f()
		if caisson.KindOf(err) != caisson.Exhausted || !x.c.others(x.r.ID) {
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

// others reports whether other attempts are under way.
func (c *Core) others(id caisson.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, own := c.live[id]
	return len(c.live) > 1 || len(c.live) == 1 && !own
}

// resources are the limits of an agent as a sandbox has them.
func resources(l caisson.AgentLimits) caisson.Resources {
	return caisson.Resources{CPUs: l.CPUs, Memory: l.Memory, PIDs: l.PIDs, Disk: l.Disk}
}

// copyIn unpacks the run's archive into the workspace.
func (x lodging) copyIn(ctx context.Context) error {
	if !x.r.HasWorkspace {
		return nil
	}
	x.start()
	defer x.phase("workspace")
	box, dir := string(x.box.ID), x.agent.Workdir
	f, err := x.c.Dir.Open(path.Join(runDir(x.r.ID), uploadTar))
	if err == nil {
		defer f.Close()
		if err := x.c.Sandboxes.MakeDir(ctx, box, dir, true); err != nil && caisson.KindOf(err) != caisson.Conflict {
			return err
		}
		return x.c.Sandboxes.WriteTree(ctx, box, dir, f)
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
		return x.c.Sandboxes.WriteTree(ctx, box, path.Dir(dir), f)
	}
	// It lands beside where it has to be, and moves there.
	parent := path.Dir(dir)
	if err := x.c.Sandboxes.WriteTree(ctx, box, parent, f); err != nil {
		return err
	}
	if err := x.c.Sandboxes.RemoveFile(ctx, box, dir, true); err != nil && caisson.KindOf(err) != caisson.NotFound {
		return err
	}
	return x.c.Sandboxes.MoveFile(ctx, box, path.Join(parent, workspaceName), dir)
}

// release takes the sandbox back from the run: nothing more is charged to it, and what it has left running is ended.
func (x outcome) release(ctx context.Context) error {
	if x.box == nil {
		return nil
	}
	if x.mine {
		// It is removed, and its last calls end with it, charged to this run.
		return nil
	}
	if err := x.c.hands.killNew(ctx, x.box.ID, x.agent, x.pids); err != nil {
		return err
	}
	if _, err := x.c.Sandboxes.Assign(ctx, x.box.ID, nil); err != nil {
		return err
	}
	if x.r.Session == "" {
		return nil // kept for whoever asked for it
	}
	_, err := x.c.Sandboxes.Suspend(ctx, string(x.box.ID))
	return err
}

// killNew ends the processes that were not there before, but for those that the agent declares. A sandbox that cannot be rid of
// them is stopped: its files stay.
func (c hands) killNew(ctx context.Context, id caisson.ID, a *caisson.Agent, before map[int]bool) error {
	for range 20 {
		list, err := c.Sandboxes.Processes(ctx, string(id))
		if err != nil {
			return err
		}
		left := 0
		for _, p := range list {
			if before[p.PID] || p.PID == 1 || slices.Contains(a.Background, p.Command) {
				continue
			}
			left++
			if err := c.Sandboxes.Kill(ctx, string(id), p.PID, int(unix.SIGKILL)); err != nil && caisson.KindOf(err) != caisson.NotFound {
				return err
			}
		}
		if left == 0 {
			return nil
		}
	}
	_, err := c.Sandboxes.Stop(ctx, string(id), 0)
	return errors.Join(caisson.Errorf(caisson.Conflict, "what the agent left running could not be ended"), err)
}
