package workspaces

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/apply"
)

// The labels of sandboxes in which commands run: labelCheck has the value valueCheck, by which Reconcile finds such sandboxes
// of an earlier daemon; labelTrial has the id of the trial.
const (
	labelCheck = "caisson/check" // label of the sandboxes in which commands run
	labelTrial = "caisson/trial" // label with the id of the trial
	valueCheck = "commands"      // value of labelCheck
)

// maxTrials is the maximum number of concurrent sandboxes in which commands run.
const maxTrials = 2

// A trial is a set of layers that show a directory as it would be after an apply. A trial is not a workspace: it is not in the
// store, its changes are never reviewed, and its directory, beside those of workspaces, is removed with its sandbox.
type trial struct {
	w     *caisson.Workspace // copy of the synced workspace with an id of its own; not in the store
	taken bool               // a sandbox uses the trial; guarded by trials.mu
}

// trials contains the trials in progress.
type trials struct {
	directory
	slots chan struct{} // one element for each trial that has a sandbox

	mu   sync.Mutex
	byID map[caisson.ID]*trial // trials by id; guarded by mu
}

// newTrials returns a trials without any trial, which creates the directories of trials in dir.
func newTrials(dir directory) *trials {
	return &trials{directory: dir, slots: make(chan struct{}, maxTrials), byID: map[caisson.ID]*trial{}}
}

// find returns the trial with an id, or nil if there is none.
func (t *trials) find(id caisson.ID) *trial {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// claim returns the workspace of the trial that the labels of sb name; sb is a sandbox that is being created. No other sandbox
// can use the trial then. Returns Denied if the trial does not exist, belongs to another account, or is used by another sandbox.
func (t *trials) claim(sb *caisson.Sandbox) (*caisson.Workspace, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := t.byID[caisson.ID(sb.Labels[labelTrial])]
	if found == nil || found.taken || found.w.Account != sb.Account {
		return nil, caisson.Errorf(caisson.Denied, "labels that begin with caisson/ are Caisson's own; choose another name")
	}
	found.taken = true
	return found.w, nil
}

// end removes a trial whose sandbox was removed.
func (t *trials) end(ended *trial) error {
	t.mu.Lock()
	delete(t.byID, ended.w.ID)
	t.mu.Unlock()
	return removeTree(t.dir(ended.w.ID))
}

// createTrial creates the layers of a trial, which show the directory as it would be after plan was applied. The caller must
// call trials.end.
func (s *syncRun) createTrial(ctx context.Context, plan *gate.Plan) (_ *trial, err error) {
	account, err := s.c.cfg.Store.Accounts().Ensure(ctx, s.w.Account)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.host.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	var show []string
	if err := readJSON(s.c.dir(s.w.ID, showFile), &show); err != nil {
		return nil, err
	}
	w := *s.w
	w.ID, w.Kind, w.Mode, w.State = caisson.NewID(caisson.WorkspacePrefix), caisson.WorkspaceOverlay, caisson.SyncSecure, caisson.WorkspaceLive
	w.Target = defaultTarget // another path could hide the programs of the image
	t := &trial{w: &w}
	defer func() {
		if err != nil {
			err = errors.Join(durable.DiskFull(err), s.c.trials.end(t))
		}
	}()
	if err := s.c.layerFiles.makeDirs(w.ID, account.UIDBase, st.Mode); err != nil {
		return nil, err
	}
	if err := s.c.layerFiles.scan(ctx, &w, show, st.Mode); err != nil {
		return nil, err
	}
	if err := s.fillTrial(ctx, t, plan); err != nil {
		return nil, err
	}
	s.c.trials.mu.Lock()
	defer s.c.trials.mu.Unlock()
	s.c.trials.byID[w.ID] = t
	return t, nil
}

// fillTrial writes the changes of plan to the upper layer of a trial.
func (s *syncRun) fillTrial(ctx context.Context, t *trial, plan *gate.Plan) error {
	var opened files
	defer opened.close()
	manifest := opened.add(os.Open(s.c.dir(t.w.ID, manifestFile)))
	upper := opened.add(openDir(s.c.dir(t.w.ID, upperDir), 0))
	if opened.err != nil {
		return opened.err
	}
	return apply.RunLayer(ctx, s.c.cfg.Jobs, manifest, s.frozen, upper, plan)
}

// removeTimeout is the timeout for removing the sandbox of a command.
const removeTimeout = 2 * time.Minute

// inSandbox runs a command in the sandbox of a trial, and removes the sandbox and the trial before it returns. If the sandbox
// cannot be removed now, it is removed when its hard TTL expires, or by the next daemon.
func (s *syncRun) inSandbox(ctx context.Context, t *trial, cmd Command) (err error) {
	// The sync was requested on the host, and the host's administrator has configured the command.
	ctx = caisson.WithCaller(ctx, caisson.HostCaller(s.w.Account, "run checks on changes before they are applied"))
	req, err := s.sandboxRequest(t, cmd)
	if err != nil {
		return errors.Join(err, s.c.trials.end(t))
	}
	sb, err := s.c.sandboxes.Lifecycle.Create(ctx, req)
	if err != nil {
		return errors.Join(err, s.c.trials.end(t))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		if rerr := s.c.sandboxes.Lifecycle.Remove(ctx, string(sb.ID)); rerr != nil && caisson.KindOf(rerr) != caisson.NotFound {
			s.c.cfg.Log.ErrorContext(ctx, "the sandbox of a check could not be removed; the next start of the daemon tries again", "sandbox", sb.ID, "err", rerr)
			return
		}
		err = errors.Join(err, s.c.trials.end(t))
	}()
	return s.watch(ctx, sb, t, cmd)
}

// sandboxRequest returns the request for the sandbox in which a command runs.
func (s *syncRun) sandboxRequest(t *trial, cmd Command) (req caisson.CreateRequest, err error) {
	fd, err := unix.FcntlInt(s.host.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return req, os.NewSyscallError("fcntl", err)
	}
	never, most := caisson.Duration(0), caisson.Duration(cmd.timeLimit()+2*removeTimeout)
	return caisson.CreateRequest{
		Image: cmd.Image, Labels: map[string]string{labelCheck: valueCheck, labelTrial: string(t.w.ID)}, NoPool: true,
		Policy: &caisson.Policy{}, TTL: &never, HardTTL: &most,
		Workspace: &caisson.WorkspaceRequest{
			Kind: t.w.Kind, Mode: t.w.Mode, Source: t.w.Source, Target: t.w.Target, Directory: os.NewFile(uintptr(fd), s.host.Name()),
		},
	}, nil
}

// removeTrials removes the sandboxes in which an earlier daemon has run commands. Errors are logged only.
func (c *Core) removeTrials(ctx context.Context) error {
	f := caisson.Filter{Labels: map[string]string{labelCheck: valueCheck}, Limit: 1000}
	next := func(f *caisson.Filter, sb *caisson.Sandbox) { f.After = sb.ID }
	for sb, err := range caisson.All(ctx, c.cfg.Store.Sandboxes().List, caisson.AllAccounts(), f, next) {
		if err != nil {
			return err
		}
		owner := caisson.WithCaller(ctx, caisson.DaemonCaller(sb.Account, "remove the sandbox of a check"))
		if err := c.sandboxes.Lifecycle.Remove(owner, string(sb.ID)); err != nil && caisson.KindOf(err) != caisson.NotFound && ctx.Err() == nil {
			c.cfg.Log.ErrorContext(ctx, "the sandbox of a check could not be removed", "sandbox", sb.ID, "err", err)
		}
	}
	return nil
}
