// Package routes implements routes: which requests from outside lead to which ports of sandboxes. The wire process serves them
// (package ingress). This package stores them, sends a compiled table of them to the wire process, and makes the connections to
// sandboxes. It checks the route or token of each connection again.
package routes

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/smallfile"
)

// Sandboxes has the methods of the core of package sandboxes that this package uses.
type Sandboxes interface {
	Get(ctx context.Context, ref string) (*caisson.Sandbox, error)
	Resume(ctx context.Context, ref string) (*caisson.Sandbox, error)
	Wake(ctx context.Context, ref string) (*caisson.Sandbox, error)
}

// Wire is the interface to the wire process.
type Wire interface {
	// Refresh sends the settings, which have the table of routes, to the wire process.
	Refresh(ctx context.Context) error
	// DropSandbox closes the connections of the ingress to a sandbox.
	DropSandbox(ctx context.Context, id caisson.ID) error
}

// Config configures a Core. All fields but Log are required.
type Config struct {
	Settings Settings           // settings of the ingress
	Address  string             // address on which the ingress listens; "" if there is no ingress
	Key      ed25519.PrivateKey // signs the tokens of signed URLs
	Store    caisson.Table[caisson.Route]
	// Sandboxes returns the core of package sandboxes. It is a function because that core is constructed after this one.
	Sandboxes func() Sandboxes
	// Used is called when the wire process has passed requests to a sandbox; active reports whether a request is in progress.
	// It must not block.
	Used func(sandbox caisson.ID, active bool)
	// Owner returns the account of a sandbox; NotFound if there is none.
	Owner  func(ctx context.Context, sandbox caisson.ID) (account string, err error)
	Dialer caisson.Dialer // connects to servers in sandboxes
	Wire   Wire           // interface to the wire process
	Events caisson.Publisher
	Log    *slog.Logger
}

// Core contains the components of this package.
type Core struct {
	Service   *Service   // API of routes
	Connector *Connector // connects to sandboxes
	Table     *Table     // compiles the routes for the wire process
	Requests  *Requests  // recent requests of routes

	background *background.Group
}

// New returns a Core.
func New(cfg Config) *Core {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Core{Requests: newRequests(), background: background.New()}
	c.Table = &Table{settings: cfg.Settings, key: cfg.Key, store: cfg.Store, wire: cfg.Wire, log: cfg.Log}
	c.Connector = newConnector(cfg, c.background)
	c.Service = &Service{
		settings: cfg.Settings, address: cfg.Address, key: cfg.Key, store: cfg.Store, sandboxes: cfg.Sandboxes, table: c.Table,
		requests: c.Requests, events: cfg.Events,
	}
	return c
}

// Close ends the background work.
func (c *Core) Close() error {
	c.background.Close()
	return nil
}

// A Table compiles all routes, with the certificate of the ingress, into its configuration for the wire process.
type Table struct {
	settings Settings           // settings of the ingress
	key      ed25519.PrivateKey // the wire process gets its public key, which verifies the tokens of signed URLs
	store    caisson.Table[caisson.Route]
	wire     Wire // sends the routes to the wire process
	log      *slog.Logger

	mu   sync.Mutex
	pair [2]string // certificate and key as last read, used if the files cannot be read; guarded by mu
}

// Compile returns the configuration of the ingress for the wire process; nil if no ingress is configured.
func (t *Table) Compile(ctx context.Context) (*caisson.IngressConfig, error) {
	if t.settings.Listen == "" {
		return nil, nil
	}
	list, err := allRoutes(ctx, t.store)
	if err != nil {
		return nil, err
	}
	cfg := &caisson.IngressConfig{Domain: t.settings.domain(), Key: t.key.Public().(ed25519.PublicKey), Routes: []caisson.IngressRoute{}}
	for _, r := range list {
		cfg.Routes = append(cfg.Routes, caisson.IngressRoute{ID: r.ID, Spec: r.Spec})
	}
	pair, err := t.certificate()
	if err != nil {
		return nil, err
	}
	cfg.Certificate, cfg.CertificateKey = pair[0], pair[1]
	return cfg, nil
}

// certificate returns the certificate and its key. If their files cannot be read, it returns the pair that was read last.
func (t *Table) certificate() ([2]string, error) {
	if t.settings.TLS.Cert == "" {
		return [2]string{}, nil
	}
	var pair [2]string
	for i, name := range []string{t.settings.TLS.Cert, t.settings.TLS.Key} {
		b, err := smallfile.Read(name)
		if err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.pair[0] == "" {
				return pair, caisson.Wrap(err, caisson.Invalid, "the file %s of the ingress cannot be read", name)
			}
			t.log.ErrorContext(context.Background(), "the certificate of the ingress cannot be read; the previous one stays in use", "err", err)
			return t.pair, nil
		}
		pair[i] = string(b)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pair = pair
	return pair, nil
}

// watchInterval is the interval between checks of the certificate's files.
const watchInterval = 5 * time.Second

// WatchCertificate passes the certificate to the wire process when its files change, until ctx ends.
func (t *Table) WatchCertificate(ctx context.Context) error {
	if t.settings.TLS.Cert == "" {
		return nil
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last := t.stamps()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := t.stamps()
		if now == last {
			continue
		}
		if err := t.wire.Refresh(ctx); err != nil && ctx.Err() == nil {
			t.log.WarnContext(ctx, "the wire process could not be given the new certificate of the ingress", "err", err)
			continue
		}
		last = now
	}
}

// A stamp is the modification time and size of a file, with which a change of the file is detected.
type stamp struct {
	modified time.Time
	size     int64
}

// stamps returns the modification times and sizes of the files of the certificate and its key; zero if a file does not exist.
func (t *Table) stamps() (s [2]stamp) {
	for i, name := range []string{t.settings.TLS.Cert, t.settings.TLS.Key} {
		if info, err := os.Stat(name); err == nil {
			s[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return s
}

// maxRoutes is the maximum number of routes of all accounts, because their table is sent to the wire process as a whole.
const maxRoutes = 2000

// allRoutes returns the routes of all accounts.
func allRoutes(ctx context.Context, store caisson.Table[caisson.Route]) ([]*caisson.Route, error) {
	return caisson.ListAll(ctx, store, caisson.AllAccounts(), func(r *caisson.Route) caisson.ID { return r.ID })
}
