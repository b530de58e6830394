package ledger

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// ServiceConfig configures a [Service].
type ServiceConfig struct {
	Book *Book // required
	// Invalidate makes all meters discard their state of the given budgets, and returns when they have done so; required.
	Invalidate func(ctx context.Context, budgets ...string) error
	// SpendLogs returns the spend logs of a provider of kind litellm for an account since the given time. Returns NotFound if
	// there is no such provider. May be nil if no provider is of that kind.
	SpendLogs func(ctx context.Context, provider, account string, since time.Time) ([]SpendLog, error)
	// FindAccount returns the account of that name; NotFound if there is none. nil: budgets of all accounts may be set.
	FindAccount func(ctx context.Context, name string) (*caisson.Account, error)
	// Events receives "budget.set" and "budget.removed" after a change; may be nil.
	Events caisson.Publisher
}

// Service implements [caisson.Ledger].
type Service struct {
	book       *Book
	store      caisson.LedgerStore
	invalidate func(ctx context.Context, budgets ...string) error // makes all meters discard their state of these budgets
	// spendLogs returns the spend logs of a LiteLLM proxy; may be nil if no provider is one.
	spendLogs func(ctx context.Context, provider, account string, since time.Time) ([]SpendLog, error)
	account   func(ctx context.Context, name string) (*caisson.Account, error) // looks up an account
	events    caisson.Publisher

	reconciling sync.Mutex // held while Reconcile compares calls with spend logs
}

var _ caisson.Ledger = (*Service)(nil)

// NewService returns a service for the ledger of c.Book.
func NewService(c ServiceConfig) (*Service, error) {
	if c.Book == nil || c.Invalidate == nil {
		return nil, caisson.Errorf(caisson.Internal, "the ledger service needs a book and a function to invalidate budgets")
	}
	return &Service{book: c.Book, store: c.Book.store, invalidate: c.Invalidate, spendLogs: c.SpendLogs, account: c.FindAccount, events: c.Events}, nil
}

// scope returns the scope with the accounts that the query q is about, and clears q.Account. Only local callers may query
// accounts other than their own.
func scope(ctx context.Context, q *caisson.UsageQuery) (caisson.Scope, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return caisson.Scope{}, err
	}
	account := q.Account
	q.Account = ""
	switch {
	case account == "" || account == caller.Account:
		return caisson.In(caller.Account), nil
	case !caller.Local:
		return caisson.Scope{}, caisson.Errorf(caisson.Denied, "the usage of another account can be read over the unix socket only")
	case account == "*":
		return caisson.AllAccounts(), nil
	}
	return caisson.In(account), nil
}

// Usage implements [caisson.Ledger].
func (s *Service) Usage(ctx context.Context, q caisson.UsageQuery) ([]caisson.UsageRow, error) {
	in, err := scope(ctx, &q)
	if err != nil {
		return nil, err
	}
	if err := s.book.Ingest(ctx); err != nil {
		return nil, err
	}
	return s.store.Usage(ctx, in, q)
}

// Calls implements [caisson.Ledger].
func (s *Service) Calls(ctx context.Context, q caisson.UsageQuery, after caisson.ID, limit int) ([]caisson.Call, bool, error) {
	in, err := scope(ctx, &q)
	if err != nil {
		return nil, false, err
	}
	if err := s.book.Ingest(ctx); err != nil {
		return nil, false, err
	}
	return s.store.Calls(ctx, in, q, after, limit)
}

// Receipts implements [caisson.Ledger]. after is the reference of a receipt.
func (s *Service) Receipts(ctx context.Context, q caisson.UsageQuery, after string, limit int) ([]caisson.Receipt, bool, error) {
	var last caisson.ID
	if after != "" {
		id, err := caisson.ParseID(caisson.CallPrefix, after[strings.LastIndexByte(after, '/')+1:])
		if err != nil {
			return nil, false, caisson.Invalidf("after", "%.80q is not the reference of a receipt", after)
		}
		last = id
	}
	calls, more, err := s.Calls(ctx, q, last, limit)
	if err != nil {
		return nil, false, err
	}
	page := make([]caisson.Receipt, 0, len(calls))
	for _, c := range calls {
		page = append(page, caisson.Receipt{
			Source: caisson.ChargeSource, Reference: c.Reference(c.ID), Account: c.Account, Cost: c.Cost, Estimated: c.Estimated, At: c.At,
		})
	}
	return page, more, nil
}

