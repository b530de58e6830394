package ledger

import (
	"context"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Lessor returns the lessor for the process that writes a journal. It validates every request: the process may be compromised.
func (b *Book) Lessor(journal caisson.ID) caisson.Lessor { return lessor{b, journal} }

// lessor implements [caisson.Lessor] for the process that writes one journal.
type lessor struct {
	book    *Book
	journal caisson.ID
}

// Lease implements [caisson.Lessor].
func (l lessor) Lease(ctx context.Context, account, budget string, need, want caisson.Amount) (caisson.Lease, error) {
	if err := l.check(account, budget); err != nil {
		return caisson.Lease{}, err
	}
	if !maxLease.Covers(want) || !want.Covers(need) || !need.Covers(caisson.Amount{}) {
		return caisson.Lease{}, caisson.Invalidf("want", "no call needs so much")
	}
	// First ingest the journal of the process that requests the lease. The other journals are read only to make the response
	// more current, so their errors are ignored.
	if err := l.book.ingestFor(ctx, l.journal); err != nil {
		return caisson.Lease{}, err
	}
	return l.book.store.Lease(ctx, l.journal, account, budget, need, want, l.book.now())
}

// Return implements [caisson.Lessor].
func (l lessor) Return(ctx context.Context, budget string, a caisson.Amount) error {
	if err := l.check("", budget); err != nil {
		return err
	}
	return l.book.store.Return(ctx, l.journal, budget, a)
}

// check returns an error if the key of a budget is not valid, if the budget cannot belong to the account, or if the journal is
// closed or damaged. With an empty account it does not check the owner of the budget: for the return of amounts that the writer
// of the journal has leased already.
func (l lessor) check(account, budget string) error {
	l.book.mu.Lock()
	r := l.book.journals[l.journal]
	l.book.mu.Unlock()
	if r == nil {
		return caisson.Errorf(caisson.Conflict, "journal %s is not open", l.journal)
	}
	if r.isDamaged() {
		return caisson.Errorf(caisson.Conflict, "journal %s is damaged; its holder gets no more leases", l.journal)
	}
	kind, name, err := parseKey(budget)
	if err != nil {
		return err
	}
	if kind == "account" && account != "" && account != name {
		return caisson.Invalidf("account", "%.40q does not have the budget %.80q", account, budget)
	}
	if kind == "sandbox" {
		owner, ok, err := l.book.owners.owner(caisson.Guest{Sandbox: caisson.ID(name)})
		if err != nil {
			return err
		}
		if !ok || account != "" && account != owner {
			return caisson.Errorf(caisson.NotFound, "there is no sandbox %.40q", name)
		}
	}
	return nil
}

// parseKey splits the key of a budget, such as "run/ID", into its kind and its name. It returns an Invalid error if the key is
// not valid.
func parseKey(key string) (kind, name string, err error) {
	kind, name, _ = strings.Cut(key, "/")
	ok := name != "" && len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f })
	switch kind {
	case "account", "session", "run":
	case "sandbox":
		_, err := caisson.ParseID(caisson.SandboxPrefix, name)
		ok = ok && err == nil
	default:
		ok = false
	}
	if !ok {
		return "", "", caisson.Invalidf("key", "%.80q is not account/NAME, session/ID, run/ID or sandbox/ID", key)
	}
	return kind, name, nil
}
