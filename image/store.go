package image

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// A Layer is a directory to overlay.
type Layer struct {
	Digest    string       `json:"digest"` // "sha256:" and 64 hexadecimal digits; equal digests mean equal files
	Path      string       `json:"-"`      // absolute
	Size      caisson.Size `json:"size"`
	Entries   int64        `json:"entries"`
	CreatedAt time.Time    `json:"createdAt"`
}

var (
	digestForm  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	accountForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
)

// dirName is the name of a layer's directory; overlayfs gives ':' and ',' a meaning.
func dirName(digest string) string { return "sha256-" + strings.TrimPrefix(digest, "sha256:") }

func (d *Driver) layerPath(digest string) string {
	return filepath.Join(d.dir, "layers", dirName(digest))
}

func (d *Driver) ownerPath(account, digest string) string {
	return filepath.Join(d.dir, "owners", account, strings.TrimPrefix(digest, "sha256:"))
}

// find returns the layer if it is present.
func (d *Driver) find(digest string) (Layer, bool, error) {
	path := d.layerPath(digest)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return Layer{}, false, nil
	}
	l := Layer{Path: path}
	raw, err := os.ReadFile(path + ".json")
	if err == nil {
		err = json.Unmarshal(raw, &l)
	}
	if err != nil {
		return Layer{}, false, caisson.Wrap(err, caisson.Internal, "layer %s has no description", digest)
	}
	return l, true, nil
}

func (d *Driver) owns(account, digest string) bool {
	_, err := os.Lstat(d.ownerPath(account, digest))
	return err == nil
}

func (d *Driver) setOwner(account, digest string) error {
	path := d.ownerPath(account, digest)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o600)
}

// tempEntry makes a directory below tmp that sweep leaves alone until done, which removes it.
func (d *Driver) tempEntry() (dir string, done func(), err error) {
	// Under the lock, so that sweep never sees one that is not yet known to be in use.
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, err = os.MkdirTemp(filepath.Join(d.dir, "tmp"), "")
	if err != nil {
		return "", nil, err
	}
	name := filepath.Base(dir)
	d.activeInTemp[name] = true
	return dir, func() {
		os.RemoveAll(dir)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.activeInTemp, name)
	}, nil
}

// tempDir makes an empty directory that becomes a layer: it belongs to guest root. done removes what is left of it.
func (d *Driver) tempDir() (dir string, done func(), err error) {
	parent, done, err := d.tempEntry()
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(parent, "fs")
	err = os.Mkdir(dir, 0o755)
	if err == nil {
		err = os.Chmod(dir, 0o755) // whatever the umask
	}
	if err == nil {
		err = os.Lchown(dir, caisson.LayerUIDBase, caisson.LayerUIDBase)
	}
	if err != nil {
		done()
		return "", nil, err
	}
	return dir, done, nil
}

// publish makes the directory dir the layer l.Digest, durably and at once. If there is one already, that stays: equal
// digests mean equal files.
func (d *Driver) publish(dir string, l Layer) (Layer, error) {
	f, err := os.Open(dir)
	if err != nil {
		return Layer{}, err
	}
	defer f.Close()
	// One system call for many thousand files, whose own fsyncs would cost more.
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return Layer{}, diskError(os.NewSyscallError("syncfs", err))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handOut(l.Digest)
	if there, ok, err := d.find(l.Digest); err != nil || ok {
		return there, err
	}
	l.Path, l.CreatedAt = d.layerPath(l.Digest), time.Now().UTC()
	raw, err := json.Marshal(l)
	if err != nil {
		return Layer{}, err
	}
	if err := writeDurably(l.Path+".json", raw); err != nil {
		return Layer{}, diskError(err)
	}
	if err := os.Rename(dir, l.Path); err != nil {
		return Layer{}, err
	}
	return l, syncDir(filepath.Dir(l.Path))
}

func writeDurably(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Layers returns the layers that are present, by digest.
func (d *Driver) Layers() ([]Layer, error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, "layers"))
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot list layers")
	}
	var all []Layer
	for _, e := range entries {
		hex, ok := strings.CutPrefix(e.Name(), "sha256-")
		if !ok || !e.IsDir() {
			continue
		}
		l, ok, err := d.find("sha256:" + hex)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, l)
		}
	}
	return all, nil
}

