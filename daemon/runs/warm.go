package runs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/tail"
)

// WarmModel is the model for warming up agents: it follows a script and costs nothing. Runs cannot request it.
const WarmModel = "caisson-warm-up"

var warmModel = caisson.Model{Alias: WarmModel, Free: true, Context: 200_000, Output: 8192}

// keyOf returns a hash of parts.
func keyOf(parts ...any) (string, error) {
	data, err := json.Marshal(parts)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}

// warmSnapshots manages the warm snapshots of agents: one for each account and agent, captured before the sandbox contains any
// of the account's data.
type warmSnapshots struct {
	c *Core

	mu         sync.Mutex
	making     map[string]*capture  // captures in progress, by account and agent; guarded by mu
	scheduled  map[string]bool      // agents whose snapshot is being made in the background; guarded by mu
	retryAfter map[string]time.Time // time before which a failed capture is not retried in the background; guarded by mu
	failed     map[string]string    // error of the last capture; guarded by mu
}

// A capture is a warm snapshot that is being made. It is cancelled when no caller waits for it any longer.
type capture struct {
	done chan struct{} // closed when snap and err are set
	snap *caisson.Snapshot
	err  error

	stop    context.CancelFunc
	waiting map[*waiter]bool // guarded by warmSnapshots.mu
}

// A waiter is a caller that waits for a capture, and gets its progress.
type waiter struct {
	mu       sync.Mutex
	progress func(caisson.Progress) // nil once the caller has returned; guarded by mu
}

func (t *waiter) report(p caisson.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.progress != nil {
		t.progress(p)
	}
}

// remakeDelay is how long after a failure a warm snapshot is not retried in the background.
const remakeDelay = 10 * time.Minute

// warmTimeout is the time limit for an agent to boot, answer once and be captured.
const warmTimeout = 10 * time.Minute

func newWarmSnapshots(c *Core) *warmSnapshots {
	return &warmSnapshots{c: c, making: map[string]*capture{}, scheduled: map[string]bool{}, retryAfter: map[string]time.Time{}, failed: map[string]string{}}
}

// key returns a hash of all that a warm snapshot of the agent depends on, except what is checked when it is restored.
func (w *warmSnapshots) key(ctx context.Context, a *caisson.Agent, t *prepared) (string, error) {
	models, err := w.c.builder.usable(ctx, a)
	if err != nil {
		return "", err
	}
	b := *a
	// Fields that concern only single runs do not change the snapshot.
	b.Status, b.CreatedAt, b.Name, b.Description, b.Policy, b.Models, b.APIs, b.SubAgents = caisson.AgentStatus{}, time.Time{}, "", "", caisson.Policy{}, nil, nil, nil
	b.Limits.Time, b.Limits.Output, b.Limits.Cost, b.Limits.Tokens, b.Limits.Calls, b.Limits.Runs = 0, 0, nil, nil, nil, nil
	return keyOf(b, models, t.name, t.key, w.c.Build)
}

// usesWarmSnapshot reports whether runs of the agent are forks of a warm snapshot: those of agents with a service, which takes long to boot.
func usesWarmSnapshot(a *caisson.Agent) bool {
	return a.Warm != nil && a.Warm.Randomness != "" && len(a.Service) > 0
}

// current returns the warm snapshot that runs of the agent fork, or nil.
func (w *warmSnapshots) current(ctx context.Context, a *caisson.Agent, t *prepared) (*caisson.Snapshot, error) {
	if !usesWarmSnapshot(a) {
		return nil, nil
	}
	key, err := w.key(ctx, a, t)
	if err != nil {
		return nil, err
	}
	list, err := w.list(ctx, a.ID)
	i := slices.IndexFunc(list, func(s *caisson.Snapshot) bool { return s.Labels[labelKey] == key && s.Memory })
	if err != nil || i < 0 {
		return nil, err
	}
	return list[i], nil
}

// list returns the warm snapshots that the caller's account has of an agent, newest first.
func (w *warmSnapshots) list(ctx context.Context, agent string) ([]*caisson.Snapshot, error) {
	list, _, err := w.c.Sandboxes.Snapshots.ListSnapshots(ctx, caisson.Filter{Labels: map[string]string{labelAgent: agent}, Limit: 1000})
	list = slices.DeleteFunc(list, func(s *caisson.Snapshot) bool { return s.Labels[labelKey] == "" })
	slices.Reverse(list)
	return list, err
}

