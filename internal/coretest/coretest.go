// Package coretest constructs the engine on drivers that need no host: sandboxes of package runtime/fake with a few programs,
// images of package job/image/imagetest, wires that are connected to nothing, and git remotes in a directory. Cores, store,
// ledger and jobs are the product's.
package coretest

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/internal/testbin"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/relay/transport"
	"github.com/caisson-dev/caisson/job/worker"
	"github.com/caisson-dev/caisson/runtime/fake"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
	"github.com/caisson-dev/caisson/wire"
)

// A World is a running engine for tests, with its drivers.
type World struct {
	*engine.Engine
	Runtime *fake.Runtime // the driver of all sandboxes

	dir     string       // the data directory
	images  *images      // the driver for images
	wires   *wires       // the driver for wires
	remotes *remotes     // the git remotes of the repositories
	agents  *agents      // the programs of the agents
	live    *counter     // counts the processes that [World.RunningProcesses] returns
	end     func() error // ends the engine's work in the background
}

// New returns a world that is closed when the test ends. Its worker jobs need root: see [NeedJobs].
func New(t testing.TB) *World {
	t.Helper()
	w, err := Open(testbin.Path(t, "caisson-worker"), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// NeedJobs skips a test that needs worker jobs, as workspaces and repositories do, unless it runs as root.
func NeedJobs(t testing.TB) {
	t.Helper()
	testneed.Root(t)
}

// Open returns a world that the caller must close. jobs is the path of the binary of caisson-worker.
func Open(jobs string, log *slog.Logger) (_ *World, err error) {
	base := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		base = "/dev/shm" // a file system in memory, where the store's syncs take no time
	}
	dir, err := os.MkdirTemp(base, "coretest-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	w := &World{dir: dir, images: newImages(filepath.Join(dir, "test-images")), wires: newWires(), live: &counter{}}
	w.agents = &agents{w: w, turns: map[string]*turn{}}
	programs := guest.Programs()
	maps.Copy(programs, w.programs())
	if w.Runtime, err = fake.New(fake.Config{Dir: filepath.Join(dir, "test-runtime"), Programs: programs}); err != nil {
		return nil, err
	}
	runner, err := worker.New(worker.Config{Exe: jobs, UIDBase: caisson.LayerUIDBase, WorkUID: worker.DefaultUID, Log: log})
	if err != nil {
		return nil, err
	}
	if w.remotes, err = newRemotes(filepath.Join(dir, "test-remotes"), transport.NewTool(runner), w.wires); err != nil {
		return nil, err
	}
	if err := sqlitetest.Put(dir); err != nil {
		return nil, err
	}
	w.Engine, err = engine.NewOn(context.Background(), engine.Config{
		Data: engine.DataConfig{Dir: dir}, Version: "1.0", Log: log,
		Models: engine.ModelConfig{
			Offer: models.Offer{Providers: providers(), Models: catalog()}, Gateway: models.GatewayConfig{GatewaySettings: models.GatewaySettings{Listen: "127.0.0.1:0"}},
		},
		Agents: engine.AgentConfig{Limits: runs.Limits{Grace: 200 * time.Millisecond}},
		Work:   engine.WorkConfig{Relay: repos.Settings{FirstRetry: caisson.Duration(20 * time.Millisecond)}},
	}, &engine.Drivers{
		Runtime: sandboxes.RuntimeOf(runtime{w.Runtime}), Dialer: w.Runtime, Images: w.images.Driver, Worker: runner, Transport: w.remotes, Forge: w.remotes, Agents: builtin(),
		Wires: func(wire.Config) (engine.Wires, error) { return engine.NewWires(w.wires), nil },
		Close: func() error { return nil },
	})
	if err != nil {
		return nil, err
	}
	return w, w.run()
}

// run starts the engine's work in the background and returns when requests may be served.
func (w *World) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- w.Run(ctx, func() error { close(ready); return nil })
	}()
	w.end = func() error {
		cancel()
		return <-ended
	}
	select {
	case <-ready:
		return nil
	case err := <-ended:
		return errors.Join(err, w.Engine.Close())
	}
}

// Close ends the world and its sandboxes, and removes its files.
func (w *World) Close() error {
	err := errors.Join(w.end(), w.Engine.Close(), w.remotes.close())
	ctx := context.Background()
	list, lerr := w.Runtime.List(ctx)
	for _, x := range list {
		err = errors.Join(err, w.Runtime.Destroy(ctx, x.ID))
	}
	return errors.Join(err, lerr, os.RemoveAll(w.dir))
}

// API returns the services of the world.
func (w *World) API() caisson.API {
	a := w.Engine.API()
	a.Daemon, a.Ledger = daemon{w.Engine}, mismatchedLedger{a.Ledger}
	return a
}

// Config returns the configuration of an API that serves the world.
func (w *World) Config(log *slog.Logger) httpapi.Config {
	return httpapi.Config{
		API: w.API(), Answers: w.Store().Answers(), FindToken: w.Tokens().FindToken, FindAccount: w.Store().Accounts().Get, Log: log,
	}
}

// daemon is an engine whose Examine returns a fixed result, because the fake runtime works on hosts that do not support gVisor.
type daemon struct{ *engine.Engine }

// Examine returns one check, which has succeeded.
func (daemon) Examine(context.Context) ([]caisson.Check, error) {
	return []caisson.Check{{Name: "memory", Status: "ok", Detail: "there is some"}}, nil
}

// Secret implements [caisson.Secrets].
func (w *World) Secret(ctx context.Context, account, name string) (caisson.Secret, error) {
	return w.Engine.API().Credentials.(caisson.Secrets).Secret(ctx, account, name)
}

// Charge records calls of models as if they had been read from a journal.
func (w *World) Charge(ctx context.Context, calls ...caisson.Call) error {
	return w.Store().Ledger().Ingest(ctx, caisson.NewID(caisson.JournalPrefix), 0, int64(len(calls)), calls)
}

// RunningProcesses returns the number of running processes that tests have started. Agents and processes that the cores have
// started do not count.
func (w *World) RunningProcesses() int { return int(w.live.running.Load()) }

// LastPull returns the last request for an image. The source in the request is closed.
func (w *World) LastPull() caisson.PullRequest { return w.images.pulled() }

// EndWait ends the step "wait" of a run's prompt, in which the agent waits for this call. It returns false if it does not wait.
func (w *World) EndWait(run caisson.ID) bool { return w.agents.release(run) }
