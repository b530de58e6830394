package client

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// volumes implements [caisson.Volumes] by requests to a daemon.
type volumes struct{ c *requester }

// CreateVolume implements [caisson.Volumes]. A repeated call with the same key of [WithIdempotencyKey] makes no second volume.
func (v volumes) CreateVolume(ctx context.Context, req caisson.VolumeRequest) (*caisson.Volume, error) {
	return call[*caisson.Volume](ctx, v.c, post(req, "volumes").withHeader(createHeader(ctx)))
}

// GetVolume implements [caisson.Volumes].
func (v volumes) GetVolume(ctx context.Context, ref string) (*caisson.Volume, error) {
	return call[*caisson.Volume](ctx, v.c, get("volumes", ref))
}

// ListVolumes implements [caisson.Volumes].
func (v volumes) ListVolumes(ctx context.Context, f caisson.Filter) (page []*caisson.Volume, more bool, err error) {
	if len(f.States) > 0 {
		return nil, false, caisson.Invalidf("state", "volumes have no states")
	}
	return callFiltered[*caisson.Volume](ctx, v.c, "volumes", f)
}

// RemoveVolume implements [caisson.Volumes].
func (v volumes) RemoveVolume(ctx context.Context, ref string) error {
	return v.c.do(ctx, remove("volumes", ref))
}