// makeInBackground makes the agent's warm snapshot in the background, unless that is already in progress, or failed a short time
// ago.
func (w *warmSnapshots) makeInBackground(a *caisson.Agent, account string) {
	id := account + "/" + a.ID
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.scheduled[id] || w.making[id] != nil || time.Now().Before(w.retryAfter[id]) {
		return
	}
	w.scheduled[id] = w.c.goBackground(func() {
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.scheduled, id)
		}()
		ctx := caisson.WithCaller(w.c.ctx, caisson.Caller{Account: account})
		if _, err := w.make(ctx, a.ID, false, func(caisson.Progress) {}); err != nil && ctx.Err() == nil {
			w.c.Log.WarnContext(ctx, "a warm snapshot could not be made", "agent", a.ID, "account", account, "err", err)
			w.c.Events.Publish(ctx, account, "agent.cold", a.ID, map[string]string{"reason": caisson.MessageOf(err)})
		}
	})
}

// replace removes a warm snapshot that does not start, and makes another one.
func (w *warmSnapshots) replace(a *caisson.Agent, account string, snap *caisson.Snapshot) {
	w.c.goBackground(func() {
		ctx := caisson.WithCaller(w.c.ctx, caisson.Caller{Account: account})
		err := w.c.Sandboxes.Snapshots.RemoveSnapshot(ctx, string(snap.ID))
		switch {
		case caisson.KindOf(err) == caisson.NotFound:
			return // another run has already removed it
		case err != nil:
			w.c.Log.WarnContext(ctx, "a warm snapshot that does not start could not be removed", "snapshot", snap.ID, "err", err)
			return
		}
		w.c.Events.Publish(ctx, account, "agent.snapshot.broken", a.ID, map[string]string{"snapshot": string(snap.ID)})
		w.makeInBackground(a, account)
	})
}

