package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// syncLimit is the maximum size of the body of a sync request in bytes. It is larger than for other requests because the body
// contains every path that is to be applied.
const syncLimit = 32 << 20

// workspaceRoutes serves workspaces, and reviews, syncs and undo through the gate.
type workspaceRoutes struct {
	core        caisson.Workspaces
	idempotency idempotency
	handles     *handleTable
}

// WorkspaceRef is the reference of a workspace in a path.
type WorkspaceRef struct {
	Ref string `path:"ref" maxLength:"64" doc:"Id of the workspace, or of the sandbox or run that has it"`
}

// ref returns the id in the path; see [refParam].
func (p WorkspaceRef) ref() string { return p.Ref }

// ReceiptRef is the id of a receipt in a path.
type ReceiptRef struct {
	ID string `path:"id" maxLength:"64" doc:"Id of the receipt"`
}

// id returns the id in the path; see [idParam].
func (p ReceiptRef) id() (caisson.ID, error) {
	return parseIDParam(caisson.ReceiptPrefix, "receipt", p.ID)
}

func (h workspaceRoutes) register(rt *router) {
	const tag = "workspaces"
	registerRoute(rt, getOp("/workspaces", "list-workspaces", tag, "List workspaces, newest first"), h.list)
	registerRoute(rt, getOp("/workspaces/{ref}", "get-workspace", tag, "Get a workspace"), byRef[WorkspaceRef](h.core.GetWorkspace))
	registerActionRoute(rt, deleteOp("/workspaces/{ref}", "remove-workspace", tag,
		"Delete a workspace whose sandbox is gone, with all changes in it"), removeByRef[WorkspaceRef](h.core.RemoveWorkspace))
	registerRoute(rt, postOp("/workspaces/{ref}/diff", "diff-workspace", tag, "List the changes in a workspace, and which of them may be applied"), h.diff)
	sync := withCreated(postOp("/workspaces/{ref}/sync", "sync-workspace", tag,
		"Apply changes of a workspace to the host's directory: all of those in the request, or none (unix socket only)"))
	sync.MaxBodyBytes = syncLimit
	sync.Description = "Pass the descriptor of the workspace's directory with POST /handles and its id in " + protocol.HandlesHeader +
		". The changes are applied as they were recorded in the review whose id is in the body."
	registerRoute(rt, sync, withAnswer(h.sync, receiptAnswer))
	registerRoute(rt, postOp("/workspaces/{ref}/reset", "reset-workspace", tag,
		"Drop all changes of a workspace whose sandbox is not running"), byRef[WorkspaceRef](h.core.Reset))
	registerRoute(rt, getOp("/receipts", "list-sync-receipts", tag, "List receipts of syncs to the host's directories, newest first"), h.receipts)
	registerRoute(rt, getOp("/receipts/{id}", "get-sync-receipt", tag, "Get the receipt of a sync"),
		withAnswer(byID[ReceiptRef](h.core.GetReceipt), receiptAnswer))
	undo := postOp("/receipts/{id}/undo", "undo-sync", tag,
		"Undo a sync, if the host's files have not changed since (unix socket only)")
	undo.Description = "Needs the descriptor of the workspace's directory, as a sync does."
	registerRoute(rt, undo, withAnswer(h.undo, receiptAnswer))
}

// WorkspaceParams select a page of workspaces or receipts.
type WorkspaceParams struct {
	Run     string `query:"run" doc:"Only of the run with this id"`
	Sandbox string `query:"sandbox" doc:"Only of the sandbox with this id"`
	After   string `query:"after" doc:"Value of next in the previous page"`
	Limit   int    `query:"limit" minimum:"0" maximum:"1000" doc:"Size of the page; 0 means 100"`
}

// filter returns p as a filter over workspaces or receipts. prefix is the prefix of their ids, and of After. workspace is the id
// of the workspace to which receipts must belong; "" selects the receipts of all workspaces.
func (p WorkspaceParams) filter(prefix, workspace string) (caisson.WorkspaceFilter, error) {
	f := caisson.WorkspaceFilter{Limit: p.Limit}
	err := parseIDs(
		idQuery{"run", caisson.RunPrefix, p.Run, &f.Run},
		idQuery{"sandbox", caisson.SandboxPrefix, p.Sandbox, &f.Sandbox},
		idQuery{"workspace", caisson.WorkspacePrefix, workspace, &f.Workspace},
		idQuery{"after", prefix, p.After, &f.Before},
	)
	return f, err
}

