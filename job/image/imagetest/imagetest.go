// Package imagetest is an image driver for tests: its layers are directories, and its registry is a map.
package imagetest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/image"
)

// A Driver implements sandboxes.Images for tests, with its layers in a directory. Create one with [New].
type Driver struct {
	// Registry has the images that can be pulled, by canonical reference. It may be changed while the driver is not in use.
	Registry map[string]caisson.ImageConfig
	// Find, if not nil, is called instead of looking in Registry.
	Find func(ctx context.Context, req caisson.PullRequest) (caisson.ImageConfig, error)

	dir string

	mu    sync.Mutex
	pulls int    // number of images that were pulled; guarded by mu
	holds int    // number of calls of ProtectLayers that were not released; guarded by mu
	host  string // version of the host's programs; guarded by mu
}

// New returns a driver with its layers below dir, and with the images debian:12 and alpine:3 in its registry.
func New(dir string) *Driver {
	return &Driver{dir: dir, host: "1", Registry: map[string]caisson.ImageConfig{
		"docker.io/library/debian:12": {
			Env: map[string]string{"PATH": "/usr/bin:/bin", "LANG": "C"}, Command: []string{"/bin/sh"}, Workdir: "/root", User: "1234",
		},
		"docker.io/library/alpine:3": {Env: map[string]string{"PATH": "/bin"}},
	}}
}

// digestOf returns the digest of the strings in s.
func digestOf(s ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(s, "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// layer returns the layer that contains files, by name, and creates it if it does not exist.
func (d *Driver) layer(files map[string]string) (digest, dir string, err error) {
	digest = digestOf(fmt.Sprint(files))
	dir = filepath.Join(d.dir, digest)
	if _, err := os.Stat(dir); err == nil {
		return digest, dir, nil
	}
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return "", "", err
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			return "", "", err
		}
	}
	return digest, dir, nil
}

// image returns an image with one layer, whose file /image contains the text content.
func (d *Driver) image(ref, content string, conf caisson.ImageConfig, binds []caisson.Bind) (*caisson.Image, error) {
	digest, dir, err := d.layer(map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1234:1234::/home/agent:/bin/sh\n",
		"root/.keep": "", "tmp/.keep": "", "srv/.keep": "", "image": content,
	})
	if err != nil {
		return nil, err
	}
	return &caisson.Image{
		Reference: ref, Digest: digest, Layers: []string{digest}, Size: 1 << 10,
		Rootfs: caisson.Rootfs{Digest: digest, Layers: []string{dir}, Binds: binds, Config: conf},
	}, nil
}

// Host returns an image with one layer, whose file /image has the version of the host's programs, and with an empty /usr.
func (d *Driver) Host(ctx context.Context) (*caisson.Image, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(d.dir, "host-usr"), 0o755); err != nil {
		return nil, err
	}
	conf := caisson.ImageConfig{Env: map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, Workdir: "/"}
	return d.image("host", d.host, conf, []caisson.Bind{{Source: filepath.Join(d.dir, "host-usr"), Target: "/usr"}})
}

// Upgrade changes the version of the host's programs, so that Host returns another image.
func (d *Driver) Upgrade() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.host += "+"
}

// Pull returns the image that Registry or Find has for the request. progress is called with the stages pull and unpack.
func (d *Driver) Pull(ctx context.Context, req caisson.PullRequest, account string, progress func(caisson.Progress)) (*caisson.Image, error) {
	if req.Source != nil {
		defer req.Source.Close()
	}
	ref, err := d.Canonical(req.Reference)
	if err != nil {
		return nil, err
	}
	progress(caisson.Progress{Stage: "pull", Detail: ref})
	find := d.Find
	if find == nil {
		find = d.registered
	}
	conf, err := find(ctx, req)
	if err != nil {
		return nil, err
	}
	progress(caisson.Progress{Stage: "unpack", Detail: ref})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pulls++
	return d.image(ref, ref, conf, nil)
}

// registered returns the configuration of the image in Registry. Returns NotFound if the image is not in Registry and the
// request has no Source.
func (d *Driver) registered(_ context.Context, req caisson.PullRequest) (caisson.ImageConfig, error) {
	ref, err := d.Canonical(req.Reference)
	if err != nil {
		return caisson.ImageConfig{}, err
	}
	conf, ok := d.Registry[ref]
	if !ok && req.Source == nil {
		return conf, caisson.Errorf(caisson.NotFound, "there is no image %q", ref)
	}
	return conf, nil
}

// Pulls returns the number of images that were pulled.
func (d *Driver) Pulls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pulls
}

// MakeLayer unpacks a tar archive into a new layer. Its digest is that of the account and the archive together.
func (d *Driver) MakeLayer(ctx context.Context, account string, archive *os.File) (digest, dir string, err error) {
	data, err := io.ReadAll(archive)
	if err != nil {
		return "", "", err
	}
	digest = digestOf(account, string(data))
	dir = filepath.Join(d.dir, digest)
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) {
		return digest, dir, nil
	} else if err != nil {
		return "", "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", "", err
	}
	defer root.Close()
	tr := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF):
			return digest, dir, nil
		case err != nil:
			return "", "", err
		case h.Typeflag == tar.TypeDir:
			err = root.MkdirAll(strings.TrimSuffix(h.Name, "/"), 0o755)
		case h.Typeflag == tar.TypeSymlink:
			err = root.Symlink(h.Linkname, h.Name)
		case h.Typeflag == tar.TypeReg:
			var b []byte
			if b, err = io.ReadAll(tr); err == nil {
				if err = root.MkdirAll(filepath.Dir(h.Name), 0o755); err == nil {
					err = root.WriteFile(h.Name, b, os.FileMode(h.Mode&0o777))
				}
			}
		}
		if err != nil {
			return "", "", err
		}
	}
}

// ProtectLayers prevents Prune from removing layers until release is called.
func (d *Driver) ProtectLayers() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holds++
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.holds--
	})
}

// Held returns the number of calls of ProtectLayers that were not released.
func (d *Driver) Held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holds
}

// Prune removes the layers for whose directory inUse returns false, unless ProtectLayers protects all layers.
func (d *Driver) Prune(ctx context.Context, inUse func(dir string) bool) (freed caisson.Size, err error) {
	layers, err := d.Layers()
	for _, l := range layers {
		if d.Held() > 0 || inUse(l.Path) {
			continue
		}
		freed += l.Size
		if err := os.RemoveAll(l.Path); err != nil {
			return freed, err
		}
	}
	return freed, err
}

// Layers returns all layers.
func (d *Driver) Layers() (list []image.Layer, err error) {
	dirs, err := filepath.Glob(filepath.Join(d.dir, "sha256:*"))
	for _, dir := range dirs {
		list = append(list, image.Layer{Digest: filepath.Base(dir), Path: dir, Size: 1 << 10})
	}
	return list, err
}

// Canonical returns the canonical form of a reference, as the real driver does.
func (d *Driver) Canonical(ref string) (string, error) { return image.Canonical(ref) }
