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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
)

// A Layer is a directory that is one layer of an overlay file system, with its description.
type Layer struct {
	Digest    string       `json:"digest"`  // "sha256:" and 64 hexadecimal digits; equal digests mean equal files
	Path      string       `json:"-"`       // absolute path of the directory
	Size      caisson.Size `json:"size"`    // size of the files in bytes, each rounded up to blocks
	Entries   int64        `json:"entries"` // number of files, directories and links
	CreatedAt time.Time    `json:"createdAt"`
}

// layerStore manages the files on disk: layers, which accounts own them, and unfinished layers. It is safe for concurrent use.
type layerStore struct {
	dir string // directory of the files

	// mu guards the fields after it. It is also held while a layer and its description are added or removed.
	mu sync.Mutex
	// inProgress contains a channel for each layer that is being fetched, by digest. The channel is closed when the fetch has ended.
	inProgress   map[string]chan struct{}
	holds        int             // number of calls of hold, which protect layers from removal, whose release was not called
	handedOut    map[string]bool // layers that were returned to callers while holds was not 0, by digest; cleared when it is 0
	activeInTemp map[string]bool // names of directories below tmp that sweep must not remove
}

// newLayerStore returns the layerStore in dir. It creates dir if it does not exist, and removes unfinished layers from it.
func newLayerStore(dir string) (*layerStore, error) {
	s := &layerStore{dir: dir, inProgress: map[string]chan struct{}{}, handedOut: map[string]bool{}, activeInTemp: map[string]bool{}}
	for _, sub := range []string{"layers", "owners", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, caisson.Wrap(err, caisson.Internal, "cannot create the directory of images")
		}
	}
	if err := s.sweep(); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot clean up the directory of images")
	}
	return s, nil
}

// digestForm matches the digests of layers.
var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// dirName returns the name of a layer's directory. It contains no ':' or ',', which are separators in overlayfs options.
func dirName(digest string) string { return "sha256-" + strings.TrimPrefix(digest, "sha256:") }

// layerPath returns the path of the layer's directory.
func (s *layerStore) layerPath(digest string) string {
	return filepath.Join(s.dir, "layers", dirName(digest))
}

// ownerPath returns the path of the file that marks account as an owner of the layer.
func (s *layerStore) ownerPath(account, digest string) string {
	return filepath.Join(s.dir, "owners", account, strings.TrimPrefix(digest, "sha256:"))
}

// find returns the layer with this digest if it is present.
func (s *layerStore) find(digest string) (Layer, bool, error) {
	path := s.layerPath(digest)
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

// owns reports whether it is recorded that a pull of the account has transferred the layer, or that the account built it.
func (s *layerStore) owns(account, digest string) bool {
	_, err := os.Lstat(s.ownerPath(account, digest))
	return err == nil
}

// setOwner records that a pull of the account has transferred the layer's bytes, or that it built the layer.
func (s *layerStore) setOwner(account, digest string) error {
	path := s.ownerPath(account, digest)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o600)
}

// tempEntry creates a directory below tmp that sweep does not remove. done removes the directory.
func (s *layerStore) tempEntry() (dir string, done func(), err error) {
	// The lock is held, so that sweep never lists a directory that is not in activeInTemp yet.
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err = os.MkdirTemp(filepath.Join(s.dir, "tmp"), "")
	if err != nil {
		return "", nil, err
	}
	name := filepath.Base(dir)
	s.activeInTemp[name] = true
	return dir, func() {
		os.RemoveAll(dir)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.activeInTemp, name)
	}, nil
}

// tempDir creates an empty directory for a new layer, owned by the guest's root. done removes the directory unless publish has
// moved it.
func (s *layerStore) tempDir() (dir string, done func(), err error) {
	parent, done, err := s.tempEntry()
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(parent, "fs")
	err = os.Mkdir(dir, 0o755)
	if err == nil {
		err = os.Chmod(dir, 0o755) // Mkdir applies the umask, Chmod does not.
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

// publish moves the directory dir to the place of the layer l.Digest, durably and atomically, and returns the layer. If the
// layer exists already, it is returned unchanged, because equal digests mean equal files.
func (s *layerStore) publish(dir string, l Layer) (Layer, error) {
	f, err := os.Open(dir)
	if err != nil {
		return Layer{}, err
	}
	defer f.Close()
	// One syncfs is cheaper than an fsync for each of many thousand files.
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return Layer{}, diskError(os.NewSyscallError("syncfs", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handOut(l.Digest)
	if there, ok, err := s.find(l.Digest); err != nil || ok {
		return there, err
	}
	l.Path, l.CreatedAt = s.layerPath(l.Digest), time.Now().UTC()
	if err := durable.WriteJSON(l.Path+".json", l); err != nil {
		return Layer{}, diskError(err)
	}
	if err := os.Rename(dir, l.Path); err != nil {
		return Layer{}, err
	}
	return l, durable.Sync(filepath.Dir(l.Path))
}

// list returns the layers that are present, sorted by digest.
func (s *layerStore) list() ([]Layer, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "layers"))
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot list layers")
	}
	var all []Layer
	for _, e := range entries {
		hex, ok := strings.CutPrefix(e.Name(), "sha256-")
		if !ok || !e.IsDir() {
			continue
		}
		l, ok, err := s.find("sha256:" + hex)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, l)
		}
	}
	return all, nil
}

