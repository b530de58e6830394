package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caisson-dev/caisson"
)

// workspaces is a [caisson.WorkspaceStore].
type workspaces struct {
	db      *db
	get     *sql.Stmt
	getHere *sql.Stmt // for transactions of the writer
	place   *sql.Stmt
	insert  *sql.Stmt
	update  *sql.Stmt
	remove  *sql.Stmt

	receipts receiptStmts
}

var _ caisson.WorkspaceStore = (*workspaces)(nil)

func newWorkspaces(p *preparer) *workspaces {
	// An id beats the rest, and nothing else has the same: the prefixes of ids differ.
	const one = `SELECT seq, doc FROM (
			SELECT seq, account, doc FROM workspace WHERE id = ?1
			UNION ALL SELECT seq, account, doc FROM workspace WHERE sandbox = ?1 AND sandbox <> ''
			UNION ALL SELECT seq, account, doc FROM workspace WHERE run = ?1 AND run <> ''
		) WHERE ?2 IS NULL OR account = ?2 ORDER BY seq DESC LIMIT 1`
	const byID = `SELECT seq, doc FROM workspace WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`
	return &workspaces{
		db:       p.db,
		get:      p.read(one),
		getHere:  p.write(byID),
		place:    p.read(`SELECT max(seq) FROM workspace WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
		insert:   p.write(`INSERT INTO workspace (id, account, sandbox, run, state, doc) VALUES (?, ?, ?, ?, ?, ?)`),
		update:   p.write(`UPDATE workspace SET sandbox = ?, run = ?, state = ?, doc = ? WHERE seq = ?`),
		remove:   p.write(`DELETE FROM workspace WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
		receipts: newReceiptStmts(p),
	}
}

// storedWorkspace is a workspace with what its JSON does not show.
type storedWorkspace struct {
	*caisson.Workspace
	HostPath string `json:"hostPath"`
	Device   uint64 `json:"device"`
	Inode    uint64 `json:"inode"`
}

func encodeWorkspace(w *caisson.Workspace) ([]byte, error) {
	doc, err := json.Marshal(storedWorkspace{w, w.HostPath, w.Device, w.Inode})
	if err != nil {
		return nil, fmt.Errorf("encode workspace %s: %w", w.ID, err)
	}
	return doc, nil
}

func decodeWorkspace(doc []byte) (*caisson.Workspace, error) {
	s := storedWorkspace{Workspace: &caisson.Workspace{}}
	if err := json.Unmarshal(doc, &s); err != nil {
		return nil, fmt.Errorf("decode stored workspace: %w", err)
	}
	w := s.Workspace
	w.HostPath, w.Device, w.Inode = s.HostPath, s.Device, s.Inode
	return w, nil
}

// Insert implements [caisson.WorkspaceStore].
func (s *workspaces) Insert(ctx context.Context, w *caisson.Workspace) error {
	if w.ID == "" || w.Account == "" {
		return caisson.Errorf(caisson.Internal, "a workspace without an id or account cannot be stored")
	}
	doc, err := encodeWorkspace(w)
	if err != nil {
		return err
	}
	_, err = s.db.writeOne(ctx, s.insert, string(w.ID), w.Account, string(w.Sandbox), string(w.Run), string(w.State), string(doc))
	if taken(err) {
		return caisson.Wrap(err, caisson.Conflict, "workspace %s exists already", w.ID)
	}
	return err
}

// Get implements [caisson.WorkspaceStore].
func (s *workspaces) Get(ctx context.Context, in caisson.Scope, ref string) (*caisson.Workspace, error) {
	r, err := scanWorkspace(s.get.QueryRowContext(ctx, ref, accountOf(in)), ref)
	if err != nil {
		return nil, s.db.explain(err)
	}
	return decodeWorkspace(r.doc)
}

// List implements [caisson.WorkspaceStore].
func (s *workspaces) List(ctx context.Context, in caisson.Scope, f caisson.WorkspaceFilter) ([]*caisson.Workspace, bool, error) {
	q := &query{}
	q.sql.WriteString("SELECT doc FROM workspace WHERE true")
	if f.Workspace != "" {
		q.and("id = ?", string(f.Workspace))
	}
	oneOf(q, "state", f.States)
	return workspacePage(ctx, s.db, q, in, f, s.place, decodeWorkspace)
}

// Update implements [caisson.WorkspaceStore].
func (s *workspaces) Update(ctx context.Context, in caisson.Scope, id caisson.ID, change func(*caisson.Workspace) error) (*caisson.Workspace, error) {
	var w *caisson.Workspace
	var refused error // by change: returned as it is
	err := s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r, err := scanWorkspace(tx.StmtContext(ctx, s.getHere).QueryRowContext(ctx, string(id), accountOf(in)), string(id))
		if err != nil {
			return err
		}
		if w, err = decodeWorkspace(r.doc); err != nil {
			return err
		}
		wasID, wasAccount := w.ID, w.Account
		if refused = change(w); refused != nil {
			return refused
		}
		if w.ID != wasID || w.Account != wasAccount {
			return caisson.Errorf(caisson.Internal, "an update of workspace %s changed what it is known by", wasID)
		}
		doc, err := encodeWorkspace(w)
		if err != nil || bytes.Equal(doc, r.doc) {
			return err // if nothing has changed, this saves the sync
		}
		_, err = tx.StmtContext(ctx, s.update).ExecContext(ctx, string(w.Sandbox), string(w.Run), string(w.State), string(doc), r.seq)
		return err
	})
	switch {
	case refused != nil:
		return nil, refused
	case err != nil:
		return nil, err
	}
	return w, nil
}

// Delete implements [caisson.WorkspaceStore].
func (s *workspaces) Delete(ctx context.Context, in caisson.Scope, id caisson.ID) error {
	n, err := s.db.writeOne(ctx, s.remove, string(id), accountOf(in))
	if err == nil && n == 0 {
		err = noWorkspace(string(id))
	}
	return err
}

func scanWorkspace(s scanner, ref string) (r row, err error) {
	err = s.Scan(&r.seq, &r.doc)
	if errors.Is(err, sql.ErrNoRows) {
		err = noWorkspace(ref)
	}
	return r, err
}

func noWorkspace(ref string) error {
	return caisson.Errorf(caisson.NotFound, "there is no workspace %.40q, and no sandbox or run of that id has one; see caisson workspace ls", ref)
}

// workspacePage completes a query for documents of workspaces or receipts, and reads a page of them, the newest first.
func workspacePage[T any](ctx context.Context, d *db, q *query, in caisson.Scope, f caisson.WorkspaceFilter, place *sql.Stmt,
	decode func([]byte) (*T, error)) (page []*T, more bool, err error) {
	if f.Sandbox != "" {
		q.and("sandbox = ?", string(f.Sandbox))
	}
	if f.Run != "" {
		q.and("run = ?", string(f.Run))
	}
	return docPage(ctx, d, q, in, f.Before, f.Limit, place, decode)
}
