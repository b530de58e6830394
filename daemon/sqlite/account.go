package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// firstUID and lastUID are the first and the last host uid that is reserved for accounts. The range of uids from
// [caisson.LayerUIDBase] on follows.
const (
	firstUID = 0x50000000
	lastUID  = 0x6effffff
)

// accounts implements [caisson.AccountStore].
type accounts struct {
	db     *db
	now    func() time.Time // Returns the time for CreatedAt.
	get    *sql.Stmt        // Returns an account by its name.
	list   *sql.Stmt
	getTx  *sql.Stmt // Returns an account by its name; for writing transactions.
	next   *sql.Stmt // Returns the first uid of the range for a new account.
	insert *sql.Stmt
}

// newAccounts returns the part of the store for accounts, with its statements prepared by p.
func newAccounts(p *preparer, now func() time.Time) *accounts {
	const get = `SELECT doc FROM account WHERE name = ?`
	return &accounts{
		db:     p.db,
		now:    now,
		get:    p.read(get),
		list:   p.read(`SELECT doc FROM account ORDER BY name`),
		getTx:  p.write(get),
		next:   p.write(`SELECT coalesce(max(uid_base) + ?, ?) FROM account`),
		insert: p.write(`INSERT INTO account (name, uid_base, doc) VALUES (?, ?, ?)`),
	}
}

// Ensure implements [caisson.AccountStore].
func (a *accounts) Ensure(ctx context.Context, name string) (*caisson.Account, error) {
	if !caisson.ValidAccountName(name) {
		return nil, caisson.Invalidf("account", "%.40q is not an account name: lower-case letters, digits and dashes, 1 to 32, starting with a letter", name)
	}
	acc, err := scanAccount(a.get.QueryRowContext(ctx, name))
	if !errors.Is(err, sql.ErrNoRows) {
		return acc, a.db.explain(err)
	}
	err = a.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		acc, err = scanAccount(tx.StmtContext(ctx, a.getTx).QueryRowContext(ctx, name))
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		acc, err = a.create(ctx, tx, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return acc, nil
}

// create inserts a new account and assigns it the range of uids that follows the last assigned one.
func (a *accounts) create(ctx context.Context, tx *sql.Tx, name string) (*caisson.Account, error) {
	var base int64
	if err := tx.StmtContext(ctx, a.next).QueryRowContext(ctx, caisson.UIDRange, firstUID).Scan(&base); err != nil {
		return nil, err
	}
	if base+caisson.UIDRange-1 > lastUID {
		return nil, caisson.Errorf(caisson.Exhausted, "no host uids are left for another account; one data directory supports at most %d accounts", (lastUID-firstUID+1)/caisson.UIDRange)
	}
	acc := &caisson.Account{Name: name, UIDBase: uint32(base), CreatedAt: a.now().UTC()}
	doc, err := json.Marshal(acc)
	if err != nil {
		return nil, err
	}
	_, err = tx.StmtContext(ctx, a.insert).ExecContext(ctx, name, base, string(doc))
	return acc, err
}

// Get implements [caisson.AccountStore].
func (a *accounts) Get(ctx context.Context, name string) (*caisson.Account, error) {
	acc, err := scanAccount(a.get.QueryRowContext(ctx, name))
	return acc, a.db.explainRow(err, caisson.Errorf(caisson.NotFound, "there is no account %.40q; caisson token create NAME --account %.40s makes it", name, name))
}

// List implements [caisson.AccountStore]. Accounts are sorted by name.
func (a *accounts) List(ctx context.Context) ([]*caisson.Account, error) {
	all, err := readRows(scanAccount)(a.list.QueryContext(ctx))
	return all, a.db.explain(err)
}

// scanAccount reads the column doc of an account.
func scanAccount(s scanner) (*caisson.Account, error) {
	acc := &caisson.Account{}
	if err := scanDoc(s, "account", acc); err != nil {
		return nil, err
	}
	return acc, nil
}
