// Package image builds root file systems from OCI registries, directories, archives, and the host's own programs.
//
// Untrusted content (manifests, configurations, blobs, archives, trees) is parsed by jobs of package worker, which this
// package may import, and never by the process that calls the driver. Layers are unpacked once, named by their digest,
// and shared between accounts. An account may use a layer only after one of its own pulls has transferred the layer's
// bytes, so that knowing a digest does not give access to another account's files.
//
// Connections to registries use TLS. A registry's certificate must be signed by an authority that this host trusts or that
// Config.RegistryCA contains. Jobs have no environment, so SSL_CERT_FILE and the proxy variables of the process do not
// apply to them. Addresses are checked at each connection: pulls of callers on this host may connect to any address that
// the host can reach, except cloud metadata services; those of other callers only to public addresses and to the
// registries that the administrator lists.
//
// On disk, below Config.Dir:
//
//	layers/sha256-<hex>/       a layer, ready for overlayfs mounted with userxattr
//	layers/sha256-<hex>.json   the layer's digest, size, number of entries and creation time
//	owners/<account>/<hex>     marks that a pull of the account has transferred this layer's bytes
//	tmp/                       unfinished layers; removed at the next start
//	empty/                     mounted over /usr/local in the host image
package image

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/job/worker"
)

// Limits of images that cannot be configured.
const (
	maxLayers         = 128       // maximum number of layers of one image
	maxConfig         = 512 << 10 // maximum size of an image's configuration in bytes
	maxEntries        = 2_000_000 // maximum number of entries in a layer
	maxParallelLayers = 3         // maximum number of layers that are fetched or unpacked concurrently
)

const defaultMaxSize = 16 << 30 // default of Config.MaxCompressed and Config.MaxUncompressed, in bytes

// Config configures a Driver.
type Config struct {
	// Dir is the directory of images; required. It is created if it does not exist. No other driver may use it.
	Dir string
	// Worker runs the jobs in [Jobs]; required.
	Worker *worker.Runner
	// MaxCompressed and MaxUncompressed are the maximum sizes, in bytes, of all layers of one image, as they are transferred
	// and unpacked. 0 means 16 GiB.
	MaxCompressed, MaxUncompressed int64
	// InsecureRegistries lists the registries that may be used without TLS and at private addresses. Each is written as in
	// references to images: the host name, with the port if there is one. Local callers may always use registries on this host
	// without TLS.
	InsecureRegistries []string
	// RegistryCA is the path of a PEM file of certificate authorities to trust in addition to the host's; "" for none. It is
	// read for each pull.
	RegistryCA string
	// OwnAddresses determines which addresses belong to this host. Only local callers may use registries at these addresses.
	OwnAddresses reach.Host
	// HostRoot is the root directory of the host image; "" means "/".
	HostRoot string
	// Log receives a warning for each file that a pull leaves out; nil discards them.
	Log *slog.Logger
}

// A Driver pulls images and stores their layers. It is safe for concurrent use.
type Driver struct {
	worker       *worker.Runner // runs the jobs
	maxIn        int64          // maximum size of one image in bytes, compressed
	maxOut       int64          // maximum size of one image in bytes, uncompressed
	insecure     []string       // registries that may be used without TLS, see Config.InsecureRegistries
	registryCA   string         // path of a PEM file of certificate authorities to trust in addition to the host's; "" for none
	ownAddresses reach.Host     // determines which addresses belong to this host
	log          *slog.Logger
	slots        chan struct{} // contains one value for each layer that is being fetched or unpacked, at most maxParallelLayers
	layers       *layerStore   // the stored layers
	host         *hostImage    // builds the image of the host's programs
}

// New returns a driver on cfg.Dir and removes unfinished layers that a crash has left there.
func New(cfg Config) (*Driver, error) {
	if !filepath.IsAbs(cfg.Dir) || cfg.Worker == nil {
		return nil, caisson.Errorf(caisson.Invalid, "image: an absolute directory and a worker are required")
	}
	d := &Driver{worker: cfg.Worker, maxIn: cfg.MaxCompressed, maxOut: cfg.MaxUncompressed, insecure: cfg.InsecureRegistries,
		registryCA: cfg.RegistryCA, ownAddresses: cfg.OwnAddresses, log: cfg.Log, slots: make(chan struct{}, maxParallelLayers)}
	d.maxIn = cmp.Or(max(d.maxIn, 0), defaultMaxSize)
	d.maxOut = cmp.Or(max(d.maxOut, 0), defaultMaxSize)
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
		return nil, caisson.Wrap(err, caisson.Internal, "cannot create the directory of images")
	}
	d.layers, d.host = layers, &hostImage{root: cmp.Or(cfg.HostRoot, "/"), empty: empty, layers: layers}
	return d, nil
}

// Host returns the image of the host's own programs: read-only bind mounts of /usr and of the other directories for
// programs, and a generated root directory with a short list of files from /etc. The image's digest changes when the host's
// packages change. If nothing has changed since the last call, Host costs a few hundred stat calls.
//
// A file that is overwritten in place, without a change to its directory or to the package database, is not detected.
func (d *Driver) Host(ctx context.Context) (*caisson.Image, error) { return d.host.image(ctx) }

// Layers returns the layers that are present, sorted by digest.
func (d *Driver) Layers() ([]Layer, error) { return d.layers.list() }

// ProtectLayers prevents [Driver.Prune] and [Driver.Remove] from removing any layer that the driver returns before release is
// called. Call it before Pull, Host or Layer, and call release after a reference to the result has been stored.
func (d *Driver) ProtectLayers() (release func()) { return d.layers.hold() }

// Prune removes unfinished layers, and the layers for which inUse returns false unless [Driver.ProtectLayers] protects them. It
// returns the size of the removed layers. inUse is called with a layer's digest while a lock is held that keeps the driver from
// returning any layer; it must not call the driver.
func (d *Driver) Prune(ctx context.Context, inUse func(digest string) bool) (freed caisson.Size, err error) {
	return d.layers.prune(ctx, inUse)
}

// Remove removes one layer. Returns NotFound if it does not exist, and Conflict while it is being fetched or is protected by
// [Driver.ProtectLayers].
func (d *Driver) Remove(digest string) error { return d.layers.remove(digest) }

// makeEmpty creates the empty directory dir, which sandboxes see as /usr/local. Its mode must not depend on the umask.
func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o555)
}