// prune removes unfinished layers, and the layers that no hold protects and for which inUse returns false. It
// calls inUse with s.mu held.
func (s *layerStore) prune(ctx context.Context, inUse func(digest string) bool) (freed caisson.Size, err error) {
	all, err := s.list()
	if err != nil {
		return 0, err
	}
	for _, l := range all {
		if err := ctx.Err(); err != nil {
			return freed, err
		}
		gone, err := s.discard(l, inUse)
		if err != nil {
			return freed, caisson.Wrap(err, caisson.Internal, "cannot remove layer %s", l.Digest)
		}
		if gone {
			freed += l.Size
		}
	}
	return freed, caisson.Wrap(s.sweep(), caisson.Internal, "cannot clean up the directory of images")
}

// remove removes the layer with this digest. Returns Conflict if a hold protects the layer or it is being fetched.
func (s *layerStore) remove(digest string) error {
	if !digestForm.MatchString(digest) {
		return caisson.Invalidf("digest", "%.80q is not a digest of the form sha256:…", digest)
	}
	l, ok, err := s.find(digest)
	if err != nil {
		return err
	}
	if !ok {
		return caisson.Errorf(caisson.NotFound, "there is no layer %s", digest)
	}
	gone, err := s.discard(l, func(string) bool { return false })
	if err == nil && !gone {
		return caisson.Errorf(caisson.Conflict, "layer %s is being used; try again later", digest)
	}
	return caisson.Wrap(err, caisson.Internal, "cannot remove layer %s", digest)
}

// discard removes the layer l unless a hold protects it, it is being fetched or inUse returns true, and reports whether it was
// removed. The layer is moved to tmp under the lock, and its files are deleted after the lock is released.
func (s *layerStore) discard(l Layer, inUse func(string) bool) (bool, error) {
	trash, done, err := s.tempEntry()
	if err != nil {
		return false, err
	}
	defer done()
	gone, err := s.moveToTrash(l, trash, inUse)
	if !gone || err != nil {
		return gone, err
	}
	return true, os.RemoveAll(trash)
}

// moveToTrash moves the layer l to the directory trash unless a hold protects it, it is being fetched or inUse returns true. It
// reports whether the layer was moved. It acquires s.mu.
func (s *layerStore) moveToTrash(l Layer, trash string, inUse func(string) bool) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inProgress[l.Digest] != nil || s.handedOut[l.Digest] || inUse(l.Digest) {
		return false, nil
	}
	if err := os.Rename(l.Path, filepath.Join(trash, "fs")); err != nil {
		return false, err
	}
	owners, err := filepath.Glob(s.ownerPath("*", l.Digest))
	for _, f := range append(owners, l.Path+".json") {
		err = errors.Join(err, os.Remove(f))
	}
	return true, err
}

// sweep removes unfinished layers that no call is building, layers without a description, and descriptions without a layer.
func (s *layerStore) sweep() error {
	s.mu.Lock()
	entries, err := os.ReadDir(filepath.Join(s.dir, "tmp"))
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return s.activeInTemp[e.Name()] })
	s.mu.Unlock()
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, "tmp", e.Name())))
	}
	return errors.Join(err, s.sweepDescriptions())
}

// sweepDescriptions removes layers without a description, and descriptions without a layer.
func (s *layerStore) sweepDescriptions() error {
	// publish writes the description before it moves the layer. It does so under the lock, so a description without a layer is
	// left from a crash.
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(s.dir, "layers"))
	if err != nil {
		return err
	}
	has := func(name string) bool {
		return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == name })
	}
	for _, e := range entries {
		name, isDescription := strings.CutSuffix(e.Name(), ".json")
		if isDescription && !has(name) || !isDescription && !has(e.Name()+".json") {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, "layers", e.Name())))
		}
	}
	return err
}
