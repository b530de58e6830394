package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/caisson-dev/caisson"
)

// receiptStmts are the statements about receipts.
type receiptStmts struct {
	get     *sql.Stmt
	getHere *sql.Stmt // for transactions of the writer
	place   *sql.Stmt
	insert  *sql.Stmt
	update  *sql.Stmt
}

func newReceiptStmts(p *preparer) receiptStmts {
	const one = `SELECT seq, doc FROM sync_receipt WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`
	return receiptStmts{
		get:     p.read(one),
		getHere: p.write(one),
		place:   p.read(`SELECT max(seq) FROM sync_receipt WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
		insert:  p.write(`INSERT INTO sync_receipt (id, account, workspace, sandbox, run, doc) VALUES (?, ?, ?, ?, ?, ?)`),
		update:  p.write(`UPDATE sync_receipt SET doc = ? WHERE seq = ?`),
	}
}

// InsertReceipt implements [caisson.WorkspaceStore]. NotFound if there is no such workspace.
func (s *workspaces) InsertReceipt(ctx context.Context, r *caisson.SyncReceipt) error {
	if r.ID == "" || r.Account == "" {
		return caisson.Errorf(caisson.Internal, "a receipt without an id or account cannot be stored")
	}
	doc, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode receipt %s: %w", r.ID, err)
	}
	_, err = s.db.writeOne(ctx, s.receipts.insert, string(r.ID), r.Account, string(r.Workspace), string(r.Sandbox), string(r.Run), string(doc))
	switch {
	case taken(err):
		return caisson.Wrap(err, caisson.Conflict, "receipt %s exists already", r.ID)
	case codeOf(err) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
		return noWorkspace(string(r.Workspace))
	}
	return err
}

// GetReceipt implements [caisson.WorkspaceStore].
func (s *workspaces) GetReceipt(ctx context.Context, in caisson.Scope, id caisson.ID) (*caisson.SyncReceipt, error) {
	r, err := scanReceipt(s.receipts.get.QueryRowContext(ctx, string(id), accountOf(in)), id)
	if err != nil {
		return nil, s.db.explain(err)
	}
	return decodeReceipt(r.doc)
}

// ListReceipts implements [caisson.WorkspaceStore]. The states of f are not looked at.
func (s *workspaces) ListReceipts(ctx context.Context, in caisson.Scope, f caisson.WorkspaceFilter) ([]*caisson.SyncReceipt, bool, error) {
	q := &query{}
	q.sql.WriteString("SELECT doc FROM sync_receipt WHERE true")
	if f.Workspace != "" {
		q.and("workspace = ?", string(f.Workspace))
	}
	return workspacePage(ctx, s.db, q, in, f, s.receipts.place, decodeReceipt)
}

// UpdateReceipt implements [caisson.WorkspaceStore]. Where it is from cannot be changed either.
func (s *workspaces) UpdateReceipt(ctx context.Context, in caisson.Scope, id caisson.ID, change func(*caisson.SyncReceipt) error) (*caisson.SyncReceipt, error) {
	var rc *caisson.SyncReceipt
	var refused error // by change: returned as it is
	err := s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r, err := scanReceipt(tx.StmtContext(ctx, s.receipts.getHere).QueryRowContext(ctx, string(id), accountOf(in)), id)
		if err != nil {
			return err
		}
		if rc, err = decodeReceipt(r.doc); err != nil {
			return err
		}
		was := *rc
		if refused = change(rc); refused != nil {
			return refused
		}
		if rc.ID != was.ID || rc.Account != was.Account || rc.Workspace != was.Workspace || rc.Sandbox != was.Sandbox || rc.Run != was.Run {
			return caisson.Errorf(caisson.Internal, "an update of receipt %s changed whose it is", was.ID)
		}
		doc, err := json.Marshal(rc)
		if err != nil || bytes.Equal(doc, r.doc) {
			return err // if nothing has changed, this saves the sync
		}
		_, err = tx.StmtContext(ctx, s.receipts.update).ExecContext(ctx, string(doc), r.seq)
		return err
	})
	switch {
	case refused != nil:
		return nil, refused
	case err != nil:
		return nil, err
	}
	return rc, nil
}

func scanReceipt(s scanner, id caisson.ID) (r row, err error) {
	err = s.Scan(&r.seq, &r.doc)
	if errors.Is(err, sql.ErrNoRows) {
		err = caisson.Errorf(caisson.NotFound, "there is no receipt %.40q, or not any more; see caisson receipts", string(id))
	}
	return r, err
}

func decodeReceipt(doc []byte) (*caisson.SyncReceipt, error) {
	r := &caisson.SyncReceipt{}
	if err := json.Unmarshal(doc, r); err != nil {
		return nil, fmt.Errorf("decode stored receipt: %w", err)
	}
	return r, nil
}
