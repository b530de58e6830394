package image

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/caisson-dev/caisson"
)

// overlayfs refuses a layer that is listed twice; only its topmost position has an effect.
func TestPullLayerListedTwice(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	twice, between := layerOf(t, archiveOf(t, file("a", "1"))), layerOf(t, archiveOf(t, file(".wh.a", "")))
	ref := reg.push(t, "twice", imageOf(t, runtime.GOARCH, v1.Config{}, twice, between, twice))
	img, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref}, "alice", nil)
	if err != nil || mergedListing(t, img) != "[a=1][a whiteout]" {
		t.Errorf("%+v, %v", img, err)
	}
}

func TestPullSharesLayers(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	base := layerOf(t, archiveOf(t, file("base", "1")))
	var shared string
	for _, name := range []string{"one", "two"} {
		ref := reg.push(t, name, imageOf(t, runtime.GOARCH, v1.Config{}, base, layerOf(t, archiveOf(t, file(name, "")))))
		img, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref}, "alice", nil)
		if err != nil {
			t.Fatal(err)
		}
		if shared == "" {
			shared = img.Rootfs.Layers[1]
		}
		if img.Rootfs.Layers[1] != shared {
			t.Errorf("%s has %s, not %s", name, img.Rootfs.Layers[1], shared)
		}
	}
	if all := digests(t, d); len(all) != 3 {
		t.Errorf("%d layers", len(all))
	}
}

func TestPullZstd(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	archive := archiveOf(t, file("a", "1"))
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd))
	if err != nil {
		t.Fatal(err)
	}
	img, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: reg.push(t, "zstd", imageOf(t, runtime.GOARCH, v1.Config{}, layer))}, "alice", nil)
	if err != nil || mergedListing(t, img) != "[a=1]" {
		t.Errorf("%+v, %v", img, err)
	}
}
