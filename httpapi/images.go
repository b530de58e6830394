package httpapi

import (
	"context"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// imageRoutes serves images.
type imageRoutes struct {
	core    caisson.Images
	handles *handleTable
}

func (h imageRoutes) register(rt *router) {
	const tag = "images"
	registerListRoute(rt, getOp("/images", "list-images", tag, "List images"), h.list)
	registerActionRoute(rt, deleteOp("/images", "remove-image", tag, "Delete an image"), h.remove)
	registerProgressRoute(rt, postOp("/images/pull", "pull-image", tag, "Pull an image"), "Image", h.pull)
	registerRoute(rt, postOp("/images/prune", "prune-images", tag, "Remove unused images and layers"), h.prune)
}

func (h imageRoutes) list(ctx context.Context, _ *struct{}) ([]*caisson.Image, error) {
	list, err := h.core.ListImages(ctx)
	return mapAnswers(list, imageAnswer), err
}

func (h imageRoutes) remove(ctx context.Context, in *struct {
	Reference string `query:"reference" required:"true" maxLength:"1024"`
},
) error {
	return h.core.RemoveImage(ctx, in.Reference)
}

func (h imageRoutes) pull(ctx context.Context, in *struct {
	HandleParam
	Body caisson.PullRequest
}, progress func(caisson.Progress),
) (*caisson.Image, error) {
	req := in.Body
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	defer h.handles.closeUntaken(caller.Account, in.Handles)
	hostPath := strings.HasPrefix(req.Reference, "dir:") || strings.HasPrefix(req.Reference, "tar:")
	switch {
	case hostPath && !req.Offline && !caller.Local:
		return nil, errHostPath()
	case hostPath && !req.Offline && len(in.Handles) != 1:
		return nil, caisson.Invalidf("reference", "a directory or archive needs its descriptor")
	case (!hostPath || req.Offline) && len(in.Handles) != 0:
		return nil, caisson.Invalidf(protocol.HandlesHeader, "only a directory or archive has a descriptor")
	}
	if len(in.Handles) == 1 {
		taken, err := h.handles.take(caller.Account, in.Handles)
		if err != nil {
			return nil, err
		}
		req.Source = taken[0]
	}
	img, err := h.core.Pull(ctx, req, progress)
	if err != nil {
		return nil, err
	}
	return imageAnswer(img), nil
}

func (h imageRoutes) prune(ctx context.Context, _ *struct{}) (protocol.Freed, error) {
	freed, err := h.core.PruneImages(ctx)
	return protocol.Freed{Size: freed}, err
}
