package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// volumeRoutes serves volumes.
type volumeRoutes struct {
	core caisson.Volumes
	once idempotency
}

// volumeBody is a response with a volume.
type volumeBody = body[*caisson.Volume]

// VolumeRef is the reference of a volume in a path.
type VolumeRef struct {
	Ref string `path:"ref" maxLength:"128" doc:"Id or name of the volume"`
}

func (h volumeRoutes) register(rt *router) {
	const tag = "volumes"
	registerRoute(rt, withCreated(newOperation(http.MethodPost, "/volumes", "create-volume", tag, "Create an empty volume")), h.create)
	registerRoute(rt, newOperation(http.MethodGet, "/volumes", "list-volumes", tag, "List volumes, oldest first, with the size that was last determined"), h.list)
	registerRoute(rt, newOperation(http.MethodGet, "/volumes/{ref}", "get-volume", tag, "Get a volume, and count what is in it unless that was done within a minute"), h.get)
	registerRoute(rt, newOperation(http.MethodDelete, "/volumes/{ref}", "remove-volume", tag, "Delete a volume that no sandbox has, with all that is in it"), h.remove)
}

func (h volumeRoutes) create(ctx context.Context, in *struct {
	KeyParam
	Body caisson.VolumeRequest
},
) (*volumeBody, error) {
	if err := checkLabels(in.Body.Labels); err != nil {
		return nil, err
	}
	if err := caisson.CheckVolumeName("name", in.Body.Name); err != nil {
		return nil, err
	}
	return answerVolume(once(ctx, h.once, in.Key, "create-volume", in.Body, func() (*caisson.Volume, error) {
		return h.core.CreateVolume(ctx, in.Body)
	}))
}

// answerVolume returns the response for the result of a core, or its error.
func answerVolume(v *caisson.Volume, err error) (*volumeBody, error) {
	if err != nil {
		return nil, err
	}
	return &volumeBody{v}, nil
}

func (h volumeRoutes) list(ctx context.Context, in *PageParams) (*body[protocol.Page[*caisson.Volume]], error) {
	f, err := in.filter(caisson.VolumePrefix)
	if err != nil {
		return nil, err
	}
	page, more, err := h.core.ListVolumes(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, more, asIs, func(v *caisson.Volume) caisson.ID { return v.ID }), nil
}

func (h volumeRoutes) get(ctx context.Context, in *VolumeRef) (*volumeBody, error) {
	return answerVolume(h.core.GetVolume(ctx, in.Ref))
}

func (h volumeRoutes) remove(ctx context.Context, in *VolumeRef) (*noContent, error) {
	return nil, h.core.RemoveVolume(ctx, in.Ref)
}

// checkVolumeSource returns Invalid if ref cannot refer to a volume, or if descriptors of directories were passed, which a
// workspace on a volume does not need. ref is an id, or the name of a volume that may not exist yet.
func checkVolumeSource(field, ref string, handles int) error {
	if handles > 0 {
		return caisson.Invalidf(field, "a volume needs no descriptor of a directory, but %d were passed", handles)
	}
	if _, err := caisson.ParseID(caisson.VolumePrefix, ref); err == nil {
		return nil
	}
	return caisson.CheckVolumeName(field, ref)
}
