package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// tokens implements [caisson.TokenStore].
type tokens struct {
	db     *db
	insert *sql.Stmt // Inserts a token.
	find   *sql.Stmt // Returns a token by its hash.
	used   *sql.Stmt // Sets the time of the last use of a token.
	list   *sql.Stmt // Returns the tokens of an account, or all tokens, newest first.
	remove *sql.Stmt // Deletes a token by ID and account.
}

// findToken looks a token up by its hash. The time of an index lookup reveals information about hashes, not about the secrets
// that they were computed from.
const findToken = `SELECT used_at, doc FROM token WHERE hash = ?`

// newTokens returns the part of the store for tokens, with its statements prepared by p.
func newTokens(p *preparer) *tokens {
	return &tokens{
		db:     p.db,
		insert: p.write(`INSERT INTO token (id, account, hash, used_at, doc) VALUES (?, ?, ?, ?, ?)`),
		find:   p.read(findToken),
		used:   p.write(`UPDATE token SET used_at = max(coalesce(used_at, ?1), ?1) WHERE id = ?2`),
		list:   p.read(`SELECT used_at, doc FROM token WHERE ?1 IS NULL OR account = ?1 ORDER BY seq DESC`),
		remove: p.write(`DELETE FROM token WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
	}
}

// Insert implements [caisson.TokenStore]. It returns Conflict if the ID or the hash exists already.
func (t *tokens) Insert(ctx context.Context, tok *caisson.Token, hash [32]byte) error {
	if tok.ID == "" || tok.Account == "" {
		return caisson.Errorf(caisson.Internal, "a token without an id or account cannot be stored")
	}
	doc, err := json.Marshal(tok)
	if err != nil {
		return err
	}
	var used sql.NullInt64
	if tok.LastUsedAt != nil {
		used = sql.NullInt64{Int64: tok.LastUsedAt.UnixMicro(), Valid: true}
	}
	_, err = t.db.writeOne(ctx, t.insert, string(tok.ID), tok.Account, hash[:], used, string(doc))
	if isDuplicate(err) {
		return caisson.Wrap(err, caisson.Conflict, "token %s exists already", tok.ID)
	}
	return err
}

// Find implements [caisson.TokenStore]. It returns the unexpired token with the given hash; Unauthed if there is none.
func (t *tokens) Find(ctx context.Context, hash [32]byte, now time.Time) (*caisson.Token, error) {
	tok, err := scanToken(t.find.QueryRowContext(ctx, hash[:]))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, caisson.Errorf(caisson.Unauthed, "this token is not known; make one with: caisson token create")
	case err != nil:
		return nil, t.db.explain(err)
	case tok.ExpiresAt != nil && !now.Before(*tok.ExpiresAt):
		return nil, caisson.Errorf(caisson.Unauthed, "this token has expired; create one with: caisson token create")
	}
	return tok, nil
}

// RecordUse implements [caisson.TokenStore]. An earlier time than the stored one is ignored.
func (t *tokens) RecordUse(ctx context.Context, id caisson.ID, at time.Time) error {
	return t.db.writeFound(ctx, noToken(id), t.used, at.UnixMicro(), string(id))
}

// List implements [caisson.TokenStore]. Tokens are sorted newest first.
func (t *tokens) List(ctx context.Context, in caisson.Scope) ([]*caisson.Token, error) {
	all, err := readRows(scanToken)(t.list.QueryContext(ctx, accountParam(in)))
	return all, t.db.explain(err)
}

// Delete implements [caisson.TokenStore]. It returns NotFound if the token does not exist or belongs to another account.
func (t *tokens) Delete(ctx context.Context, in caisson.Scope, id caisson.ID) error {
	return t.db.writeFound(ctx, noToken(id), t.remove, string(id), accountParam(in))
}

// noToken returns the NotFound error for a token that does not exist, or that belongs to another account than the requested one.
func noToken(id caisson.ID) error {
	return caisson.Errorf(caisson.NotFound, "there is no token %.40q; see caisson token ls", string(id))
}

// scanToken reads the columns used_at and doc of a token. LastUsedAt comes from the column used_at, not from the document.
func scanToken(s scanner) (*caisson.Token, error) {
	var used sql.NullInt64
	tok := &caisson.Token{}
	if err := scanDoc(s, "token", tok, &used); err != nil {
		return nil, err
	}
	tok.LastUsedAt = nil
	if used.Valid {
		at := time.UnixMicro(used.Int64).UTC()
		tok.LastUsedAt = &at
	}
	return tok, nil
}
