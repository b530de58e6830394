package caisson

import (
	"context"
	"iter"
	"time"
)

// A Store persists the state that must survive the daemon: intended changes before they are made, and results before they are
// acknowledged. When a method that writes returns nil, the change is durable.
//
// All methods are safe for concurrent use. There is one writer; readers see committed states only.
type Store interface {
	Sandboxes() Table[Sandbox]
	Snapshots() Table[Snapshot]
	Templates() Table[Template]
	Images() Table[Image]
	Accounts() AccountStore
	Tokens() TokenStore
	Events() EventStore
	Answers() AnswerStore
	Credentials() CredentialStore
	Ledger() LedgerStore
	GatewayRuns() GatewayRunStore
	Agents() Table[Agent]
	Volumes() Table[Volume]
	Routes() Table[Route]
	Runs() RunStore
	Sessions() Table[Session]
	Workspaces() WorkspaceStore
	Repos() Table[Repo] // repositories; the key is the account and the name
	Deliveries() DeliveryStore
	Close() error
}

// A Table holds the objects of one type. Each object has a key that is unique among all accounts: an ID (and optionally a name,
// unique in its account), or, for templates, images, agents and repositories, its account and its name (the id of an agent, the
// reference of an image). Objects outside a Scope are NotFound, not Denied.
type Table[T any] interface {
	// Insert adds an object; Conflict if its key or name is taken.
	Insert(ctx context.Context, obj *T) error
	// Get finds an object by ID or name. Built-in templates and agents are not in the store.
	Get(ctx context.Context, in Scope, ref string) (*T, error)
	// List returns a page of objects in order of creation, or of name if they have no ID. more is whether there are more pages.
	List(ctx context.Context, in Scope, f Filter) (page []*T, more bool, err error)
	// Update changes an object in one transaction: change gets the stored state, and if it returns an error, nothing is
	// changed and the error is returned unchanged. change must not access the store and may be called more than once.
	// Key and account cannot be changed.
	Update(ctx context.Context, in Scope, ref string, change func(*T) error) (*T, error)
	// Delete removes an object by ID or name.
	Delete(ctx context.Context, in Scope, ref string) error
}

// All returns an iterator over all objects that the filter f selects. list is the method List of a store, which is called for one
// page after the other. next changes f so that it selects the objects after last. The iterator ends after an error.
func All[T, F any](
	ctx context.Context, list func(context.Context, Scope, F) ([]*T, bool, error), in Scope, f F, next func(f *F, last *T),
) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		f := f // a copy, because an iterator may be used again
		for more := true; more; {
			page, rest, err := list(ctx, in, f)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, obj := range page {
				next(&f, obj)
				if !yield(obj, nil) {
					return
				}
			}
			more = rest && len(page) > 0
		}
	}
}

// ListAll returns all objects of a table in a scope. key returns the key of an object for [Filter.After].
func ListAll[T any](ctx context.Context, t Table[T], in Scope, key func(*T) ID) (list []*T, err error) {
	for obj, err := range All(ctx, t.List, in, Filter{Limit: 1000}, func(f *Filter, last *T) { f.After = key(last) }) {
		if err != nil {
			return nil, err
		}
		list = append(list, obj)
	}
	return list, nil
}

// AccountStore holds accounts.
type AccountStore interface {
	// Ensure returns the account of that name, and creates it with an exclusive range of uids if it does not exist.
	// Names are validated: lower-case letters, digits and dashes, 1 to 32 characters, starting with a letter.
	Ensure(ctx context.Context, name string) (*Account, error)
	Get(ctx context.Context, name string) (*Account, error)
	List(ctx context.Context) ([]*Account, error)
}

// TokenStore holds tokens and the SHA-256 of their secrets.
type TokenStore interface {
	Insert(ctx context.Context, t *Token, hash [32]byte) error
	// Find returns the unexpired token with that hash; Unauthed if there is none.
	Find(ctx context.Context, hash [32]byte, now time.Time) (*Token, error)
	// RecordUse records the time of a token's last use. It writes to the store, so it is not called for every request.
	RecordUse(ctx context.Context, id ID, at time.Time) error
	List(ctx context.Context, in Scope) ([]*Token, error)
	Delete(ctx context.Context, in Scope, id ID) error
}

// EventStore is the append-only record of events.
type EventStore interface {
	// Append stores e and sets e.Seq.
	Append(ctx context.Context, e *Event) error
	// AppendAll stores a list of events in its order, all or none.
	AppendAll(ctx context.Context, list []*Event) error
	// After returns at most limit events with a Seq greater than seq, oldest first; subject "" means every object.
	After(ctx context.Context, in Scope, subject string, seq int64, limit int) ([]Event, error)
	// Last returns the greatest Seq that was ever assigned, 0 if there is none; Trim does not lower it.
	Last(ctx context.Context) (int64, error)
	// Trim removes the events that are older than before, and returns their number.
	Trim(ctx context.Context, before time.Time) (removed int64, err error)
	// Verify reads the whole record and reports events that were changed, added or removed since Append stored them. head, if
	// not "", is the Head of an earlier report. If the record does not contain it, the report has a Problem. Returns Invalid if
	// head is malformed, and NotFound if its event has been trimmed, so that head cannot be verified.
	Verify(ctx context.Context, head string) (*AuditReport, error)
}

// AnswerStore stores the answers to requests with an Idempotency-Key.
type AnswerStore interface {
	// Begin records that a request with this key and fingerprint is in progress. If the key is already recorded with the
	// same fingerprint, it returns the stored answer, or Conflict if there is none yet (the request is in progress); with
	// another fingerprint, Invalid.
	Begin(ctx context.Context, account, key string, fingerprint [32]byte, now time.Time) (answer []byte, err error)
	// Finish stores the answer; nil deletes the key, so that the request can be retried.
	Finish(ctx context.Context, account, key string, answer []byte) error
	// Trim deletes keys that were recorded before the given time.
	Trim(ctx context.Context, before time.Time) error
}
