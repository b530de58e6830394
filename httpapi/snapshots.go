package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// snapshotRoutes serves snapshots and forks.
type snapshotRoutes struct {
	core caisson.Snapshots
	once idempotency
}

// snapshotBody is a response with a snapshot.
type snapshotBody = body[*caisson.Snapshot]

func (h snapshotRoutes) register(rt *router) {
	const tag = "snapshots"
	registerRoute(rt, withCreated(newOperation(http.MethodPost, "/sandboxes/{ref}/snapshot", "snapshot-sandbox", tag, "Capture a sandbox, which then continues")), h.take)
	registerRoute(rt, withCreated(newOperation(http.MethodPost, "/sandboxes/{ref}/fork", "fork-sandbox", tag, "Create running sandboxes from a sandbox or a snapshot")), h.fork)
	registerRoute(rt, newOperation(http.MethodGet, "/snapshots", "list-snapshots", tag, "List snapshots, oldest first"), h.list)
	registerRoute(rt, newOperation(http.MethodGet, "/snapshots/{ref}", "get-snapshot", tag, "Get a snapshot"), h.get)
	registerRoute(rt, newOperation(http.MethodDelete, "/snapshots/{ref}", "remove-snapshot", tag, "Delete a snapshot"), h.remove)
}

// take makes a snapshot of a sandbox.
func (h snapshotRoutes) take(ctx context.Context, in *struct {
	RefParam
	KeyParam
	Body caisson.SnapshotRequest
},
) (*snapshotBody, error) {
	if err := checkLabels(in.Body.Labels); err != nil {
		return nil, err
	}
	s, err := once(ctx, h.once, in.Key, "snapshot "+in.Ref, in.Body, func() (*caisson.Snapshot, error) {
		s, err := h.core.Snapshot(ctx, in.Ref, in.Body)
		if err != nil {
			return nil, err
		}
		return snapshotAnswer(s), nil
	})
	if err != nil {
		return nil, err
	}
	return &snapshotBody{s}, nil
}

func (h snapshotRoutes) fork(ctx context.Context, in *struct {
	RefParam
	KeyParam
	Body caisson.ForkRequest
},
) (*body[protocol.Page[*caisson.Sandbox]], error) {
	if err := checkLabels(in.Body.Labels); err != nil {
		return nil, err
	}
	if w := in.Body.Workspace; w != nil && w.Kind == caisson.WorkspaceVolume {
		if err := checkVolumeSource("workspace.source", w.Source, 0); err != nil {
			return nil, err
		}
	}
	forks, err := once(ctx, h.once, in.Key, "fork "+in.Ref, in.Body, func() ([]*caisson.Sandbox, error) {
		forks, err := h.core.Fork(ctx, in.Ref, in.Body)
		if err != nil {
			return nil, err
		}
		return mapAnswers(forks, sandboxAnswer), nil
	})
	if err != nil {
		return nil, err
	}
	return wholeList(forks), nil
}

func (h snapshotRoutes) list(ctx context.Context, in *PageParams) (*body[protocol.Page[*caisson.Snapshot]], error) {
	f, err := in.filter(caisson.SnapshotPrefix)
	if err != nil {
		return nil, err
	}
	page, more, err := h.core.ListSnapshots(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, more, snapshotAnswer, func(s *caisson.Snapshot) caisson.ID { return s.ID }), nil
}

func (h snapshotRoutes) get(ctx context.Context, in *RefParam) (*snapshotBody, error) {
	s, err := h.core.GetSnapshot(ctx, in.Ref)
	if err != nil {
		return nil, err
	}
	return &snapshotBody{snapshotAnswer(s)}, nil
}

func (h snapshotRoutes) remove(ctx context.Context, in *RefParam) (*noContent, error) {
	return nil, h.core.RemoveSnapshot(ctx, in.Ref)
}
