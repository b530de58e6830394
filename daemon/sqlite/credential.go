package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/caisson-dev/caisson"
)

// credentials implements [caisson.CredentialStore].
type credentials struct {
	db     *db
	insert *sql.Stmt
	get    *sql.Stmt // Returns a credential of one account.
	find   *sql.Stmt // Returns up to two credentials of a name, in one account or in all.
	list   *sql.Stmt // Returns credentials without their sealed values.
	update *sql.Stmt // Replaces the document and the sealed value.
	findTx *sql.Stmt // Returns up to two credentials of a name, in one account or in all; for writing transactions.
	remove *sql.Stmt
}

// getCredential returns a credential of one account.
const getCredential = `SELECT account, doc, sealed FROM credential WHERE account = ?2 AND name = ?1`

// newCredentials returns the part of the store for credentials, with its statements prepared by p.
func newCredentials(p *preparer) *credentials {
	const find = `SELECT account, doc, sealed FROM credential WHERE name = ?1 AND (?2 IS NULL OR account = ?2) LIMIT 2`
	return &credentials{
		db:     p.db,
		insert: p.write(`INSERT INTO credential (account, name, doc, sealed) VALUES (?, ?, ?, ?)`),
		get:    p.read(getCredential),
		find:   p.read(find),
		list:   p.read(`SELECT account, doc, x'' FROM credential WHERE ?1 IS NULL OR account = ?1 ORDER BY account, name`),
		update: p.write(`UPDATE credential SET doc = ?, sealed = ? WHERE account = ? AND name = ?`),
		findTx: p.write(find),
		remove: p.write(`DELETE FROM credential WHERE account = ?1 AND name = ?2`),
	}
}

// Insert implements [caisson.CredentialStore].
func (s *credentials) Insert(ctx context.Context, c *caisson.Credential, sealed []byte) error {
	if c.Name == "" || c.Account == "" || len(sealed) == 0 {
		return caisson.Errorf(caisson.Internal, "a credential without a name, account or value cannot be stored")
	}
	doc, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = s.db.writeOne(ctx, s.insert, c.Account, c.Name, string(doc), sealed)
	if isDuplicate(err) {
		return caisson.Wrap(err, caisson.Conflict, "a credential named %.100q exists already; replace its value with: caisson credential rotate", c.Name)
	}
	return err
}

// Replace implements [caisson.CredentialStore].
func (s *credentials) Replace(
	ctx context.Context, in caisson.Scope, name string, sealed []byte, at time.Time,
) (*caisson.Credential, error) {
	if len(sealed) == 0 {
		return nil, caisson.Errorf(caisson.Internal, "a credential without a value cannot be stored")
	}
	var c sealedCredential
	err := s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		if c, err = s.one(ctx, tx.StmtContext(ctx, s.findTx), in, name); err != nil {
			return err
		}
		c.RotatedAt = &at
		doc, err := json.Marshal(c.Credential)
		if err != nil {
			return err
		}
		_, err = tx.StmtContext(ctx, s.update).ExecContext(ctx, string(doc), sealed, c.Account, c.Name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.Credential, nil
}

// Get implements [caisson.CredentialStore].
func (s *credentials) Get(ctx context.Context, in caisson.Scope, name string) (*caisson.Credential, []byte, error) {
	stmt := s.find
	if _, all := in.Account(); !all {
		stmt = s.get
	}
	c, err := s.one(ctx, stmt, in, name)
	return c.Credential, c.sealed, s.db.explain(err)
}

// List implements [caisson.CredentialStore].
func (s *credentials) List(ctx context.Context, in caisson.Scope) ([]*caisson.Credential, error) {
	all, err := readRows(func(s scanner) (*caisson.Credential, error) {
		c, err := scanCredential(s)
		return c.Credential, err
	})(s.list.QueryContext(ctx, accountParam(in)))
	return all, s.db.explain(err)
}

// Delete implements [caisson.CredentialStore].
func (s *credentials) Delete(ctx context.Context, in caisson.Scope, name string) error {
	return s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		c, err := s.one(ctx, tx.StmtContext(ctx, s.findTx), in, name)
		if err != nil {
			return err
		}
		_, err = tx.StmtContext(ctx, s.remove).ExecContext(ctx, c.Account, c.Name)
		return err
	})
}

// sealedCredential is a credential with its encrypted value.
type sealedCredential struct {
	*caisson.Credential
	sealed []byte // The encrypted value.
}

// one returns the credential that stmt (find or get) finds. Returns NotFound if there is none, and Conflict if there are several.
func (s *credentials) one(ctx context.Context, stmt *sql.Stmt, in caisson.Scope, name string) (c sealedCredential, err error) {
	found, err := readRows(scanCredential)(stmt.QueryContext(ctx, name, accountParam(in)))
	switch {
	case err != nil:
		return c, err
	case len(found) == 0:
		return c, caisson.Errorf(caisson.NotFound, "there is no credential %.100q; see caisson credential ls", name)
	case len(found) > 1:
		return c, caisson.Errorf(caisson.Conflict, "more than one account has a credential %.100q; specify the account", name)
	}
	return found[0], nil
}

// scanCredential reads a row of the table credential. The account comes from the column, not from the document, so that a row
// that was moved to another account is not accepted as the original.
func scanCredential(s scanner) (c sealedCredential, err error) {
	var account string
	var doc []byte
	if err := s.Scan(&account, &doc, &c.sealed); err != nil {
		return c, err
	}
	c.Credential = &caisson.Credential{}
	err = decodeDoc("credential", doc, c.Credential)
	c.Account = account
	return c, err
}
