package sandboxes_test

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
	"slices"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/sandboxes"
)

// images is a complete image driver whose layers are directories and whose registry is a map.
type images struct {
	dir string

	mu       sync.Mutex
	registry map[string]caisson.ImageConfig // by canonical reference; guarded by mu
	pulls    int                            // guarded by mu
	holds    int                            // guarded by mu
	host     string                         // version of the host's programs; guarded by mu
}

var _ sandboxes.Images = (*images)(nil)

func newImages(dir string) *images {
	return &images{dir: dir, host: "1", registry: map[string]caisson.ImageConfig{
		"docker.io/library/debian:12": {
			Env: map[string]string{"PATH": "/usr/bin:/bin", "LANG": "C"}, Command: []string{"/bin/sh"}, Workdir: "/root", User: "1234",
		},
		"docker.io/library/alpine:3": {Env: map[string]string{"PATH": "/bin"}},
	}}
}

func digestOf(s ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(s, "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// layer creates the layer with that content if it does not exist.
func (d *images) layer(files map[string]string) (digest, dir string, err error) {
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

func (d *images) image(ref, content string, conf caisson.ImageConfig, binds []caisson.Bind) (*caisson.Image, error) {
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

func (d *images) Host(ctx context.Context) (*caisson.Image, error) {
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

// upgrade changes the host's programs.
func (d *images) upgrade() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.host += "+"
}

func (d *images) Pull(ctx context.Context, req caisson.PullRequest, account string, progress func(caisson.Progress)) (*caisson.Image, error) {
	if req.Source != nil {
		defer req.Source.Close()
	}
	ref, err := d.Canonical(req.Reference)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	progress(caisson.Progress{Stage: "pull", Detail: ref})
	conf, ok := d.registry[ref]
	if !ok && req.Source == nil {
		return nil, caisson.Errorf(caisson.NotFound, "there is no image %q", ref)
	}
	d.pulls++
	return d.image(ref, ref, conf, nil)
}

func (d *images) Freeze(ctx context.Context, account string, archive io.Reader) (digest, dir string, err error) {
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

func (d *images) Hold() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holds++
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.holds--
	})
}

func (d *images) held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holds
}

func (d *images) Prune(ctx context.Context, inUse func(dir string) bool) (freed caisson.Size, err error) {
	for _, dir := range d.layers() {
		if d.held() > 0 || inUse(dir) {
			continue
		}
		freed += 1 << 10
		if err := os.RemoveAll(dir); err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// layers returns the directories of all layers.
func (d *images) layers() []string {
	dirs, err := filepath.Glob(filepath.Join(d.dir, "sha256:*"))
	if err != nil {
		return nil
	}
	return dirs
}

func (d *images) Canonical(ref string) (string, error) {
	switch {
	case ref == "host" || strings.HasPrefix(ref, "dir:/") || strings.HasPrefix(ref, "tar:/"):
		return ref, nil
	case ref == "" || strings.ContainsAny(ref, " \x00") || ref != strings.ToLower(ref):
		return "", caisson.Invalidf("image", "%q is not a reference", ref)
	case strings.Contains(ref, "/"):
		return ref, nil
	case !strings.Contains(ref, ":"):
		ref += ":latest"
	}
	return "docker.io/library/" + ref, nil
}

// wires records which sandboxes are attached.
type wires struct {
	netns      string // the file that represents network namespaces
	mu         sync.Mutex
	attached   map[caisson.ID]caisson.WireSpec // guarded by mu
	reattached []caisson.ID                    // guarded by mu
	configured int                             // number of calls; guarded by mu
	fail       error                           // of the next attach, reattach or configure; guarded by mu
}

var _ caisson.Wires = (*wires)(nil)

func (w *wires) failNext(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = err
}

// take returns and clears the fault. The caller must hold mu.
func (w *wires) take() error {
	err := w.fail
	w.fail = nil
	return err
}

func (w *wires) Attach(ctx context.Context, id caisson.ID, spec caisson.WireSpec) (*os.File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(ctx.Err(), w.take()); err != nil {
		return nil, err
	}
	w.attached[id] = spec
	return os.Open(w.netns)
}

func (w *wires) Reattach(ctx context.Context, id caisson.ID, netns *os.File, spec caisson.WireSpec) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.take(); err != nil {
		return err
	}
	w.reattached = append(w.reattached, id)
	w.attached[id] = spec
	return nil
}

func (w *wires) Configure(ctx context.Context, id caisson.ID, spec caisson.WireSpec) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.attached[id]; !ok {
		return caisson.Errorf(caisson.NotFound, "%s has no wire", id)
	}
	w.configured++
	if err := w.take(); err != nil {
		return err
	}
	w.attached[id] = spec
	return nil
}

// configurations returns how often existing wires were configured.
func (w *wires) configurations() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.configured
}

// spec returns the current spec of a sandbox's wire.
func (w *wires) spec(id caisson.ID) caisson.WireSpec {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.attached[id]
}

func (w *wires) Detach(ctx context.Context, id caisson.ID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.attached, id)
	return nil
}

// forget drops all wires, as the end of a daemon does.
func (w *wires) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.attached)
}

func (w *wires) list() (ids []caisson.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.attached {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// faultyStore is a store whose next write can fail.
type faultyStore struct {
	caisson.Store

	mu    sync.Mutex
	fault func(op string) error // guarded by mu
}

// call makes the next write with the name op (insert, inserted, update, delete) call f before it; inserted is called
// after an insert.
func (s *faultyStore) call(op string, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = func(did string) error {
		if did == op && f != nil {
			f()
			f = nil
		}
		return nil
	}
}

// failOn makes the nth next write of sandboxes and snapshots with the name op (insert, update, delete) fail.
func (s *faultyStore) failOn(op string, nth int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = func(did string) error {
		if did == op {
			nth--
		}
		if nth == 0 && did == op {
			nth--
			return errInjected
		}
		return nil
	}
}

func (s *faultyStore) check(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		return nil
	}
	return s.fault(op)
}

func (s *faultyStore) Sandboxes() caisson.Table[caisson.Sandbox] {
	return faultyTable[caisson.Sandbox]{s.Store.Sandboxes(), s}
}

func (s *faultyStore) Snapshots() caisson.Table[caisson.Snapshot] {
	return faultyTable[caisson.Snapshot]{s.Store.Snapshots(), s}
}

type faultyTable[T any] struct {
	caisson.Table[T]
	s *faultyStore
}

func (f faultyTable[T]) Insert(ctx context.Context, obj *T) error {
	if err := f.s.check("insert"); err != nil {
		return err
	}
	if err := f.Table.Insert(ctx, obj); err != nil {
		return err
	}
	return f.s.check("inserted")
}

func (f faultyTable[T]) Update(ctx context.Context, in caisson.Scope, ref string, change func(*T) error) (*T, error) {
	if err := f.s.check("update"); err != nil {
		return nil, err
	}
	return f.Table.Update(ctx, in, ref, change)
}

func (f faultyTable[T]) Delete(ctx context.Context, in caisson.Scope, ref string) error {
	if err := f.s.check("delete"); err != nil {
		return err
	}
	return f.Table.Delete(ctx, in, ref)
}
