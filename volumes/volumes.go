// Package volumes is the core of volumes: directories that outlive sandboxes, of which one sandbox at a time has each.
//
// The store holds what is meant to be. On disk a volume is one directory, which goes with it:
//
//	<dir>/volumes/<id>/
//	    data/   what guests see; its files belong to the account's range of uids
//
// The directory is there before the store has the volume, and is removed after the store has forgotten it. So what the store has
// is complete, and a directory that the store does not know is garbage, whatever a crash has interrupted.
//
// What is in data was written by strangers. Nothing here opens a file of it, follows a symlink of it, or runs through it without
// bounds. Its names are only ever used in the directory that they were read from.
package volumes

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// Config is what a Core is made of. All fields but Runs and Log are required.
type Config struct {
	Dir    string // the data directory
	Store  caisson.Store
	Events caisson.Publisher
	// Runs reports whether the host has processes of a sandbox. Without it, those that the store does not have have none.
	Runs func(ctx context.Context, sandbox caisson.ID) (bool, error)
	Log  *slog.Logger
}

// Core is the state that the services of this package share. Its exported methods are for the engine.
type Core struct {
	Config
	top    *os.File      // the directory of all volumes
	locks  keylock.Locks // held by whoever gives a volume to a sandbox or removes it, by id
	making keylock.Locks // held by whoever makes a volume, by account
	counts *counts

	mu     sync.Mutex
	closed bool           // guarded by mu
	wg     sync.WaitGroup // goroutines of this core; none is added once closed
	ctx    context.Context
	stop   context.CancelCauseFunc
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
	// Whatever the umask, and whoever made it: a setuid file of a guest's is of no use to who cannot reach it.
	if err := os.Chmod(top, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(top)
	if err != nil {
		return nil, err
	}
	c := &Core{Config: cfg, top: f, counts: newCounts()}
	// The core's own lifetime, not a request's: it carries no caller.
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	return c, nil
}

var errClosing = errors.New("the daemon is ending")

// Close ends what runs in the background. What is being removed is removed on by the next daemon.
func (c *Core) Close() error {
	c.stop(errClosing)
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
	return c.top.Close()
}

// do runs f in a goroutine of the core's. If the core is closed it does not, and reports false.
func (c *Core) do(f func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.wg.Go(func() { f(c.ctx) })
	}
	return !c.closed
}

// Volumes returns the service of volumes.
func (c *Core) Volumes() *Service { return &Service{c} }

// Holds returns how the lifecycle of sandboxes uses volumes.
func (c *Core) Holds() *Holds { return &Holds{c} }

// event publishes what happened to a volume.
func (c *Core) event(ctx context.Context, v *caisson.Volume, kind string, sandbox caisson.ID) {
	data := map[string]string{"name": v.Name}
	if sandbox != "" {
		data["sandbox"] = string(sandbox)
	}
	c.Events.Publish(ctx, v.Account, kind, string(v.ID), data)
}

func now() time.Time { return time.Now().UTC() }
