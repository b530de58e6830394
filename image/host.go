package image

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// hostState is the host image as last made, and what it was made from.
type hostState struct {
	key   string // of the cheap look; see hostFingerprint
	image *caisson.Image
}

// systemDirs are what programs live in besides /usr. Where the host has merged them into /usr they are symlinks.
var systemDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"}

// hostConfig is how to run the host image.
var hostConfig = caisson.ImageConfig{
	Env:     map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
	Workdir: "/",
}

// Host returns the image of the host's own programs, read-only: /usr and what belongs to it, and a root directory made for
// it with a short list of files from /etc. When the host's packages change, so does its digest. A call that finds nothing
// changed costs some hundred stats.
//
// What is written in place, without a change to the directory it is in or to the package database, goes unnoticed.
func (d *Driver) Host(ctx context.Context) (*caisson.Image, error) {
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	key, err := d.hostKey()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot look at the host's files")
	}
	if img := d.hostCache.image; img != nil && key == d.hostCache.key && d.retouch(img.Layers[0]) {
		return fresh(img), nil
	}
	img, err := d.makeHost()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot make the host image")
	}
	d.hostCache = hostState{key: key, image: img}
	return fresh(img), nil
}

// fresh returns a copy of img for a caller to keep.
func fresh(img *caisson.Image) *caisson.Image {
	c := *img
	c.UsedAt = time.Now().UTC()
	c.Layers = append([]string(nil), img.Layers...)
	c.Rootfs.Layers = append([]string(nil), img.Rootfs.Layers...)
	c.Rootfs.Binds = append([]caisson.Bind(nil), img.Rootfs.Binds...)
	c.Rootfs.Config.Env = map[string]string{}
	for k, v := range img.Rootfs.Config.Env {
		c.Rootfs.Config.Env[k] = v
	}
	return &c
}

// retouch hands a layer out again if it is still there.
func (d *Driver) retouch(digest string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok, err := d.find(digest)
	if ok {
		d.handOut(digest)
	}
	return ok && err == nil
}

func (d *Driver) makeHost() (*caisson.Image, error) {
	dir, done, err := d.tempDir()
	if err != nil {
		return nil, err
	}
	defer done()
	s, err := newSkeleton(d.hostRoot, dir)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := s.fill(); err != nil {
		return nil, err
	}
	l, err := d.publish(dir, Layer{Digest: s.digest(), Size: caisson.Size(s.size), Entries: s.entries})
	if err != nil {
		return nil, err
	}
	img, err := assemble(HostReference, "", "", []Layer{l}, hostConfig)
	if err != nil {
		return nil, err
	}
	if img.Rootfs.Binds, err = d.hostBinds(); err != nil {
		return nil, err
	}
	state, err := d.hostFingerprint()
	if err != nil {
		return nil, err
	}
	all, err := json.Marshal([]any{l.Digest, img.Rootfs.Binds, state})
	if err != nil {
		return nil, err
	}
	img.Rootfs.Digest = digestOfBytes(sha256.Sum256(all))
	img.Digest = img.Rootfs.Digest
	return img, nil
}

// hostBinds are the host's directories as they are, without /usr/local.
func (d *Driver) hostBinds() ([]caisson.Bind, error) {
	binds := []caisson.Bind{{Source: filepath.Join(d.hostRoot, "usr"), Target: "/usr"}}
	for _, name := range systemDirs {
		fi, err := os.Lstat(filepath.Join(d.hostRoot, name))
		if err == nil && fi.IsDir() {
			binds = append(binds, caisson.Bind{Source: filepath.Join(d.hostRoot, name), Target: "/" + name})
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	// As a symlink, which some hosts have, it leads to where the sandbox has nothing.
	if fi, err := os.Lstat(filepath.Join(d.hostRoot, "usr/local")); err == nil && fi.IsDir() {
		binds = append(binds, caisson.Bind{Source: d.emptyDir(), Target: "/usr/local"})
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return binds, nil
}

// intoUsr reports whether a symlink of a host's root directory leads into /usr, as merged hosts have it.
func intoUsr(target string) bool {
	return strings.HasPrefix(strings.TrimPrefix(filepath.Clean("/"+target), "/"), "usr/")
}
