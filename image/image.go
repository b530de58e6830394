// Package image makes root file systems: from OCI registries, directories, archives, and the host itself.
//
// What strangers wrote (manifests, configurations, blobs, archives, trees) is read by jobs of package worker, which this
// package may import, and never by the process that calls the driver. Layers are unpacked once, named by their content,
// and shared. An account may use a layer only after the bytes of it have passed through a pull of its own, so that
// knowing a digest is not a way to another account's files.
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
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/caisson-dev/caisson"
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
	// InsecureRegistries may be spoken to without TLS; they are written as in references, with the port if there is one.
	// Those on this host always may.
	InsecureRegistries []string
	// HostRoot is the root directory of the host image; "" means "/".
	HostRoot string
	// Log gets what pulls leave out; nil discards it.
	Log *slog.Logger
}

// A Driver pulls images and keeps their layers. It is safe for concurrent use.
type Driver struct {
	dir          string
	worker       *worker.Runner
	maxIn        int64
	maxOut       int64
	insecure     []string
	hostRoot     string
	log          *slog.Logger
	slots        chan struct{} // one for each layer in work
	hostMu       sync.Mutex
	hostCache    hostState
	mu           sync.Mutex
	flights      map[string]chan struct{} // by digest; closed when the work on it is over
	holds        int
	touched      map[string]bool // layers handed out since holds was last 0
	activeInTemp map[string]bool
}

// New returns a driver on cfg.Dir and removes what a crash has left there.
func New(cfg Config) (*Driver, error) {
	if !filepath.IsAbs(cfg.Dir) || cfg.Worker == nil {
		return nil, caisson.Errorf(caisson.Invalid, "image: an absolute directory and a worker are required")
	}
	d := &Driver{dir: cfg.Dir, worker: cfg.Worker, maxIn: cfg.MaxCompressed, maxOut: cfg.MaxUncompressed,
		insecure: cfg.InsecureRegistries, hostRoot: cfg.HostRoot, log: cfg.Log, slots: make(chan struct{}, pipelines),
		flights: map[string]chan struct{}{}, touched: map[string]bool{}, activeInTemp: map[string]bool{}}
	if d.maxIn <= 0 {
		d.maxIn = defaultMaxSize
	}
	if d.maxOut <= 0 {
		d.maxOut = defaultMaxSize
	}
	if d.hostRoot == "" {
		d.hostRoot = "/"
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.log = d.log.With("component", "image")
	for _, sub := range []string{"layers", "owners", "tmp"} {
		if err := os.MkdirAll(filepath.Join(d.dir, sub), 0o700); err != nil {
			return nil, caisson.Wrap(err, caisson.Internal, "cannot make the directory of images")
		}
	}
	if err := makeEmpty(d.emptyDir()); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot make the directory of images")
	}
	if err := d.sweep(); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot clean up the directory of images")
	}
	return d, nil
}

func (d *Driver) emptyDir() string { return filepath.Join(d.dir, "empty") }

// makeEmpty makes the directory that sandboxes see in place of what is hidden; its mode must not depend on the umask.
func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o555)
}
