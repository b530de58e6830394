// Package image makes root file systems: from OCI registries, directories, archives, and the host itself.
//
// What strangers wrote (manifests, configurations, blobs, archives, trees) is read by jobs of package worker, which this
// package may import, and never by the process that calls the driver. Layers are unpacked once, named by their content,
// and shared. An account may use a layer only after the bytes of it have passed through a pull of its own, so that
// knowing a digest is not a way to another account's files.
//
// Registries are spoken to with TLS, and trusted if an authority vouches for them that this host trusts or that
// Config.RegistryCA names. Jobs have no environment, so SSL_CERT_FILE and proxy variables of the process mean nothing to
// them. Where a pull may go is decided at each connection: callers on the host reach what it reaches, except its metadata
// service; others reach public addresses only, and the registries that the administrator lists.
//
// On disk, below Config.Dir:
//
//	layers/sha256-<hex>/       a layer, ready for overlayfs mounted with userxattr
//	layers/sha256-<hex>.json   its size and such
//	owners/<account>/<hex>     the account has shown that it has this layer's bytes
//	tmp/                       what is being made; removed at the next start
//	empty/                     lies over /usr/local in the host image
package image

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/worker"
)

// Limits that are not configurable.
const (
	maxLayers  = 128
	maxConfig  = 512 << 10 // bytes of an image's configuration
	maxEntries = 2_000_000 // files in a layer
	pipelines  = 3         // layers in work at once
)

const defaultMaxSize = 16 << 30

// Config configures a Driver.
type Config struct {
	// Dir is the directory of images; required. It is made if it is missing, and must be this driver's alone.
	Dir string
	// Worker runs the jobs in [Jobs]; required.
	Worker *worker.Runner
	// MaxCompressed and MaxUncompressed bound one image, in bytes; 0 means 16 GiB.
	MaxCompressed, MaxUncompressed int64
	// InsecureRegistries may be spoken to without TLS, and may be where only this host can reach them; they are written as
	// in references, with the port if there is one. For local callers those on this host always may.
	InsecureRegistries []string
	// RegistryCA is a PEM file of the authorities to trust besides the host's; "" for none. It is read for each pull.
	RegistryCA string
	// OwnAddresses knows which addresses are this host's: only local callers reach registries there.
	OwnAddresses reach.Host
	// HostRoot is the root directory of the host image; "" means "/".
	HostRoot string
	// Log gets what pulls leave out; nil discards it.
	Log *slog.Logger
}

// A Driver pulls images and keeps their layers. It is safe for concurrent use.
type Driver struct {
	worker     *worker.Runner
	maxIn      int64
	maxOut     int64
	insecure   []string
	registryCA string
	own        reach.Host
	log        *slog.Logger
	slots      chan struct{} // one for each layer in work
	layers     *layerStore
	host       *hostImage
}

// New returns a driver on cfg.Dir and removes what a crash has left there.
func New(cfg Config) (*Driver, error) {
	if !filepath.IsAbs(cfg.Dir) || cfg.Worker == nil {
		return nil, caisson.Errorf(caisson.Invalid, "image: an absolute directory and a worker are required")
	}
	d := &Driver{worker: cfg.Worker, maxIn: cfg.MaxCompressed, maxOut: cfg.MaxUncompressed, insecure: cfg.InsecureRegistries,
		registryCA: cfg.RegistryCA, own: cfg.OwnAddresses, log: cfg.Log, slots: make(chan struct{}, pipelines)}
	if d.maxIn <= 0 {
		d.maxIn = defaultMaxSize
	}
	if d.maxOut <= 0 {
		d.maxOut = defaultMaxSize
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.log = d.log.With("component", "image")
	if _, err := readCA(d.registryCA); err != nil {
		return nil, err
	}
	layers, err := newLayerStore(cfg.Dir)
	if err != nil {
		return nil, err
	}
	empty := filepath.Join(cfg.Dir, "empty")
	if err := makeEmpty(empty); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot make the directory of images")
	}
	d.layers, d.host = layers, &hostImage{root: cmp.Or(cfg.HostRoot, "/"), empty: empty, layers: layers}
	return d, nil
}

// Host returns the image of the host's own programs, read-only: /usr and what belongs to it, and a root directory made for
// it with a short list of files from /etc. When the host's packages change, so does its digest. A call that finds nothing
// changed costs some hundred stats.
//
// What is written in place, without a change to the directory it is in or to the package database, goes unnoticed.
func (d *Driver) Host(ctx context.Context) (*caisson.Image, error) { return d.host.image(ctx) }

// Layers returns the layers that are present, by digest.
func (d *Driver) Layers() ([]Layer, error) { return d.layers.list() }

// Hold keeps [Driver.Prune] from removing any layer that is handed out until release is called. Callers hold from before
// Pull, Host or Layer until they have stored what they got.
func (d *Driver) Hold() (release func()) { return d.layers.hold() }

// Prune removes the layers that inUse denies and nobody holds, and garbage, and returns how many bytes that freed. inUse
// is called with a layer's digest while no layer can be handed out; it must not call the driver.
func (d *Driver) Prune(ctx context.Context, inUse func(digest string) bool) (freed caisson.Size, err error) {
	return d.layers.prune(ctx, inUse)
}

// Remove removes one layer. NotFound if it is not there, Conflict while it is held.
func (d *Driver) Remove(digest string) error { return d.layers.remove(digest) }

// makeEmpty makes the directory that sandboxes see in place of what is hidden; its mode must not depend on the umask.
func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o555)
}
