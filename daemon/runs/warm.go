package runs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// warmSnapshots manages the warm snapshots of agents: one for each account and agent, captured before the sandbox contains any
// of the account's data.
type warmSnapshots struct {
	capturer   *capturer         // takes a warm snapshot
	service    caisson.Snapshots // removes snapshots
	background *background.Group
	events     caisson.Publisher
	log        *slog.Logger

	mu         sync.Mutex
	captures   map[string]*capture  // captures in progress; the key is the account, "/" and the id of the agent; guarded by mu
	scheduled  map[string]bool      // accounts and agents whose snapshot is being made in the background; guarded by mu
	retryAfter map[string]time.Time // end of the delay after a failed capture, by account and agent; guarded by mu
	failed     map[string]string    // error of the last capture, by account and agent; guarded by mu
}

// A capture is a warm snapshot that is being made. The capture is cancelled when no caller waits for it any longer.
type capture struct {
	done chan struct{}     // closed when snap and err are set
	snap *caisson.Snapshot // the snapshot; nil after an error
	err  error             // error of the capture; nil if it succeeded

	stop    context.CancelFunc // cancels the capture
	waiting map[*waiter]bool   // callers that wait for the capture; guarded by warmSnapshots.mu
}

// A waiter is a caller that waits for a capture, and receives reports of its progress.
type waiter struct {
	mu       sync.Mutex
	progress func(caisson.Progress) // receives the reports; nil once the caller has returned; guarded by mu
}

// report passes progress to the caller, unless the caller has returned.
func (t *waiter) report(p caisson.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.progress != nil {
		t.progress(p)
	}
}

// remakeDelay is how long after a failure a warm snapshot is not made in the background again.
const remakeDelay = 10 * time.Minute

// warmTimeout is the time limit for a capture: the agent boots, answers the warm-up prompts, and the snapshot is taken.
const warmTimeout = 10 * time.Minute

// usesWarmSnapshot reports whether runs of the agent are forks of a warm snapshot. They are if the agent has a service, which
// takes long to boot, and its entry configures warm snapshots.
func usesWarmSnapshot(a *caisson.Agent) bool {
	return a.Warm != nil && a.Warm.Randomness != "" && len(a.Service) > 0
}

// makeInBackground makes the agent's warm snapshot in the background, unless the snapshot is already being made, or making it
// failed less than remakeDelay ago.
func (w *warmSnapshots) makeInBackground(a *caisson.Agent, account string) {
	id := account + "/" + a.ID
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.scheduled[id] || w.captures[id] != nil || time.Now().Before(w.retryAfter[id]) {
		return
	}
	w.scheduled[id] = w.background.Start(func(ctx context.Context) {
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.scheduled, id)
		}()
		ctx = caisson.WithCaller(ctx, caisson.Caller{Account: account})
		if _, err := w.make(ctx, a.ID, false, func(caisson.Progress) {}); err != nil && ctx.Err() == nil {
			w.log.WarnContext(ctx, "a warm snapshot could not be made", "agent", a.ID, "account", account, "err", err)
			w.events.Publish(ctx, account, "agent.cold", a.ID, map[string]string{"reason": caisson.MessageOf(err)})
		}
	})
}

