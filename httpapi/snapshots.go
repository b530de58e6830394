package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// snapshotRoutes serves snapshots and forks.
type snapshotRoutes struct {
	core        caisson.Snapshots
	idempotency idempotency
}

func (h snapshotRoutes) register(rt *router) {
	const tag = "snapshots"
	registerRoute(rt, withCreated(postOp("/sandboxes/{ref}/snapshot", "snapshot-sandbox", tag, "Capture a sandbox, which then continues")), h.take)
	registerListRoute(rt, withCreated(postOp("/sandboxes/{ref}/fork", "fork-sandbox", tag, "Create running sandboxes from a sandbox or a snapshot")), h.fork)
	registerRoute(rt, getOp("/snapshots", "list-snapshots", tag, "List snapshots, oldest first"),
		listPages[PageParams](caisson.SnapshotPrefix, h.core.ListSnapshots, snapshotAnswer, func(s *caisson.Snapshot) caisson.ID { return s.ID }))
	registerRoute(rt, getOp("/snapshots/{ref}", "get-snapshot", tag, "Get a snapshot"),
		withAnswer(byRef[RefParam](h.core.GetSnapshot), snapshotAnswer))
	registerActionRoute(rt, deleteOp("/snapshots/{ref}", "remove-snapshot", tag, "Delete a snapshot"), removeByRef[RefParam](h.core.RemoveSnapshot))
}

// take makes a snapshot of a sandbox.
func (h snapshotRoutes) take(ctx context.Context, in *struct {
	RefParam
	KeyParam
	Body caisson.SnapshotRequest
},
) (*caisson.Snapshot, error) {
	if err := checkLabels(in.Body.Labels); err != nil {
		return nil, err
	}
	return once(ctx, h.idempotency, in.Key, "snapshot "+in.Ref, in.Body, func() (*caisson.Snapshot, error) {
		s, err := h.core.Snapshot(ctx, in.Ref, in.Body)
		if err != nil {
			return nil, err
		}
		return snapshotAnswer(s), nil
	})
}

func (h snapshotRoutes) fork(ctx context.Context, in *struct {
	RefParam
	KeyParam
	Body caisson.ForkRequest
},
) ([]*caisson.Sandbox, error) {
	if err := checkLabels(in.Body.Labels); err != nil {
		return nil, err
	}
	if w := in.Body.Workspace; w != nil && w.Kind == caisson.WorkspaceVolume {
		if err := checkVolumeSource("workspace.source", w.Source, 0); err != nil {
			return nil, err
		}
	}
	return once(ctx, h.idempotency, in.Key, "fork "+in.Ref, in.Body, func() ([]*caisson.Sandbox, error) {
		forks, err := h.core.Fork(ctx, in.Ref, in.Body)
		if err != nil {
			return nil, err
		}
		return mapAnswers(forks, sandboxAnswer), nil
	})
}
