package runs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent"
	"github.com/caisson-dev/caisson/internal/tree"
	"github.com/caisson-dev/caisson/internal/undo"
)

// StartRun implements [caisson.Runs].
func (c runs) StartRun(ctx context.Context, req caisson.RunRequest) (*caisson.Run, error) {
	if req.Directory != nil {
		defer req.Directory.Close()
	}
	_, caller, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	r, err := c.entrance.plan(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	return c.entrance.enter(ctx, r)
}

// plan resolves a request into a run that has not been recorded yet.
func (c entrance) plan(ctx context.Context, caller caisson.Caller, req caisson.RunRequest) (*caisson.Run, error) {
	if caller.Account == "" {
		return nil, caisson.Errorf(caisson.Unauthed, "this request carries no account")
	}
	a, err := c.Catalog.GetAgent(ctx, req.Agent)
	if err != nil {
		return nil, err
	}
	models, err := c.Models.ListModels(ctx)
	if err != nil {
		return nil, err
	}
	plan, err := agent.Resolve(a, req, c.defaults(models), caller)
	if err != nil {
		return nil, err
	}
	return &caisson.Run{
		ID: caisson.NewID(caisson.RunPrefix), Account: caller.Account, Agent: a.ID, Request: req, State: caisson.RunQueued,
		Attempt: 1, Trace: newTrace(), Limits: plan.Limits, Model: plan.Model, Local: caller.Local, CreatedAt: now(),
	}, nil
}

// defaults are what holds for a run where neither it nor its agent says anything.
func (c entrance) defaults(models []caisson.GatewayModel) agent.Defaults {
	d := agent.Defaults{Limits: caisson.DefaultAgentLimits()}
	if c.Budget.USD != nil {
		d.Limits.Cost = *c.Budget.USD
	}
	if c.Budget.Tokens != nil {
		d.Limits.Tokens = *c.Budget.Tokens
	}
	if c.Budget.Calls != nil {
		d.Limits.Calls = *c.Budget.Calls
	}
	for _, m := range models {
		if m.Problem == "" && m.Alias != WarmModel {
			d.Models = append(d.Models, m.Alias)
		}
	}
	return d
}

// newTrace returns a trace-id as W3C's Trace Context has it.
func newTrace() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// enter records a run and queues its first attempt.
func (c entrance) enter(ctx context.Context, r *caisson.Run) (_ *caisson.Run, err error) {
	var back undo.Stack
	defer func() {
		if err != nil {
			err = errors.Join(err, back.Run())
		}
	}()
	clean := context.WithoutCancel(ctx)
	if r.Request.Session != "" {
		s, err := c.sessions.claim(ctx, r)
		if err != nil {
			return nil, err
		}
		r.Session = s.ID
		back.Push(func() error { return c.sessions.unclaim(clean, r, nil) })
	}
	if err := c.spool(ctx, r); err != nil {
		return nil, err
	}
	back.Push(func() error { return c.removeDir(r.ID) })
	r.HasWorkspace = r.Request.Directory != nil || r.Request.Workspace != nil
	r.Request.Directory, r.Request.Workspace = nil, nil
	if err := c.Store.Runs().Insert(ctx, r, c.Limits.Waiting); err != nil {
		return nil, err
	}
	back.Release()
	c.event(ctx, r.Account, "run.queued", string(r.ID), map[string]string{"agent": r.Agent, "trace": r.Trace})
	if err := c.queueAttempt(r); err != nil {
		return nil, err
	}
	return r, nil
}

// queueAttempt starts the goroutine that sees an attempt through.
func (c entrance) queueAttempt(r *caisson.Run) error {
	ctx, cancel := context.WithCancelCause(caisson.WithCaller(c.ctx, caisson.Caller{Account: r.Account, Local: r.Local}))
	l := &live{cancel: cancel, done: make(chan struct{})}
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		cancel(nil)
		return caisson.Errorf(caisson.Unavailable, "the daemon is ending; the run waits for the next one")
	}
	c.live[r.ID] = l
	copied := *r
	c.wg.Go(func() {
		defer cancel(nil)
		c.see(ctx, &copied, l)
	})
	c.mu.Unlock()
	return nil
}

