package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// A finder resolves references to sandboxes for the caller of a request.
type finder struct {
	sandboxes caisson.Table[caisson.Sandbox]
	programs  caisson.Programs // sets of programs that this daemon supports
}

// find returns the sandbox of the caller's account with the id or name ref.
func (f finder) find(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	return f.sandboxes.Get(ctx, in, ref)
}

// findFor returns the sandbox of the caller's account with the id or name ref, and an error if its state forbids the verb v.
func (f finder) findFor(ctx context.Context, ref string, v caisson.Verb) (*caisson.Sandbox, error) {
	sb, err := f.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return sb, f.allow(sb, v)
}

// nextSteps maps a state in which a sandbox cannot be used to the command that makes the sandbox usable. [finder.allow] appends
// the command to its error messages.
var nextSteps = map[caisson.State]caisson.Verb{
	caisson.Created: caisson.VerbStart, caisson.Stopped: caisson.VerbStart, caisson.Paused: caisson.VerbResume, caisson.Suspended: caisson.VerbWake,
}

// allow returns an error if the verb v is not allowed in the state of sb. A sandbox that runs with programs that this daemon does
// not support can only be stopped or removed; its next start uses the current programs.
func (f finder) allow(sb *caisson.Sandbox, v caisson.Verb) error {
	if err := sb.State.Allow(v); err != nil {
		if step := nextSteps[sb.State]; step != "" && v != caisson.VerbStop {
			return caisson.Wrap(err, caisson.Conflict, "%s: caisson sandbox %s %s", caisson.MessageOf(err), step, cmp.Or(sb.Name, string(sb.ID)))
		}
		return err
	}
	if hasWire(sb) && !f.programs.Supports(sb.Build) && v != caisson.VerbStop && v != caisson.VerbRemove {
		return caisson.Errorf(caisson.Conflict, "cannot %s a sandbox that was started with programs %s; stop and start it first, or use that build", v, f.programs.DescribeBuild(sb.Build))
	}
	return nil
}

// states reads and changes the stored records of sandboxes of any account, and publishes events about sandboxes.
type states struct {
	sandboxes caisson.Table[caisson.Sandbox]
	events    caisson.Publisher
}

// get returns the record of a sandbox of any account.
func (s states) get(ctx context.Context, id caisson.ID) (*caisson.Sandbox, error) {
	return s.sandboxes.Get(ctx, caisson.AllAccounts(), string(id))
}

// list returns the records of all sandboxes in a scope, which is one account or all accounts.
func (s states) list(ctx context.Context, in caisson.Scope) ([]*caisson.Sandbox, error) {
	return caisson.ListAll(ctx, s.sandboxes, in, sandboxID)
}

// sandboxID returns the id of a sandbox: the key by which the store lists sandboxes in pages.
func sandboxID(s *caisson.Sandbox) caisson.ID { return s.ID }

// snapshotID returns the id of a snapshot: the key by which the store lists snapshots in pages.
func snapshotID(s *caisson.Snapshot) caisson.ID { return s.ID }

// imageKey returns the reference of an image: the key by which the store lists images in pages.
func imageKey(i *caisson.Image) caisson.ID { return caisson.ID(i.Reference) }

// templateKey returns the name of a template: the key by which the store lists templates in pages.
func templateKey(t *caisson.Template) caisson.ID { return caisson.ID(t.Name) }

// insertOrChange inserts obj under a name. If the account already has an object with that name, it applies the function change to
// the stored object instead. It returns the stored object.
func insertOrChange[T any](ctx context.Context, table caisson.Table[T], account, name string, obj *T, change func(old *T) error) (*T, error) {
	for {
		stored, err := table.Update(ctx, caisson.In(account), name, change)
		if caisson.KindOf(err) != caisson.NotFound {
			return stored, err
		}
		// A concurrent request may have inserted the same object; then that one is changed.
		if err = table.Insert(ctx, obj); caisson.KindOf(err) != caisson.Conflict {
			return obj, err
		}
	}
}

// errUnchanged is the error with which the function of an update cancels the update, because there is nothing to change.
var errUnchanged = errors.New("unchanged")

// set stores the new state of a sandbox and the fields that the function change sets. It updates ChangedAt, PauseAt, WakeAt and
// IdleSince to match the new state. change may be nil.
func (s states) set(ctx context.Context, id caisson.ID, to caisson.State, change func(*caisson.Sandbox) error) (*caisson.Sandbox, error) {
	return s.sandboxes.Update(ctx, caisson.AllAccounts(), string(id), func(s *caisson.Sandbox) error {
		if change != nil {
			if err := change(s); err != nil {
				return err
			}
		}
		if s.State != to {
			s.ChangedAt = now()
		}
		s.State = to
		if !to.Live() {
			s.PauseAt = nil // Only live sandboxes can be paused.
		}
		if to == caisson.Stopped || to == caisson.Failed {
			s.WakeAt = nil
		}
		setIdleSince(s, to, now())
		return nil
	})
}

// update stores the fields of a sandbox that the function change sets.
func (s states) update(ctx context.Context, id caisson.ID, change func(*caisson.Sandbox) error) (*caisson.Sandbox, error) {
	return s.sandboxes.Update(ctx, caisson.AllAccounts(), string(id), change)
}

// setIdleSince updates IdleSince of a sandbox that changes to the state to. For Suspended and Paused, it sets IdleSince to last,
// the time of the last use, unless IdleSince is already set. It clears IdleSince for Running, Stopped and Failed, and if the
// sandbox has no AutoPause.
func setIdleSince(sb *caisson.Sandbox, to caisson.State, last time.Time) {
	switch {
	case sb.Spec.AutoPause == (caisson.AutoPause{}), to == caisson.Running, to == caisson.Stopped, to == caisson.Failed:
		sb.IdleSince = nil
	case sb.IdleSince == nil && (to == caisson.Suspended || to == caisson.Paused):
		sb.IdleSince = &last
	}
}

// remove deletes the record of a sandbox.
func (s states) remove(ctx context.Context, id caisson.ID) error {
	return s.sandboxes.Delete(ctx, caisson.AllAccounts(), string(id))
}

// event publishes an event about a sandbox.
func (s states) event(ctx context.Context, sb *caisson.Sandbox, kind string, data map[string]string) {
	s.events.Publish(ctx, sb.Account, kind, string(sb.ID), data)
}

// now returns the current time in UTC, as it is stored.
func now() time.Time { return time.Now().UTC() }

// idSet is a set of ids that is safe for concurrent use.
type idSet struct {
	mu  sync.Mutex
	ids map[caisson.ID]bool // ids in the set; guarded by mu
}

// set adds id to the set if to is true, and otherwise removes it.
func (m *idSet) set(id caisson.ID, to bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids == nil {
		m.ids = map[caisson.ID]bool{}
	}
	delete(m.ids, id)
	if to {
		m.ids[id] = true
	}
}

// hold adds id to the set until release is called.
func (m *idSet) hold(id caisson.ID) (release func()) {
	m.set(id, true)
	return func() { m.set(id, false) }
}

// has reports whether id is in the set.
func (m *idSet) has(id caisson.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ids[id]
}

// list returns the ids in the set, in no particular order.
func (m *idSet) list() []caisson.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.ids))
}
