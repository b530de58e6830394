package sqlite

import (
	"context"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/caisson-dev/caisson"
)

// workspaces implements [caisson.WorkspaceStore].
type workspaces struct {
	*idTable[caisson.Workspace]
	receipts *idTable[caisson.SyncReceipt] // The receipts of syncs.
}

var _ caisson.WorkspaceStore = workspaces{}

// storedWorkspace is the document of a workspace. It includes the fields that the JSON of the API omits.
type storedWorkspace struct {
	*caisson.Workspace
	HostPath *string `json:"hostPath"` // Path of the host directory.
	Device   *uint64 `json:"device"`   // Device of the host directory.
	Inode    *uint64 `json:"inode"`    // Inode of the host directory.
}

// newWorkspaces returns the part of the store for workspaces and receipts of syncs, with its statements prepared by p.
func newWorkspaces(p *preparer) workspaces {
	all := newIDTable(p, "workspace", &idTable[caisson.Workspace]{
		docs: docs[caisson.Workspace]{
			noun: "workspace", required: 2, requiredNames: "an id or account", fixedNames: "its id or account",
			fixed: func(w *caisson.Workspace) []string { return []string{string(w.ID), w.Account} },
			columns: func(w *caisson.Workspace) []any {
				return []any{string(w.Sandbox), string(w.Run), string(w.State)}
			},
			insert:      p.write(`INSERT INTO workspace (id, account, sandbox, run, state, doc) VALUES (?, ?, ?, ?, ?, ?)`),
			update:      p.write(`UPDATE workspace SET sandbox = ?, run = ?, state = ?, doc = ? WHERE seq = ?`),
			documentFor: func(w *caisson.Workspace) any { return &storedWorkspace{w, &w.HostPath, &w.Device, &w.Inode} },
		},
		notFoundFormat: "there is no workspace %.40q, and no sandbox or run of that id has one; see caisson workspace ls",
		// The parameter ?1 is the ID of a workspace, of a sandbox or of a run. It cannot match several of these columns, because
		// the prefixes of the IDs differ.
		get: p.read(`SELECT seq, doc FROM (
			SELECT seq, account, doc FROM workspace WHERE id = ?1
			UNION ALL SELECT seq, account, doc FROM workspace WHERE sandbox = ?1 AND sandbox <> ''
			UNION ALL SELECT seq, account, doc FROM workspace WHERE run = ?1 AND run <> ''
		) WHERE ?2 IS NULL OR account = ?2 ORDER BY seq DESC LIMIT 1`),
		remove: p.write(`DELETE FROM workspace WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
	})
	return workspaces{all, newIDTable(p, "sync_receipt", &idTable[caisson.SyncReceipt]{
		docs: docs[caisson.SyncReceipt]{
			noun: "receipt", required: 2, requiredNames: "an id or account", fixedNames: "its id, account, workspace, sandbox or run",
			fixed: func(r *caisson.SyncReceipt) []string {
				return []string{string(r.ID), r.Account, string(r.Workspace), string(r.Sandbox), string(r.Run)}
			},
			columns: func(*caisson.SyncReceipt) []any { return nil },
			insert:  p.write(`INSERT INTO sync_receipt (id, account, workspace, sandbox, run, doc) VALUES (?, ?, ?, ?, ?, ?)`),
			update:  p.write(`UPDATE sync_receipt SET doc = ? WHERE seq = ?`),
		},
		notFoundFormat: "there is no receipt %.40q, or not any more; see caisson sync log",
	})}
}

// List implements [caisson.WorkspaceStore].
func (s workspaces) List(ctx context.Context, in caisson.Scope, f caisson.WorkspaceFilter) ([]*caisson.Workspace, bool, error) {
	q := newQuery("SELECT doc FROM workspace WHERE true")
	q.andIfSet("id =", string(f.Workspace))
	oneOf(q, "state", f.States)
	q.andIfSet("sandbox =", string(f.Sandbox))
	q.andIfSet("run =", string(f.Run))
	return s.list(ctx, q, in, f.Before, f.Limit)
}

// InsertReceipt implements [caisson.WorkspaceStore]. It returns NotFound if the workspace does not exist.
func (s workspaces) InsertReceipt(ctx context.Context, r *caisson.SyncReceipt) error {
	err := s.receipts.Insert(ctx, r)
	if resultCode(err) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY {
		return s.missing(string(r.Workspace))
	}
	return err
}

// GetReceipt implements [caisson.WorkspaceStore].
func (s workspaces) GetReceipt(ctx context.Context, in caisson.Scope, id caisson.ID) (*caisson.SyncReceipt, error) {
	return s.receipts.Get(ctx, in, string(id))
}

// ListReceipts implements [caisson.WorkspaceStore]. It ignores the field States of f.
func (s workspaces) ListReceipts(
	ctx context.Context, in caisson.Scope, f caisson.WorkspaceFilter,
) ([]*caisson.SyncReceipt, bool, error) {
	q := newQuery("SELECT doc FROM sync_receipt WHERE true")
	q.andIfSet("workspace =", string(f.Workspace))
	q.andIfSet("sandbox =", string(f.Sandbox))
	q.andIfSet("run =", string(f.Run))
	return s.receipts.list(ctx, q, in, f.Before, f.Limit)
}

// UpdateReceipt implements [caisson.WorkspaceStore].
func (s workspaces) UpdateReceipt(
	ctx context.Context, in caisson.Scope, id caisson.ID, change func(*caisson.SyncReceipt) error,
) (*caisson.SyncReceipt, error) {
	return s.receipts.Update(ctx, in, id, change)
}
