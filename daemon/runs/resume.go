package runs

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/hostdir"
)

// resumer resumes the sandboxes of sessions.
type resumer struct {
	sessions   caisson.Table[caisson.Session]
	lifecycle  caisson.Sandboxes // creates, changes and removes sandboxes
	policies   Policies          // sets the policies of sandboxes
	assign     assignFunc        // assigns a sandbox to a run
	services   *services         // starts the services of agents
	workspaces Workspaces        // reads mounted workspaces; nil if directories are only copied
	dirs       *directories      // directories of runs
	retrier    *retrier          // retries operations on sandboxes
	programs   caisson.Programs  // sets of programs that this daemon supports
}

// open makes the sandbox of the run's session run, and assigns it to the run. It returns false if the session has no usable
// sandbox.
func (m *resumer) open(ctx context.Context, x *attempt) (ok bool, err error) {
	s, err := m.sessions.Get(ctx, caisson.In(x.r.Account), string(x.r.Session))
	if err != nil {
		return false, err
	}
	x.box.volume = s.Volume
	if s.Sandbox == "" {
		return false, nil
	}
	if err := m.checkWorkspace(ctx, x, s.Sandbox); err != nil {
		return false, err
	}
	err = m.activateAndAssign(ctx, x, s.Sandbox)
	clean := context.WithoutCancel(ctx)
	if err != nil && caisson.KindOf(err) == caisson.Internal && ctx.Err() == nil {
		// The memory of the sandbox may be lost, but not its files. giveBack stops the sandbox, and the second
		// call of activateAndAssign starts it with its files.
		x.warn(ctx, "the session's sandbox did not wake; it is started again with its files", err)
		m.giveBack(clean, x, s.Sandbox)
		err = m.activateAndAssign(ctx, x, s.Sandbox)
	}
	if err == nil {
		x.box.prompted = true
		x.addVersions(map[string]string{"digest": x.box.sandbox.Spec.Digest})
		return true, nil
	}
	x.box.sandbox = nil
	// After a temporary error the session keeps its sandbox.
	if caisson.KindOf(err) != caisson.NotFound || ctx.Err() != nil {
		m.giveBack(clean, x, s.Sandbox)
		if caisson.KindOf(err) == caisson.Conflict || caisson.KindOf(err) == caisson.Internal {
			err = &failure{code: caisson.RunInternal, msg: "the session's sandbox cannot be used at present; try again", err: err}
		}
		return false, err
	}
	x.warn(ctx, "the session's sandbox cannot be resumed; the session continues in a new one with the messages so far", err)
	if err := caisson.IgnoreNotFound(m.lifecycle.Remove(clean, string(s.Sandbox))); err != nil {
		return false, err
	}
	_, err = m.sessions.Update(ctx, caisson.In(x.r.Account), string(s.ID), func(s *caisson.Session) error {
		s.Sandbox = ""
		return nil
	})
	return false, err
}

// checkWorkspace returns an error if a session's sandbox does not have the workspace that the run requests, before the sandbox is
// changed. Sandboxes that have failed or no longer exist are not checked.
func (m *resumer) checkWorkspace(ctx context.Context, x *attempt, id caisson.ID) error {
	sb, err := m.lifecycle.Get(ctx, string(id))
	if err != nil || sb.State == caisson.Failed || sb.State == caisson.Removing {
		return caisson.IgnoreNotFound(err)
	}
	return m.requireWorkspace(ctx, x, sb)
}

// activateAndAssign makes a session's sandbox run and assigns it to the run. Returns NotFound if the sandbox is no longer usable.
func (m *resumer) activateAndAssign(ctx context.Context, x *attempt, id caisson.ID) error {
	sb, started, err := m.activate(ctx, x, id)
	if err != nil {
		return err
	}
	x.box.sandbox, err = m.assign(ctx, sb.ID, x.assignment())
	x.clock.phase("wire")
	if err == nil {
		err = m.setPolicy(ctx, x)
	}
	if err == nil && started {
		err = m.services.startWithGrant(ctx, x)
		x.clock.phase("resume")
	}
	return err
}

