package workspaces

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate"
)

// The labels of sandboxes that commands run in: by the first Reconcile finds what an earlier daemon has left, the second says which
// layers the sandbox is made for.
const (
	labelCheck = "caisson/check"
	labelTrial = "caisson/trial"
	valueCheck = "commands"
)

// maxTrials bounds the sandboxes of this core that commands run in at the same time.
const maxTrials = 2

// A trial is the layers that show a directory as it would be after an apply. It is no workspace: the store does not know it, nothing
// in it is ever looked at, and on disk, where workspaces are, it goes with its sandbox.
type trial struct {
	w     *caisson.Workspace // as a mount needs it
	taken bool               // by a sandbox; guarded by the trials' mu
}

// trials are those that are under way.
type trials struct {
	places chan struct{} // a token for each that has a sandbox

	mu   sync.Mutex
	byID map[caisson.ID]*trial // guarded by mu
}

func newTrials() *trials {
	return &trials{places: make(chan struct{}, maxTrials), byID: map[caisson.ID]*trial{}}
}

func (t *trials) find(id caisson.ID) *trial {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// claim gives the layers of a trial to the sandbox that is made for them, once.
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

// layTrial makes the layers that show the directory as it would be with plan. Who calls it ends the trial.
func (s *syncing) layTrial(ctx context.Context, r *review, plan *gate.Plan) (_ *trial, err error) {
	account, err := s.c.Store.Accounts().Ensure(ctx, s.w.Account)
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
	w.Target = defaultTarget // elsewhere it could stand in for the image's programs
	t := &trial{w: &w}
	defer func() {
		if err != nil {
			err = errors.Join(diskFull(err), s.c.boxing.endTrial(t))
		}
	}()
	if err := s.c.laying.makeDirs(w.ID, account.UIDBase, st.Mode); err != nil {
		return nil, err
	}
	if err := s.c.laying.fill(ctx, &w, show, st.Mode); err != nil {
		return nil, err
	}
	if err := s.fillTrial(ctx, r, t, plan); err != nil {
		return nil, err
	}
	s.c.trials.mu.Lock()
	defer s.c.trials.mu.Unlock()
	s.c.trials.byID[w.ID] = t
	return t, nil
}

// fillTrial writes what plan changes into the upper layer of a trial.
func (s *syncing) fillTrial(ctx context.Context, r *review, t *trial, plan *gate.Plan) error {
	var opened files
	defer opened.close()
	manifest, err := opened.add(os.Open(s.c.dir(t.w.ID, manifestFile)))
	if err != nil {
		return err
	}
	frozen, err := opened.add(openDir(s.c.dir(s.w.ID, frozenDir, string(r.ID)), 0))
	if err != nil {
		return err
	}
	upper, err := opened.add(openDir(s.c.dir(t.w.ID, upperDir), 0))
	if err != nil {
		return err
	}
	return s.c.Tool.Layer(ctx, manifest, frozen, upper, plan)
}

// boxing ends trials, and their sandboxes.
type boxing struct{ *Core }

// endTrial removes a trial, which no sandbox has any more.
func (c boxing) endTrial(t *trial) error {
	c.trials.mu.Lock()
	delete(c.trials.byID, t.w.ID)
	c.trials.mu.Unlock()
	return removeTree(c.dir(t.w.ID))
}

// removeTime bounds the end of a sandbox that a command ran in.
const removeTime = 2 * time.Minute

// box makes a sandbox of a trial and calls do with it. When box returns nothing is left of it; if that fails, the time limit of the
// sandbox, or the next daemon, sees to it.
func (s *syncing) box(ctx context.Context, t *trial, cmd Command, do func(ctx context.Context, sb *caisson.Sandbox) error) (err error) {
	// The sync was asked for by the host's side, and its administrator has configured the command.
	ctx = caisson.WithCaller(ctx, caisson.HostWork(s.w.Account, "check what is to be applied"))
	req, err := s.boxRequest(t, cmd)
	if err != nil {
		return err
	}
	sb, err := s.c.sandboxes.Create(ctx, req)
	if err != nil {
		return errors.Join(err, s.c.boxing.endTrial(t))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
		defer cancel()
		if rerr := s.c.sandboxes.Remove(ctx, string(sb.ID)); rerr != nil && caisson.KindOf(rerr) != caisson.NotFound {
			s.c.Log.ErrorContext(ctx, "the sandbox of a check could not be removed; that is tried again at the next start", "sandbox", sb.ID, "err", rerr)
			return
		}
		err = errors.Join(err, s.c.boxing.endTrial(t))
	}()
	return do(ctx, sb)
}

func (s *syncing) boxRequest(t *trial, cmd Command) (req caisson.CreateRequest, err error) {
	fd, err := unix.FcntlInt(s.host.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return req, os.NewSyscallError("fcntl", err)
	}
	never, most := caisson.Duration(0), caisson.Duration(cmd.limit()+2*removeTime)
	return caisson.CreateRequest{
		Image: cmd.Image, Labels: map[string]string{labelCheck: valueCheck, labelTrial: string(t.w.ID)}, NoPool: true,
		Policy: &caisson.Policy{}, TTL: &never, HardTTL: &most,
		Workspace: &caisson.WorkspaceRequest{
			Kind: t.w.Kind, Mode: t.w.Mode, Source: t.w.Source, Target: t.w.Target, Directory: os.NewFile(uintptr(fd), s.host.Name()),
		},
	}, nil
}

// removeTrials removes the sandboxes that an earlier daemon has run commands in. What it cannot remove is logged and stays.
func (c boxing) removeTrials(ctx context.Context) error {
	f := caisson.Filter{Labels: map[string]string{labelCheck: valueCheck}, Limit: 1000}
	for more := true; more; {
		page, rest, err := c.Store.Sandboxes().List(ctx, caisson.Everyone(), f)
		if err != nil {
			return err
		}
		more = rest && len(page) > 0
		for _, sb := range page {
			f.After = sb.ID
			owner := caisson.WithCaller(ctx, caisson.OwnWork(sb.Account, "remove the sandbox of a check"))
			if err := c.sandboxes.Remove(owner, string(sb.ID)); err != nil && caisson.KindOf(err) != caisson.NotFound && ctx.Err() == nil {
				c.Log.ErrorContext(ctx, "the sandbox of a check could not be removed", "sandbox", sb.ID, "err", err)
			}
		}
	}
	return nil
}
