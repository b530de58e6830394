package engine

import (
	"context"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/job/image"
)

// imageDriver implements [sandboxes.Images] with the image driver.
type imageDriver struct{ *image.Driver }

var _ sandboxes.Images = imageDriver{}

// MakeLayer implements [sandboxes.Images]: it unpacks an archive into a layer of the image driver.
func (d imageDriver) MakeLayer(ctx context.Context, account string, archive *os.File) (digest, dir string, err error) {
	l, err := d.Layer(ctx, account, archive)
	return l.Digest, l.Path, err
}

// Canonical implements [sandboxes.Images].
func (imageDriver) Canonical(ref string) (string, error) { return image.Canonical(ref) }

// Prune implements [sandboxes.Images].
func (d imageDriver) Prune(ctx context.Context, inUse func(dir string) bool) (caisson.Size, error) {
	layers, err := d.Layers()
	if err != nil {
		return 0, err
	}
	keep := make(map[string]bool, len(layers))
	for _, l := range layers {
		keep[l.Digest] = inUse(l.Path)
	}
	// A layer that was created after d.Layers has returned is not in keep, but its creator protects it with ProtectLayers.
	return d.Driver.Prune(ctx, func(digest string) bool { return keep[digest] })
}