// make makes the agent's warm snapshot, or waits for a capture in progress. If fresh is false, it returns the current
// snapshot if there is one.
func (w *warmSnapshots) make(ctx context.Context, agent string, fresh bool, progress func(caisson.Progress)) (*caisson.Snapshot, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	id, me := caller.Account+"/"+agent, &waiter{progress: progress}
	w.mu.Lock()
	m := w.making[id]
	if m == nil {
		m = &capture{done: make(chan struct{}), waiting: map[*waiter]bool{}}
		// The capture has the lifetime of the core, and the rights of the first caller.
		cctx, cancel := context.WithTimeout(caisson.WithCaller(w.c.ctx, caller), warmTimeout)
		m.stop = cancel
		if !w.c.goBackground(func() {
			defer cancel()
			w.runCapture(cctx, m, id, agent, fresh)
		}) {
			w.mu.Unlock()
			cancel()
			return nil, caisson.Errorf(caisson.Unavailable, "the daemon is shutting down")
		}
		w.making[id] = m
	} else {
		me.report(caisson.Progress{Stage: "wait", Detail: "it is already being made"})
	}
	m.waiting[me] = true
	w.mu.Unlock()
	defer w.abandon(m, me, id)
	select {
	case <-m.done:
		return m.snap, m.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// abandon removes a waiter from a capture, which is cancelled if no waiter is left.
func (w *warmSnapshots) abandon(m *capture, me *waiter, id string) {
	me.mu.Lock()
	me.progress = nil
	me.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(m.waiting, me); len(m.waiting) == 0 && w.making[id] == m {
		m.stop()
		delete(w.making, id)
	}
}

// runCapture runs a capture, and sends its progress to the waiters.
func (w *warmSnapshots) runCapture(ctx context.Context, m *capture, id, agent string, fresh bool) {
	snap, err := w.capture(ctx, agent, fresh, func(p caisson.Progress) {
		w.mu.Lock()
		all := slices.Collect(maps.Keys(m.waiting))
		w.mu.Unlock()
		for _, t := range all {
			t.report(p)
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.making[id] == m { // otherwise it has been abandoned
		delete(w.making, id)
		delete(w.retryAfter, id)
		delete(w.failed, id)
		if err != nil {
			w.retryAfter[id], w.failed[id] = time.Now().Add(remakeDelay), caisson.MessageOf(err)
		}
	}
	m.snap, m.err = snap, err
	close(m.done)
}

// capture boots the agent, runs the warm-up turns, and takes the snapshot.
func (w *warmSnapshots) capture(ctx context.Context, id string, fresh bool, progress func(caisson.Progress)) (_ *caisson.Snapshot, err error) {
	c := w.c
	a, err := c.builder.complete(ctx, id)
	if err != nil {
		return nil, err
	}
	if !usesWarmSnapshot(a) {
		return nil, caisson.Invalidf("warm", "agent %s has no service, so its runs do not use a warm snapshot", id)
	}
	template, err := c.builder.prepare(ctx, a, "", progress)
	if err != nil {
		return nil, err
	}
	if !fresh {
		if snap, err := w.current(ctx, a, template); err != nil || snap != nil {
			return snap, err
		}
	}
	key, err := w.key(ctx, a, template)
	if err != nil {
		return nil, err
	}
	progress(caisson.Progress{Stage: "boot"})
	req := template.create(a)
	warmup := &caisson.Run{ID: caisson.NewID(caisson.RunPrefix), Agent: a.ID, Attempt: 1, Trace: newTrace(), Model: WarmModel, Limits: a.Limits}
	req.Labels = map[string]string{labelAgent: a.ID, labelKey: key}
	if c.Workspaces != nil {
		req.Placeholder = a.Workdir
	}
	req.Policy = &caisson.Policy{} // without network access, so that the snapshot contains nothing from the network
	req.Assigned = &caisson.Assignment{
		Run: warmup.ID, Attempt: 1, Agent: a.ID, Trace: warmup.Trace, Models: &caisson.ModelGrant{Models: []string{WarmModel}},
	}
	box, err := c.Sandboxes.Lifecycle.Create(c.builder.asAuthor(ctx, a), req)
	if err != nil {
		return nil, err
	}
	defer func() {
		rerr := c.Sandboxes.Lifecycle.Remove(context.WithoutCancel(ctx), string(box.ID))
		if caisson.KindOf(rerr) != caisson.NotFound {
			err = errors.Join(err, rerr)
		}
	}()
	models, err := c.builder.usable(ctx, a)
	if err != nil {
		return nil, err
	}
	if err := c.builder.serve(ctx, box.ID, a, append([]caisson.Model{warmModel}, models...)); err != nil {
		return nil, err
	}
	if err := w.warmUp(ctx, a, box, warmup, progress); err != nil {
		return nil, err
	}
	if _, err := c.Sandboxes.Assign(ctx, box.ID, nil); err != nil {
		return nil, err
	}
	progress(caisson.Progress{Stage: "snapshot"})
	snap, err := c.Sandboxes.Snapshots.Snapshot(ctx, string(box.ID), caisson.SnapshotRequest{Labels: req.Labels})
	if err != nil {
		return nil, err
	}
	c.Events.Publish(ctx, snap.Account, "agent.warmed", a.ID, map[string]string{"snapshot": string(snap.ID), "size": snap.Size.String()})
	return snap, w.dropOthers(ctx, a.ID, snap.ID)
}

// warmUp waits until the agent is ready, runs the warm-up turns, and reduces the agent's size.
func (w *warmSnapshots) warmUp(ctx context.Context, a *caisson.Agent, box *caisson.Sandbox, run *caisson.Run, progress func(caisson.Progress)) error {
	c := w.c
	t := &task.Task{
		Driver: a.Driver, Prompt: a.Warm.Prompt, PromptMode: a.Prompt, Events: a.Events, Workdir: a.Workdir, Model: WarmModel,
		Session: string(run.ID), Ready: a.Ready, ReadyTime: caisson.Duration(warmTimeout), Time: caisson.Duration(warmTimeout),
		Grace: caisson.Duration(c.Limits.Grace), Output: 1 << 20, Files: a.Files, Env: map[string]string{"OPENAI_BASE_URL": gatewayURL + "/v1"},
	}
	warm := *a
	warm.Models = nil // it may call the warm-up model
	set, err := agent.Resolve(&warm, caisson.RunRequest{Agent: a.ID, Prompt: a.Warm.Prompt, Model: WarmModel},
		agent.Defaults{Models: []caisson.GatewayModel{{Model: warmModel}}}, caisson.HostCaller("", "warm up an agent"))
	if err != nil {
		return err
	}
	t.Command = set.Command
	maps.Copy(t.Env, set.Env)
	if recipe := c.Recipes[a.Driver]; recipe != nil {
		if err := recipe.Turn(t, Turn{Agent: a, Run: run, Models: []caisson.Model{warmModel}, First: true, Warmup: true}); err != nil {
			return err
		}
	}
	if t.Prompt == "" {
		return caisson.Invalidf("warm.prompt", "agent %s says nothing to warm it up with", a.ID)
	}
	// The first turn loads the agent's code, the following ones compile the code that is executed repeatedly.
	for i := range max(1, a.Warm.Rounds) {
		t.Session = fmt.Sprintf("%s-%d", run.ID, i)
		if err := w.turn(ctx, a, box, t, progress); err != nil {
			return err
		}
		t.Files, t.Remove = nil, nil
	}
	if recipe := c.Recipes[a.Driver]; recipe != nil {
		for _, command := range recipe.Settle(a) {
			progress(caisson.Progress{Stage: "settle", Detail: strings.Join(command, " ")})
			if err := c.guestExec.execute(ctx, box.ID, command); err != nil {
				return err
			}
		}
	}
	return nil
}

// turn runs one warm-up turn, and returns an error if there is no answer.
func (w *warmSnapshots) turn(ctx context.Context, a *caisson.Agent, box *caisson.Sandbox, t *task.Task, progress func(caisson.Progress)) error {
	c := w.c
	var said strings.Builder
	progress(caisson.Progress{Stage: "warm up"})
	end, err := c.guestExec.runDriver(ctx, box.ID, t, func(l *task.Line) {
		switch l.Type {
		case caisson.EventTextDelta:
			said.WriteString(l.Delta)
		case task.LineMark:
			progress(caisson.Progress{Stage: "warm up", Detail: l.Mark})
		case task.LineLog:
			progress(caisson.Progress{Stage: "warm up", Message: strings.TrimSpace(string(l.Data))})
		}
	})
	switch {
	case err != nil:
		return caisson.Wrap(err, caisson.Unavailable, "the agent %s did not warm up: %v", a.ID, err)
	case end.Error != nil:
		return caisson.Errorf(caisson.Unavailable, "the agent %s did not warm up: %s", a.ID, end.Error.Message)
	case said.Len() == 0:
		return caisson.Errorf(caisson.Unavailable, "the agent %s did not warm up: it gave no answer", a.ID)
	}
	return nil
}

// execute runs a program in a sandbox, and returns an error if it fails.
func (c guestExec) execute(ctx context.Context, box caisson.ID, command []string) error {
	p, err := c.Sandboxes.Processes.Exec(ctx, string(box), caisson.ExecRequest{Command: command, Timeout: caisson.Duration(time.Minute), Workdir: "/"})
	if err != nil {
		return err
	}
	defer p.Close()
	out := make(chan string, 2)
	go func() { out <- tail.Read(p.Stdout(), maxShownOutput) }()
	go func() { out <- tail.Read(p.Stderr(), maxShownOutput) }()
	status, err := p.Wait(ctx)
	if err != nil || status.Success() {
		return err
	}
	return caisson.Errorf(caisson.Unavailable, "%s %s; it said last: %.200q", command[0], status, <-out+<-out)
}

// dropOthers removes all warm snapshots of an agent except keep.
func (w *warmSnapshots) dropOthers(ctx context.Context, agent string, keep caisson.ID) error {
	list, err := w.list(ctx, agent)
	for _, s := range list {
		if s.ID == keep {
			continue
		}
		if rerr := w.c.Sandboxes.Snapshots.RemoveSnapshot(ctx, string(s.ID)); rerr != nil && caisson.KindOf(rerr) != caisson.NotFound {
			err = errors.Join(err, fmt.Errorf("remove the snapshot %s: %w", s.ID, rerr))
		}
	}
	return err
}

// problem returns the error of the last attempt to make an agent's warm snapshot; "" if it succeeded.
func (w *warmSnapshots) problem(account, agent string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed[account+"/"+agent]
}