// SetBudget implements [caisson.Ledger]. This package cannot look up the owners of runs and sessions. Therefore only local
// callers may set the budgets of runs, sessions and accounts. The owner of the budget of a run or session is b.Account, or by
// default the caller's account.
func (s *Service) SetBudget(ctx context.Context, b caisson.Budget) (*caisson.Budget, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if b.Key == "" {
		b.Key = "account/" + caller.Account
	}
	kind, name, err := parseKey(b.Key)
	if err != nil {
		return nil, err
	}
	switch {
	case kind != "sandbox" && !caller.Local:
		return nil, caisson.Errorf(caisson.Denied, "the budget of an account, a run or a session can be set over the unix socket only")
	case kind == "account":
		if b.Account = name; s.account != nil {
			if _, err := s.account(ctx, name); err != nil {
				return nil, err
			}
		}
	case kind == "sandbox":
		account, ok, err := s.book.owners.owner(caisson.Guest{Sandbox: caisson.ID(name)})
		if err != nil {
			return nil, err
		}
		if !ok || account != caller.Account && !caller.Local {
			return nil, caisson.Errorf(caisson.NotFound, "there is no sandbox %s", name)
		}
		b.Account = account
	case b.Account == "":
		b.Account = caller.Account
	}
	if err := s.book.Ingest(ctx); err != nil {
		return nil, err
	}
	set, err := s.store.PutBudget(ctx, caisson.In(b.Account), &b)
	if err != nil {
		return nil, err
	}
	s.publish(ctx, "budget.set", set)
	if err := s.invalidate(ctx, b.Key); err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "the budget is stored, but the model gateway could not be updated; try again")
	}
	return set, nil
}

// ListBudgets implements [caisson.Ledger].
func (s *Service) ListBudgets(ctx context.Context) ([]*caisson.Budget, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.book.Ingest(ctx); err != nil {
		return nil, err
	}
	return s.store.ListBudgets(ctx, caisson.In(caller.Account))
}

// RemoveBudget implements [caisson.Ledger]. A caller with a token can only remove the budgets of sandboxes.
func (s *Service) RemoveBudget(ctx context.Context, key string) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	kind, _, err := parseKey(key)
	if err != nil {
		return err
	}
	in := caisson.In(caller.Account)
	if caller.Local {
		in = caisson.AllAccounts()
	} else if kind != "sandbox" {
		return caisson.Errorf(caisson.Denied, "the budget of an account, a run or a session can be removed over the unix socket only")
	}
	b, err := s.store.GetBudget(ctx, in, key)
	if err != nil {
		return err
	}
	if err := s.store.DeleteBudget(ctx, in, key); err != nil {
		return err
	}
	s.publish(ctx, "budget.removed", b)
	return caisson.Wrap(s.invalidate(ctx, key), caisson.Unavailable, "the budget is removed, but the model gateway could not be updated; it will read the change within a minute")
}

// publish publishes an event that a budget was set or removed, with its limits.
func (s *Service) publish(ctx context.Context, event string, b *caisson.Budget) {
	if s.events == nil {
		return
	}
	data := map[string]string{}
	if l := b.Limits.USD; l != nil {
		data["usd"] = l.String()
	}
	if l := b.Limits.Tokens; l != nil {
		data["tokens"] = strconv.FormatInt(*l, 10)
	}
	if l := b.Limits.Calls; l != nil {
		data["calls"] = strconv.FormatInt(*l, 10)
	}
	if b.Period != "" {
		data["period"] = b.Period
	}
	s.events.Publish(ctx, b.Account, event, b.Key, data)
}