// setPolicy sets the run's policy on the sandbox of its session. The policy may allow less or more than the policy of the
// previous run. Returns Invalid if the run requests an image, which the sandbox cannot change to.
func (m *resumer) setPolicy(ctx context.Context, x *attempt) error {
	if x.r.Request.Image != "" {
		return caisson.Invalidf("image", "a session continues in the sandbox that it has; leave the image out, or begin another session")
	}
	_, err := m.policies.SetPolicy(x.asOwner(ctx), string(x.box.sandbox.ID), x.plan.Policy)
	return err
}

// giveBack makes a session's sandbox that the run could not use available to the next run: it clears the assignment, and stops a
// running sandbox, whose service may have ended, so that the next run starts the service.
func (m *resumer) giveBack(ctx context.Context, x *attempt, id caisson.ID) {
	_, err := m.assign(ctx, id, nil)
	if sb, gerr := m.lifecycle.Get(ctx, string(id)); err == nil && gerr == nil && sb.State == caisson.Running {
		_, err = m.lifecycle.Stop(ctx, string(id), 0)
	}
	if err != nil {
		x.log.WarnContext(ctx, "the sandbox of a session could not be released", "sandbox", id, "err", err)
	}
}

// activate wakes, resumes or starts a session's sandbox, as its state requires. started is true if the sandbox was started;
// then the service of the agent does not run in it, and the caller starts the service.
func (m *resumer) activate(ctx context.Context, x *attempt, id caisson.ID) (sb *caisson.Sandbox, started bool, err error) {
	defer x.clock.phase("resume")
	err = m.retrier.whileBusy(ctx, x, func() (err error) {
		if sb, err = m.lifecycle.Get(ctx, string(id)); err != nil {
			return err
		}
		// If the daemon does not support the programs of a sandbox, it can only stop the sandbox and start it again, which
		// keeps its files.
		if foreign := !m.programs.Supports(sb.Build); foreign && (sb.State == caisson.Suspended || sb.State == caisson.Running) {
			if sb, err = m.lifecycle.Stop(ctx, string(id), 0); err != nil {
				return err
			}
		}
		switch sb.State {
		case caisson.Suspended:
			sb, err = m.lifecycle.Wake(ctx, string(id))
		case caisson.Paused:
			sb, err = m.lifecycle.Resume(ctx, string(id))
			if err == nil && sb.Reason != "" { // the memory of the sandbox is lost, but not its files
				sb, err = m.lifecycle.Stop(ctx, string(id), 0)
			}
		case caisson.Stopped, caisson.Created, caisson.Running:
		default:
			kind := caisson.Conflict
			if sb.State == caisson.Failed || sb.State == caisson.Removing {
				kind = caisson.NotFound // the sandbox is no longer usable
			}
			err = caisson.Errorf(kind, "the sandbox is %s: %s", sb.State, sb.Reason)
		}
		if err != nil || sb.State != caisson.Stopped && sb.State != caisson.Created {
			return err
		}
		// The agent's service must not start with the sandbox. It is started later, when its files are written and the sandbox
		// is assigned to the run.
		if err = m.services.withdraw(ctx, id); err == nil {
			sb, err = m.lifecycle.Start(ctx, string(id))
			started = true
		}
		return err
	})
	return sb, started, err
}

// requireWorkspace returns an error if a run in a session's sandbox requests another directory or volume than that of the
// sandbox.
func (m *resumer) requireWorkspace(ctx context.Context, x *attempt, box *caisson.Sandbox) error {
	if box.Spec.Volume != nil || x.r.Request.Kind == caisson.WorkspaceVolume {
		return requireVolume(box, x.r)
	}
	asked, err := m.dirs.workspace(x)
	if err != nil || asked == nil {
		return err
	}
	defer asked.Directory.Close()
	other := failf(caisson.RunInvalid, "the session has another directory, or none; leave -C out to continue with what it has, or begin another session")
	if box.Spec.Workspace == "" {
		return other
	}
	has, err := m.workspaces.GetWorkspace(ctx, string(box.Spec.Workspace))
	if err != nil {
		return err
	}
	if same, err := (hostdir.Dir{Device: has.Device, Inode: has.Inode}).SameAs(asked.Directory.Fd()); err != nil || !same || has.Kind != asked.Kind {
		return other
	}
	return nil
}