// see waits for the run's turn and does the attempt.
func (c entrance) see(ctx context.Context, r *caisson.Run, l *live) {
	place := c.queue.enter(r.ID, r.Account, len(r.Lineage))
	defer func() {
		c.queue.leave(place)
		c.mu.Lock()
		delete(c.live, r.ID)
		c.mu.Unlock()
		close(l.done)
	}()
	x, err := c.newAttempt(ctx, r)
	if err != nil {
		c.Log.ErrorContext(ctx, "a run could not be begun", "run", r.ID, "err", err)
		return
	}
	c.mu.Lock()
	l.tell = x.rec.add
	c.mu.Unlock()
	x.waited(place)
	select {
	case <-place.ready:
	case <-ctx.Done():
	}
	x.run(ctx)
}

// runDir is where what belongs to a run is, below the data directory.
func runDir(id caisson.ID) string { return path.Join("runs", string(id)) }

// The files that hold what is put into a run's workspace: an archive of one tree called workspace, or one of names relative to it, which
// nobody but the sandbox reads.
const (
	workspaceTar = "workspace.tar"
	uploadTar    = "upload.tar"
)

func (c entrance) removeDir(id caisson.ID) error { return c.Dir.RemoveAll(runDir(id)) }

// spool keeps what is to be put into the run's workspace: attempts may begin when the caller has gone.
func (c entrance) spool(ctx context.Context, r *caisson.Run) (err error) {
	if err := c.Dir.MkdirAll(runDir(r.ID), 0o700); err != nil {
		return err
	}
	if r.Request.Directory == nil && r.Request.Workspace == nil {
		return nil
	}
	name := workspaceTar
	if r.Request.Workspace != nil {
		name = uploadTar
	}
	f, err := c.Dir.OpenFile(path.Join(runDir(r.ID), name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &bounded{w: f, left: int64(c.Limits.Workspace), ctx: ctx, err: caisson.Errorf(caisson.Exhausted,
		"the directory is larger than %s, which is the most that is copied into a workspace; choose a smaller one, or raise limits.workspace", c.Limits.Workspace)}
	if r.Request.Workspace != nil {
		_, err := io.Copy(w, r.Request.Workspace)
		return err
	}
	// The descriptor is the caller's own: what he may not read was not opened, and everything else is found below it.
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(r.Request.Directory.Fd())))
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the directory %s cannot be read", r.Request.Source)
	}
	defer root.Close()
	if err := c.notOurs(root); err != nil {
		return err
	}
	return tree.Pack(root, ".", workspaceName, w)
}

// workspaceName is what the workspace is called in archives.
const workspaceName = "workspace"

// notOurs refuses a directory that is, or has directly in it, the data directory: it holds every account's secrets.
func (c entrance) notOurs(root *os.Root) error {
	own, err := c.Dir.Stat(".")
	if err != nil {
		return err
	}
	for dir := c.Dir.Name(); ; dir = path.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		asked, err := root.Stat(".")
		if err != nil {
			return err
		}
		if os.SameFile(info, asked) || os.SameFile(own, asked) {
			return caisson.Invalidf("source", "the directory contains Caisson's own data, which no sandbox may see; choose another")
		}
		if dir == "/" || dir == "." {
			return nil
		}
	}
}

// bounded fails once more than left bytes were written, or ctx has ended.
type bounded struct {
	w    io.Writer
	left int64
	ctx  context.Context
	err  error
}

func (b *bounded) Write(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, b.err
	}
	n, err := b.w.Write(p)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = caisson.Wrap(err, caisson.Exhausted, "the disk is full; free some space in the data directory")
	}
	return n, err
}

// GetRun implements [caisson.Runs].
func (c runs) GetRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	return c.Store.Runs().Get(ctx, in, id)
}

// ListRuns implements [caisson.Runs].
func (c runs) ListRuns(ctx context.Context, f caisson.RunFilter) ([]*caisson.Run, bool, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, false, err
	}
	return c.Store.Runs().List(ctx, in, f)
}

// errCancelled is why an attempt ends that somebody has cancelled.
type errCancelled struct{ by string }

func (e errCancelled) Error() string { return e.by }

