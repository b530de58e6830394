package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

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

// maxWorkspacePage bounds the bytes of a page of workspaces or receipts, which can be long: a page ends early behind it.
const maxWorkspacePage = 16 << 20

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
	if len(f.States) > 0 {
		states := make([]any, len(f.States))
		for i, st := range f.States {
			states[i] = string(st)
		}
		q.and("state IN (?"+strings.Repeat(", ?", len(states)-1)+")", states...)
	}
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
	switch {
	case f.Limit == 0:
		f.Limit = defaultPage
	case f.Limit < 0 || f.Limit > maxPage:
		return nil, false, caisson.Invalidf("limit", "a page has 1 to %d entries", maxPage)
	}
	if account := accountOf(in); account.Valid {
		q.and("account = ?", account)
	}
	if f.Sandbox != "" {
		q.and("sandbox = ?", string(f.Sandbox))
	}
	if f.Run != "" {
		q.and("run = ?", string(f.Run))
	}
	if f.Before != "" {
		var seq sql.NullInt64
		if err := place.QueryRowContext(ctx, string(f.Before), accountOf(in)).Scan(&seq); err != nil {
			return nil, false, d.explain(err)
		}
		if !seq.Valid {
			return nil, false, caisson.Invalidf("before", "%.40q is not in this list, or not any more; start from the first page", string(f.Before))
		}
		q.and("seq < ?", seq)
	}
	q.sql.WriteString(" ORDER BY seq DESC LIMIT ?")
	q.args = append(q.args, f.Limit+1)
	rows, err := d.reader.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, false, d.explain(err)
	}
	defer rows.Close()
	size := 0
	for rows.Next() {
		if len(page) == f.Limit || size > maxWorkspacePage {
			return page, true, nil
		}
		var doc sql.RawBytes
		if err := rows.Scan(&doc); err != nil {
			return nil, false, d.explain(err)
		}
		size += len(doc)
		obj, err := decode(doc)
		if err != nil {
			return nil, false, err
		}
		page = append(page, obj)
	}
	return page, false, d.explain(rows.Err())
}
