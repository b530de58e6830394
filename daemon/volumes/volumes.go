// Package volumes implements volumes: directories that outlive sandboxes. A volume is attached to at most one sandbox at a time.
//
// The store holds the desired state. On disk a volume is one directory, which is removed with it:
//
//	<dir>/volumes/<id>/
//	    data/   the root of the volume in the guest; its files belong to the account's range of uids
//
// The directory is created before the volume is inserted into the store, and removed after it is deleted from the store. So
// every volume in the store is complete, and a directory without a volume in the store is garbage, wherever a crash has
// interrupted an operation.
//
// The files in data are untrusted. This package never opens one of them, never follows a symlink in data, and walks it only
// within limits. A name is only used relative to the directory that it was read from.
package volumes

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// Config configures a Core. All fields but HasProcesses and Log are required.
type Config struct {
	Dir    string // the data directory
	Store  caisson.Store
	Events caisson.Publisher
	// HasProcesses reports whether the host runs processes of a sandbox. If nil, sandboxes that are not in the store are assumed
	// to have no processes.
	HasProcesses func(ctx context.Context, sandbox caisson.ID) (bool, error)
	Log          *slog.Logger
}

// Core is the state that the services of this package share. Its exported methods are for the engine.
type Core struct {
	Config
	top         *os.File          // the directory of all volumes
	locks       keylock.Locks     // held while a volume is attached to a sandbox or removed, by volume id
	createLocks keylock.Locks     // held while a volume is created, by account
	counts      *countLimiter     // limits how often the files of volumes are counted
	background  *background.Group // removes directories of removed volumes
}

// New returns a Core. Call Reconcile before use.
func New(cfg Config) (*Core, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	top := filepath.Join(cfg.Dir, topDir)
	if err := os.MkdirAll(top, 0o700); err != nil {
		return nil, err
	}
	// Set the mode regardless of the umask and of who created the directory: users who cannot enter it cannot use a guest's
	// setuid files.
	if err := os.Chmod(top, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(top)
	if err != nil {
		return nil, err
	}
	return &Core{Config: cfg, top: f, counts: newCountLimiter(), background: background.New()}, nil
}

// Close stops the background work. After its next start the daemon resumes removals that are in progress.
func (c *Core) Close() error {
	c.background.Close()
	return c.top.Close()
}

// Volumes returns the service that manages volumes.
func (c *Core) Volumes() *Service { return &Service{c} }

// Attachments returns the service with which the core of package sandboxes attaches and detaches volumes.
func (c *Core) Attachments() *Attachments { return &Attachments{c} }

// event publishes an event of a volume. sandbox is the one to which the volume was attached or from which it was detached, or
// "".
func (c *Core) event(ctx context.Context, v *caisson.Volume, kind string, sandbox caisson.ID) {
	data := map[string]string{"name": v.Name}
	if sandbox != "" {
		data["sandbox"] = string(sandbox)
	}
	c.Events.Publish(ctx, v.Account, kind, string(v.ID), data)
}

// now returns the current time in UTC.
func now() time.Time { return time.Now().UTC() }