func (h workspaceRoutes) list(ctx context.Context, in *struct {
	State []caisson.WorkspaceState `query:"state,explode" enum:"live,resting,settled" doc:"Only those in one of these states"`
	WorkspaceParams
},
) (protocol.Page[*caisson.Workspace], error) {
	f, err := in.filter(caisson.WorkspacePrefix, "")
	if err != nil {
		return protocol.Page[*caisson.Workspace]{}, err
	}
	f.States = in.State
	page, more, err := h.core.ListWorkspaces(ctx, f)
	return newPage(page, more, asIs, func(w *caisson.Workspace) caisson.ID { return w.ID }), err
}

func (h workspaceRoutes) diff(ctx context.Context, in *struct {
	WorkspaceRef
	Body *caisson.DiffRequest
},
) (*caisson.Diff, error) {
	var req caisson.DiffRequest
	if in.Body != nil {
		req = *in.Body
	}
	d, err := h.core.Diff(ctx, in.Ref, req)
	if err != nil {
		return nil, err
	}
	if d.Changes == nil { // without this, nil would be null in JSON instead of []
		none := *d
		none.Changes, d = []caisson.Change{}, &none
	}
	return d, nil
}

// takeDirectory returns the single descriptor that the client has passed for a request. It proves that the caller can open the
// directory; without this proof, the directory must not be changed.
func (h workspaceRoutes) takeDirectory(ctx context.Context, ids []string) (caisson.Handle, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	taken, err := h.handles.take(caller.Account, ids)
	if err != nil {
		return nil, err
	}
	return taken[0], nil
}

// checkDirectoryHandle returns an error unless the request came over the unix socket and refers to exactly one descriptor. The
// caller must call done at the end of the request. done closes the descriptor unless takeDirectory has returned it.
func (h workspaceRoutes) checkDirectoryHandle(ctx context.Context, ids []string) (done func(), err error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case !caller.Local:
		return nil, caisson.Errorf(caisson.Denied, "host directories are changed only over the unix socket, by users who can open them")
	case len(ids) != 1:
		h.handles.closeUntaken(caller.Account, ids)
		return nil, caisson.Invalidf("directory", "needs the descriptor of the workspace's directory, and no other; %d were passed", len(ids))
	}
	return func() { h.handles.closeUntaken(caller.Account, ids) }, nil
}

func (h workspaceRoutes) sync(ctx context.Context, in *struct {
	WorkspaceRef
	KeyParam
	HandleParam
	Body caisson.SyncRequest
},
) (*caisson.SyncReceipt, error) {
	done, err := h.checkDirectoryHandle(ctx, in.Handles)
	if err != nil {
		return nil, err
	}
	defer done() // a repeated request, which gets the stored answer, does not take the descriptor
	req := in.Body
	return once(ctx, h.idempotency, in.Key, "sync "+in.Ref, req, func() (*caisson.SyncReceipt, error) {
		dir, err := h.takeDirectory(ctx, in.Handles)
		if err != nil {
			return nil, err
		}
		req.Directory = dir
		return h.core.Sync(ctx, in.Ref, req)
	})
}

func (h workspaceRoutes) undo(ctx context.Context, in *struct {
	ReceiptRef
	HandleParam
},
) (*caisson.SyncReceipt, error) {
	done, err := h.checkDirectoryHandle(ctx, in.Handles)
	if err != nil {
		return nil, err
	}
	defer done()
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	dir, err := h.takeDirectory(ctx, in.Handles)
	if err != nil {
		return nil, err
	}
	return h.core.Undo(ctx, id, dir)
}

// receiptAnswer returns r with empty lists as [] in JSON, not null.
func receiptAnswer(r *caisson.SyncReceipt) *caisson.SyncReceipt {
	out := *r
	if out.Checks == nil {
		out.Checks = []string{}
	}
	if out.Entries == nil {
		out.Entries = []caisson.ReceiptEntry{}
	}
	return &out
}

func (h workspaceRoutes) receipts(ctx context.Context, in *struct {
	Workspace string `query:"workspace" doc:"Only of the workspace with this id"`
	WorkspaceParams
},
) (protocol.Page[*caisson.SyncReceipt], error) {
	f, err := in.filter(caisson.ReceiptPrefix, in.Workspace)
	if err != nil {
		return protocol.Page[*caisson.SyncReceipt]{}, err
	}
	page, more, err := h.core.ListReceipts(ctx, f)
	return newPage(page, more, receiptAnswer, func(r *caisson.SyncReceipt) caisson.ID { return r.ID }), err
}
