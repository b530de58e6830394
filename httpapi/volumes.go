package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// volumeRoutes serves volumes.
type volumeRoutes struct {
	core        caisson.Volumes
	idempotency idempotency
}

// VolumeRef is the reference of a volume in a path.
type VolumeRef struct {
	Ref string `path:"ref" maxLength:"128" doc:"Id or name of the volume"`
}

// ref returns the id or name in the path; see [refParam].
func (p VolumeRef) ref() string { return p.Ref }

func (h volumeRoutes) register(rt *router) {
	const tag = "volumes"
	registerRoute(rt, withCreated(postOp("/volumes", "create-volume", tag, "Create an empty volume")), h.create)
	registerRoute(rt, getOp("/volumes", "list-volumes", tag, "List volumes, oldest first, with the size that was last determined"),
		listPages[PageParams](caisson.VolumePrefix, h.core.ListVolumes, asIs, func(v *caisson.Volume) caisson.ID { return v.ID }))
	registerRoute(rt, getOp("/volumes/{ref}", "get-volume", tag, "Get a volume, with its size, which is measured at most once a minute"),
		byRef[VolumeRef](h.core.GetVolume))
	registerActionRoute(rt, deleteOp("/volumes/{ref}", "remove-volume", tag, "Delete a volume that is attached to no sandbox, with its files"),
		removeByRef[VolumeRef](h.core.RemoveVolume))
}

func (h volumeRoutes) create(ctx context.Context, in *struct {
	KeyParam
	Body caisson.VolumeRequest
},
) (*caisson.Volume, error) {
	if err := checkLabels(in.Body.Labels); err != nil {
		return nil, err
	}
	if err := caisson.CheckVolumeName("name", in.Body.Name); err != nil {
		return nil, err
	}
	return once(ctx, h.idempotency, in.Key, "create-volume", in.Body, func() (*caisson.Volume, error) { return h.core.CreateVolume(ctx, in.Body) })
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