// CancelRun implements [caisson.Runs].
func (c runs) CancelRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	r, err := c.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	by := "it was cancelled"
	if actor := caisson.ActorOf(ctx); actor != "" {
		by += " by " + actor
	}
	if err := c.cancelTree(ctx, r, by); err != nil {
		return nil, err
	}
	return c.GetRun(ctx, id)
}

// cancelTree ends a run and all that were started from within it, and waits for it.
func (c runs) cancelTree(ctx context.Context, r *caisson.Run, by string) error {
	under, err := c.under(ctx, r)
	if err != nil {
		return err
	}
	var wait []*live
	c.mu.Lock()
	for _, id := range append([]caisson.ID{r.ID}, under...) {
		if l := c.live[id]; l != nil {
			l.cancel(errCancelled{by})
			wait = append(wait, l)
		}
	}
	c.mu.Unlock()
	for _, l := range wait {
		select {
		case <-l.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// under returns the runs within r that have not ended.
func (c runs) under(ctx context.Context, r *caisson.Run) ([]caisson.ID, error) {
	if r.Children == 0 && r.State.Ended() {
		return nil, nil
	}
	f := caisson.RunFilter{Under: r.ID, States: []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}, Limit: 1000}
	list, _, err := c.Store.Runs().List(ctx, caisson.In(r.Account), f)
	var ids []caisson.ID
	for _, o := range list {
		if o.ID != r.ID {
			ids = append(ids, o.ID)
		}
	}
	return ids, err
}

// RetryRun implements [caisson.Runs].
func (c runs) RetryRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	in, caller, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	r, err := c.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(r.Lineage) > 0 {
		return nil, caisson.Errorf(caisson.Conflict, "run %s is part of run %s; retry that one", id, r.Lineage[0])
	}
	if r.Local && !caller.Local {
		return nil, caisson.Errorf(caisson.Denied, "run %s was started over the unix socket and can only be retried there", id)
	}
	var session *caisson.Session
	if r.Session != "" {
		if session, err = c.sessions.claim(ctx, r); err != nil {
			return nil, err
		}
	}
	r, err = c.Store.Runs().Update(ctx, in, id, func(r *caisson.Run) error {
		if r.State != caisson.RunFailed {
			return caisson.Errorf(caisson.Conflict, "only a run that has failed can be retried; this one is %s", r.State)
		}
		if r.Result != nil {
			r.Previous = append(r.Previous, *r.Result)
			r.Previous = slices.Delete(r.Previous, 0, max(0, len(r.Previous)-maxPrevious))
		}
		r.Attempt++
		r.State, r.Result, r.Trace, r.Children = caisson.RunQueued, nil, newTrace(), 0
		r.StartedAt, r.EndedAt, r.Deadline, r.Sandbox = time.Time{}, time.Time{}, time.Time{}, ""
		if session != nil {
			r.Session = session.ID
		}
		return nil
	})
	if err != nil {
		if session != nil {
			err = errors.Join(err, c.sessions.unclaim(context.WithoutCancel(ctx), &caisson.Run{ID: id, Session: session.ID, Account: session.Account}, nil))
		}
		return nil, err
	}
	c.event(ctx, r.Account, "run.retried", string(r.ID), map[string]string{"attempt": strconv.Itoa(r.Attempt), "trace": r.Trace})
	return r, c.entrance.queueAttempt(r)
}

// maxPrevious bounds how many outcomes of earlier attempts a run keeps.
const maxPrevious = 20

// RemoveRun implements [caisson.Runs].
func (c runs) RemoveRun(ctx context.Context, id caisson.ID) error {
	in, _, err := scope(ctx)
	if err != nil {
		return err
	}
	r, err := c.GetRun(ctx, id)
	if err != nil {
		return err
	}
	if !r.State.Ended() {
		return caisson.Errorf(caisson.Conflict, "run %s is %s; cancel it first", id, r.State)
	}
	// The record first: a directory without one is garbage, a record without a directory is a lie.
	if err := c.Store.Runs().Delete(ctx, in, id); err != nil {
		return err
	}
	c.event(ctx, r.Account, "run.removed", string(id), nil)
	return c.entrance.removeDir(id)
}