// Hold keeps [Driver.Prune] from removing any layer that is handed out until release is called. Callers hold from before
// Pull, Host or Layer until they have stored what they got.
func (d *Driver) Hold() (release func()) {
	d.mu.Lock()
	d.holds++
	d.mu.Unlock()
	released := false
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if released {
			return
		}
		released = true
		if d.holds--; d.holds == 0 {
			clear(d.touched)
		}
	}
}

// handOut remembers that somebody who may hold gets the layer. d.mu must be held.
func (d *Driver) handOut(digest string) {
	if d.holds > 0 {
		d.touched[digest] = true
	}
}

// Prune removes the layers that inUse denies and nobody holds, and garbage, and returns how many bytes that freed. inUse
// is called with a layer's digest while no layer can be handed out; it must not call the driver.
func (d *Driver) Prune(ctx context.Context, inUse func(digest string) bool) (freed caisson.Size, err error) {
	all, err := d.Layers()
	if err != nil {
		return 0, err
	}
	for _, l := range all {
		if err := ctx.Err(); err != nil {
			return freed, err
		}
		gone, err := d.discard(l, inUse)
		if err != nil {
			return freed, caisson.Wrap(err, caisson.Internal, "cannot remove layer %s", l.Digest)
		}
		if gone {
			freed += l.Size
		}
	}
	return freed, caisson.Wrap(d.sweep(), caisson.Internal, "cannot clean up the directory of images")
}

// Remove removes one layer. NotFound if it is not there, Conflict while it is held.
func (d *Driver) Remove(digest string) error {
	if !digestForm.MatchString(digest) {
		return caisson.Invalidf("digest", "%.80q is not a digest of the form sha256:…", digest)
	}
	l, ok, err := d.find(digest)
	if err != nil {
		return err
	}
	if !ok {
		return caisson.Errorf(caisson.NotFound, "there is no layer %s", digest)
	}
	gone, err := d.discard(l, func(string) bool { return false })
	if err == nil && !gone {
		return caisson.Errorf(caisson.Conflict, "layer %s is being used; try again later", digest)
	}
	return caisson.Wrap(err, caisson.Internal, "cannot remove layer %s", digest)
}

// discard removes l unless it is in use. The layer is gone at once; its files go after the lock is released.
func (d *Driver) discard(l Layer, inUse func(string) bool) (bool, error) {
	trash, done, err := d.tempEntry()
	if err != nil {
		return false, err
	}
	defer done()
	gone, err := d.detach(l, trash, inUse)
	if !gone || err != nil {
		return gone, err
	}
	return true, os.RemoveAll(trash)
}

func (d *Driver) detach(l Layer, trash string, inUse func(string) bool) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.flights[l.Digest] != nil || d.touched[l.Digest] || inUse(l.Digest) {
		return false, nil
	}
	if err := os.Rename(l.Path, filepath.Join(trash, "fs")); err != nil {
		return false, err
	}
	owners, err := filepath.Glob(d.ownerPath("*", l.Digest))
	for _, f := range append(owners, l.Path+".json") {
		err = errors.Join(err, os.Remove(f))
	}
	return true, err
}

// sweep removes what nobody is working on: half-made layers, and descriptions of layers that never came to be.
func (d *Driver) sweep() error {
	d.mu.Lock()
	entries, err := os.ReadDir(filepath.Join(d.dir, "tmp"))
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return d.activeInTemp[e.Name()] })
	d.mu.Unlock()
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(d.dir, "tmp", e.Name())))
	}
	return errors.Join(err, d.sweepDescriptions())
}

func (d *Driver) sweepDescriptions() error {
	// publish writes the description first, under the same lock.
	d.mu.Lock()
	defer d.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(d.dir, "layers"))
	if err != nil {
		return err
	}
	has := func(name string) bool {
		return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == name })
	}
	for _, e := range entries {
		name, isDescription := strings.CutSuffix(e.Name(), ".json")
		if isDescription && !has(name) || !isDescription && !has(e.Name()+".json") {
			err = errors.Join(err, os.RemoveAll(filepath.Join(d.dir, "layers", e.Name())))
		}
	}
	return err
}