// replace removes a warm snapshot whose forks do not start, and makes another one. Both happen in the background.
func (w *warmSnapshots) replace(a *caisson.Agent, account string, snap *caisson.Snapshot) {
	w.background.Start(func(ctx context.Context) {
		ctx = caisson.WithCaller(ctx, caisson.Caller{Account: account})
		err := w.service.RemoveSnapshot(ctx, string(snap.ID))
		switch {
		case caisson.KindOf(err) == caisson.NotFound:
			return // another run has already removed it
		case err != nil:
			w.log.WarnContext(ctx, "a warm snapshot that does not start could not be removed", "snapshot", snap.ID, "err", err)
			return
		}
		w.events.Publish(ctx, account, "agent.snapshot.broken", a.ID, map[string]string{"snapshot": string(snap.ID)})
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
	m := w.captures[id]
	if m == nil {
		m = &capture{done: make(chan struct{}), waiting: map[*waiter]bool{}}
		// The capture can outlive the request of the first caller, and has the rights of that caller.
		cctx, cancel := context.WithTimeout(caisson.WithCaller(w.background.Context(), caller), warmTimeout)
		m.stop = cancel
		if !w.background.Start(func(context.Context) {
			defer cancel()
			w.runCapture(cctx, m, id, agent, fresh)
		}) {
			w.mu.Unlock()
			cancel()
			return nil, caisson.Errorf(caisson.Unavailable, "the daemon is shutting down")
		}
		w.captures[id] = m
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

// abandon removes a waiter from the capture m, whose key is id, and cancels the capture if no waiter is left.
func (w *warmSnapshots) abandon(m *capture, me *waiter, id string) {
	me.mu.Lock()
	me.progress = nil
	me.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(m.waiting, me); len(m.waiting) == 0 && w.captures[id] == m {
		m.stop()
		delete(w.captures, id)
	}
}

// runCapture makes the warm snapshot of an agent as the capture m, and sends its progress to the waiters. id is the key of m in
// w.captures. If fresh is true, it makes a new snapshot even if there is a current one.
func (w *warmSnapshots) runCapture(ctx context.Context, m *capture, id, agent string, fresh bool) {
	snap, err := w.capturer.capture(ctx, agent, fresh, func(p caisson.Progress) {
		w.mu.Lock()
		all := slices.Collect(maps.Keys(m.waiting))
		w.mu.Unlock()
		for _, t := range all {
			t.report(p)
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.captures[id] == m { // false if all waiters have abandoned the capture
		delete(w.captures, id)
		delete(w.retryAfter, id)
		delete(w.failed, id)
		if err != nil {
			w.retryAfter[id], w.failed[id] = time.Now().Add(remakeDelay), caisson.MessageOf(err)
		}
	}
	m.snap, m.err = snap, err
	close(m.done)
}

// problem returns the error of the last capture of an agent's warm snapshot; "" if it succeeded, or there was none.
func (w *warmSnapshots) problem(account, agent string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed[account+"/"+agent]
}

// hashParts returns a hash of parts, encoded as JSON.
func hashParts(parts ...any) (string, error) {
	data, err := json.Marshal(parts)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}

// snapshots finds and removes warm snapshots, and sets the sizes of their pools.
type snapshots struct {
	service  Snapshots        // lists and removes snapshots, and sets the sizes of their pools
	services *services        // starts the services of agents
	programs caisson.Programs // sets of programs that this daemon supports
}

// key returns a hash of everything that a warm snapshot of the agent depends on, except dependencies that are checked when the
// snapshot is restored.
func (s *snapshots) key(ctx context.Context, a *caisson.Agent, t *preparedTemplate) (string, error) {
	models, err := s.services.usableModels(ctx, a)
	if err != nil {
		return "", err
	}
	// Models that were added after the snapshot can be used in its forks, so only the models of personas are part of the key: a
	// persona keeps the model with which it was started.
	models = slices.DeleteFunc(models, func(m caisson.Model) bool {
		return !slices.ContainsFunc(a.Personas, func(p caisson.Persona) bool { return p.Model == m.Alias })
	})
	for i, m := range models {
		models[i] = caisson.Model{Alias: m.Alias, Context: m.Context, Output: m.Output}
	}
	b := *a
	// Fields that concern only single runs do not change the snapshot.
	b.Status, b.CreatedAt, b.Name, b.Description, b.Policy, b.Models, b.APIs, b.SubAgents = caisson.AgentStatus{}, time.Time{}, "", "", caisson.Policy{}, nil, nil, nil
	b.Gateway = caisson.GatewayUse{}
	b.Limits.Time, b.Limits.Output, b.Limits.Cost, b.Limits.Tokens, b.Limits.Calls, b.Limits.Runs = 0, 0, nil, nil, nil, nil
	if b.Warm != nil {
		b.Warm = new(*b.Warm)
		b.Warm.Pool = 0
	}
	return hashParts(b, models, t.name, t.key)
}

// current returns the warm snapshot that runs of the agent are forked from now, or nil if there is none.
func (s *snapshots) current(ctx context.Context, a *caisson.Agent, t *preparedTemplate) (*caisson.Snapshot, error) {
	if !usesWarmSnapshot(a) {
		return nil, nil
	}
	key, err := s.key(ctx, a, t)
	if err != nil {
		return nil, err
	}
	list, err := s.list(ctx, a.ID)
	i := slices.IndexFunc(list, func(o *caisson.Snapshot) bool {
		return o.Labels[labelKey] == key && o.Memory && s.programs.Supports(o.Depends.Build)
	})
	if err != nil || i < 0 {
		return nil, err
	}
	return list[i], nil
}

// setPool sets the size of the pool of snap, a new warm snapshot. The size is that of the agent or, if that is 0, the first
// size that is not 0 in replaced, the snapshots that snap replaces.
func (s *snapshots) setPool(ctx context.Context, a *caisson.Agent, snap *caisson.Snapshot, replaced []*caisson.Snapshot) error {
	size := a.Warm.Pool
	for i := 0; size == 0 && i < len(replaced); i++ {
		size = replaced[i].Pool
	}
	if size == 0 {
		return nil
	}
	return s.resize(ctx, snap.ID, size)
}

// resize sets the size of the pool of a warm snapshot.
func (s *snapshots) resize(ctx context.Context, id caisson.ID, size int) error {
	return s.service.SetPool(ctx, string(id), size)
}

// list returns the warm snapshots that the caller's account has of an agent, newest first.
func (s *snapshots) list(ctx context.Context, agent string) ([]*caisson.Snapshot, error) {
	list, _, err := s.service.ListSnapshots(ctx, caisson.Filter{Labels: map[string]string{labelAgent: agent}, Limit: 1000})
	list = slices.DeleteFunc(list, func(o *caisson.Snapshot) bool { return o.Labels[labelKey] == "" })
	slices.Reverse(list)
	return list, err
}

// dropOthers removes all warm snapshots of an agent except keep.
func (s *snapshots) dropOthers(ctx context.Context, agent string, keep caisson.ID) error {
	list, err := s.list(ctx, agent)
	for _, o := range list {
		if o.ID == keep {
			continue
		}
		if rerr := caisson.IgnoreNotFound(s.service.RemoveSnapshot(ctx, string(o.ID))); rerr != nil {
			err = errors.Join(err, fmt.Errorf("remove the snapshot %s: %w", o.ID, rerr))
		}
	}
	return err
}
