package image

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// hostImage builds the image of the host's own programs.
type hostImage struct {
	root   string      // root directory of the host
	empty  string      // path of the empty directory that is mounted over /usr/local
	layers *layerStore // stores the generated layer

	mu                sync.Mutex
	cached            *caisson.Image // the image that was built last, or nil; guarded by mu
	cachedFingerprint string         // result of cheapFingerprint just before cached was built; guarded by mu
}

// systemDirs are the directories for programs and libraries outside of /usr. On hosts with a merged /usr they are symlinks.
var systemDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"}

// hostConfig is the configuration of the host image.
var hostConfig = caisson.ImageConfig{
	Env:     map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
	Workdir: "/",
}

// image returns the host image. It rebuilds the image if the host has changed.
func (h *hostImage) image(ctx context.Context) (*caisson.Image, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	key, err := h.cheapFingerprint()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot look at the host's files")
	}
	if img := h.cached; img != nil && key == h.cachedFingerprint && h.layers.handOutIfPresent(img.Layers[0]) {
		return cloneImage(img), nil
	}
	img, err := h.makeImage()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot build the host image")
	}
	h.cachedFingerprint, h.cached = key, img
	return cloneImage(img), nil
}

// cloneImage returns a deep copy of img with UsedAt set to the current time.
func cloneImage(img *caisson.Image) *caisson.Image {
	c := *img
	c.UsedAt = time.Now().UTC()
	c.Layers = slices.Clone(img.Layers)
	c.Rootfs.Layers = slices.Clone(img.Rootfs.Layers)
	c.Rootfs.Binds = slices.Clone(img.Rootfs.Binds)
	c.Rootfs.Config.Env = maps.Clone(img.Rootfs.Config.Env)
	return &c
}

// makeImage builds the image of the host as it is now.
func (h *hostImage) makeImage() (*caisson.Image, error) {
	dir, done, err := h.layers.tempDir()
	if err != nil {
		return nil, err
	}
	defer done()
	s, err := newSkeleton(h.root, dir)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := s.fill(); err != nil {
		return nil, err
	}
	l, err := h.layers.publish(dir, Layer{Digest: s.digest(), Size: caisson.Size(s.size), Entries: s.entries})
	if err != nil {
		return nil, err
	}
	img, err := assemble(hostReference, "", "", []Layer{l}, hostConfig)
	if err != nil {
		return nil, err
	}
	if img.Rootfs.Binds, err = h.binds(); err != nil {
		return nil, err
	}
	state, err := h.fingerprint()
	if err != nil {
		return nil, err
	}
	all, err := json.Marshal([]any{l.Digest, img.Rootfs.Binds, state})
	if err != nil {
		return nil, err
	}
	img.Rootfs.Digest = digestOfBytes(all)
	img.Digest = img.Rootfs.Digest
	return img, nil
}

// binds returns the bind mounts of the host image: the host's directories for programs, and the empty directory over /usr/local.
func (h *hostImage) binds() ([]caisson.Bind, error) {
	binds := []caisson.Bind{{Source: filepath.Join(h.root, "usr"), Target: "/usr"}}
	for _, name := range systemDirs {
		fi, err := os.Lstat(filepath.Join(h.root, name))
		if err == nil && fi.IsDir() {
			binds = append(binds, caisson.Bind{Source: filepath.Join(h.root, name), Target: "/" + name})
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	// /usr/local is covered only if it is a directory. On some hosts it is a symlink, whose target does not exist in the sandbox.
	if fi, err := os.Lstat(filepath.Join(h.root, "usr/local")); err == nil && fi.IsDir() {
		binds = append(binds, caisson.Bind{Source: h.empty, Target: "/usr/local"})
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return binds, nil
}

// pointsIntoUsr reports whether target, the target of a symlink in the host's root directory, is below /usr. That is so on
// hosts with a merged /usr.
func pointsIntoUsr(target string) bool {
	return strings.HasPrefix(strings.TrimPrefix(filepath.Clean("/"+target), "/"), "usr/")
}
