package httpapi

import (
	"context"
	"net/http"
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
	registerRoute(rt, newOperation(http.MethodGet, "/images", "list-images", tag, "List images"), h.list)
	registerRoute(rt, newOperation(http.MethodDelete, "/images", "remove-image", tag, "Delete an image"), h.remove)
	registerStreamRoute(rt, withEventStream(newOperation(http.MethodPost, "/images/pull", "pull-image", tag, "Pull an image"),
		"Events named progress (Progress), then one named result (Image) or error (Problem)"), h.pull(rt))
	registerRoute(rt, newOperation(http.MethodPost, "/images/prune", "prune-images", tag, "Remove unused images and layers"), h.prune)
}

func (h imageRoutes) list(ctx context.Context, _ *struct{}) (*body[protocol.Page[*caisson.Image]], error) {
	list, err := h.core.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	return wholeList(mapAnswers(list, imageAnswer)), nil
}

func (h imageRoutes) remove(ctx context.Context, in *struct {
	Reference string `query:"reference" required:"true" maxLength:"1024"`
},
) (*noContent, error) {
	return nil, h.core.RemoveImage(ctx, in.Reference)
}

// pullInput is a request to pull an image.
type pullInput struct {
	HandleParam
	Body caisson.PullRequest
}

// pull returns the handler that pulls an image. The response is that of [serveProgress].
func (h imageRoutes) pull(rt *router) func(http.ResponseWriter, *http.Request, *pullInput) error {
	return func(w http.ResponseWriter, r *http.Request, in *pullInput) error {
		req := in.Body
		caller, err := caisson.CallerOf(r.Context())
		if err != nil {
			return err
		}
		defer h.handles.closeUntaken(caller.Account, in.Handles)
		hostPath := strings.HasPrefix(req.Reference, "dir:") || strings.HasPrefix(req.Reference, "tar:")
		switch {
		case hostPath && !req.Offline && !caller.Local:
			return errHostPath()
		case hostPath && !req.Offline && len(in.Handles) != 1:
			return caisson.Invalidf("reference", "a directory or archive needs its descriptor")
		case (!hostPath || req.Offline) && len(in.Handles) != 0:
			return caisson.Invalidf(protocol.HandlesHeader, "only a directory or archive has a descriptor")
		}
		if len(in.Handles) == 1 {
			taken, err := h.handles.take(caller.Account, in.Handles)
			if err != nil {
				return err
			}
			req.Source = taken[0]
		}
		return serveProgress(rt, w, r, func(ctx context.Context, progress func(caisson.Progress)) (*caisson.Image, error) {
			img, err := h.core.Pull(ctx, req, progress)
			if err != nil {
				return nil, err
			}
			return imageAnswer(img), nil
		})
	}
}

func (h imageRoutes) prune(ctx context.Context, _ *struct{}) (*body[protocol.Freed], error) {
	freed, err := h.core.PruneImages(ctx)
	if err != nil {
		return nil, err
	}
	return &body[protocol.Freed]{protocol.Freed{Size: freed}}, nil
}
