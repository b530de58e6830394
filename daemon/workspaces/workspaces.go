// Package workspaces is the core of workspaces: host directories that a sandbox sees as they are, and changes only in a
// layer of its own, until a person or an automatic sync applies the changes.
//
// It creates the layers of a new sandbox's workspace, finds the changes in them, and applies changes that were
// reviewed, each time with a receipt. Package gate does everything that reads or writes trees, in unprivileged worker
// jobs; this package manages the objects, the directories, the order of the steps, and the recovery after a crash.
//
// The store contains the intended state; it contains a workspace once its directory is complete. On disk a workspace is
// one directory, which is removed with it:
//
//	<dir>/workspaces/<id>/
//	    layers/upper/        files that the sandbox has written, in overlayfs's format; layers/work is overlayfs's own
//	    mask/                a layer of whiteouts for hidden files
//	    manifest             the state of the host directory when the sandbox was created
//	    base/                copies of the small files of the host directory in that state, for merges
//	    copy/                copies of all files in that state, for the sandbox; only of kind copy, removed after the sandbox
//	    frozen/<rv>/         a copy of the layer at a review; <rv>.json contains the changes that were found in it
//	    saved/<rc>/          the files that a sync has replaced, and its journal; <rc>.json describes the sync until its outcome
//	                         is in the store, and is renamed to <rc>.done then
//	    dropped              a change that is being removed from the layer
//	    declined.json        paths that were undone: they are not applied automatically again
//	    removals.json        counts that limit automatic removals; only earlier versions wrote it
//	    show.json            patterns of names that are not hidden
//	    seen.json            changes for which an event was published: kind and hash by path
//	    writers.json         the process that was the last to change each file, as last reported by the sandbox
//	    suspects.json        files that may contain secrets, according to their content
//	    refused.json         the result of the last command that failed, and the changes that it was run on
//
// <dir>/workspaces and <id> belong to root and have mode 0700. The layers and mask belong to the guest's root, copy and
// the contents of saved to the owner of the host directory. base and frozen/<rv> belong to root, except while a job
// writes to them: then they belong to the user that the job runs as.
package workspaces

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/keylock"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/worker"
)

// Settings configure which files of host directories sandboxes see, and which changes may be applied to them. Zero fields
// mean the defaults.
type Settings struct {
	Hide  []string         `yaml:"hide" json:"hide"`   // patterns of names to hide from sandboxes, besides the default ones
	Keep  caisson.Duration `yaml:"keep" json:"keep"`   // how long changes are kept after their sandbox was removed
	Rules check.Rules      `yaml:"rules" json:"rules"` // rules by which changes are checked before they are applied
	// Commands are run, in this order, on changes before they are applied, after all other checks.
	Commands []Command `yaml:"commands" json:"commands"`
}

// WithDefaults returns s with zero fields replaced by the defaults.
func (s Settings) WithDefaults() Settings {
	s.Keep, s.Rules = cmp.Or(s.Keep, caisson.Duration(7*24*time.Hour)), s.Rules.WithDefaults()
	return s
}

// Validate returns an Invalid error for every invalid setting, joined.
func (s *Settings) Validate() error {
	var errs []error
	if s.Keep <= 0 {
		errs = append(errs, caisson.Invalidf("keep", "must be greater than 0"))
	}
	if _, err := baseline.NewMask(s.HiddenPatterns(), nil); err != nil {
		errs = append(errs, caisson.Invalidf("hide", "%s", caisson.MessageOf(err)))
	}
	if err := ValidateCommands(s.Commands); err != nil {
		errs = append(errs, caisson.Invalidf(caisson.FieldOf(err), "%s", caisson.MessageOf(err)))
	}
	if err := s.Rules.Validate(); err != nil {
		errs = append(errs, caisson.Invalidf("rules."+caisson.FieldOf(err), "%s", caisson.MessageOf(err)))
	}
	return errors.Join(errs...)
}

// HiddenPatterns returns the patterns of all names that are hidden from sandboxes.
func (s *Settings) HiddenPatterns() []string { return append(baseline.DefaultHidden(), s.Hide...) }

// Config configures a Core. All fields but Settings, ApplyInterval, SearchAfter and Log are required.
type Config struct {
	Dir    string // the data directory
	Store  caisson.Store
	Jobs   worker.Starter // starts worker jobs
	Events caisson.Publisher
	// UsesLayers reports whether a sandbox may be using its layers at present. Returns NotFound if there is no such sandbox.
	UsesLayers    func(ctx context.Context, sandbox caisson.ID) (bool, error)
	Settings      Settings      // hidden files, and rules for applying changes
	ApplyInterval time.Duration // interval of automatic applies; 0 means 30 s
	// SearchAfter is the delay before the files of a new workspace are searched for secrets, because its sandbox is
	// being started at that time; 0 means 1 s.
	SearchAfter time.Duration
	Log         *slog.Logger
}

// Retention times, limits and intervals of this package.
const (
	keepSettled          = 24 * time.Hour   // how long settled workspaces are kept, unless Settings.Keep is shorter
	keepReviews          = 24 * time.Hour   // how long changes can be applied by the id of a review
	maxReviews           = 8                // maximum number of reviews that are kept for one workspace
	defaultApplyInterval = 30 * time.Second // default interval of automatic applies
	defaultSearchDelay   = time.Second      // default delay before the files of a new workspace are searched for secrets
	cleanInterval        = 10 * time.Minute // interval of the removal of old workspaces, reviews and numbers of own files
	// detachTimeout is the timeout for the work on a workspace that the removal of its sandbox waits for.
	detachTimeout = 2 * time.Minute
)

// Core combines the components of this package. Its exported methods are for package engine.
type Core struct {
	cfg Config // configuration of the core
	directory
	sandboxes    Sandboxes      // services of package sandboxes; set by SetSandboxes
	data         *os.File       // the data directory
	reviews      *reviews       // finds and checks changes
	syncs        *syncs         // applies and undoes changes
	layerFiles   *layerFiles    // files of workspaces on disk
	secretSearch *secretSearch  // searches files for secrets
	refusals     refusals       // changes that commands have refused
	removals     *removalCounts // numbers of existing and removed own files, which limit what automatic syncs remove
	trials       *trials        // trials in progress
	// layerLocks are held while a layer is mounted or changes in it are dropped, by workspace id; acquired after
	// layerFiles.locks.
	layerLocks keylock.Locks
}

// New returns a Core, or an Invalid error if cfg is invalid. Call Reconcile before use.
func New(cfg Config) (*Core, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Settings = cfg.Settings.WithDefaults()
	if err := cfg.Settings.Validate(); err != nil {
		return nil, err
	}
	cfg.ApplyInterval = cmp.Or(max(cfg.ApplyInterval, 0), defaultApplyInterval)
	cfg.SearchAfter = cmp.Or(max(cfg.SearchAfter, 0), defaultSearchDelay)
	data, err := os.Open(cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{topDir, removalDir} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, dir), 0o700); err != nil {
			data.Close()
			return nil, err
		}
	}
	dir, store := directory(filepath.Join(cfg.Dir, topDir)), cfg.Store.Workspaces()
	removals := &removalCounts{dir: filepath.Join(cfg.Dir, removalDir), workspaces: dir}
	files := &layerFiles{
		directory: dir, jobs: cfg.Jobs, hidden: cfg.Settings.HiddenPatterns(), removals: removals, log: cfg.Log, background: background.New(),
		jobSlots: make(chan struct{}, 4),
	}
	return &Core{
		cfg: cfg, directory: dir, data: data, layerFiles: files, removals: removals, trials: newTrials(dir),
		secretSearch: &secretSearch{files, cfg.SearchAfter}, refusals: refusals{dir, cfg.Settings.Commands},
		reviews: &reviews{
			directory: dir, jobs: cfg.Jobs, rules: cfg.Settings.Rules, store: store, events: cfg.Events, removals: removals,
			writers: &writers{directory: dir, store: store, log: cfg.Log},
		},
		syncs: &syncs{directory: dir, jobs: cfg.Jobs, store: store, events: cfg.Events, removals: removals, log: cfg.Log},
	}, nil
}

// SetSandboxes sets the services of package sandboxes. They are not in Config, because that package itself uses the layers of
// this core. SetSandboxes must be called once, before anything else.
func (c *Core) SetSandboxes(s Sandboxes) { c.sandboxes, c.reviews.writers.lifecycle = s, s.Lifecycle }

// Close stops the background work. Workspaces are not changed.
func (c *Core) Close() error {
	c.layerFiles.background.Close()
	return c.data.Close()
}

// Layers returns the service that package sandboxes uses for workspaces.
func (c *Core) Layers() *Layers { return &Layers{c} }

// Workspaces returns the service that manages workspaces for callers.
func (c *Core) Workspaces() *Service { return &Service{c} }

// publish publishes an event about a workspace.
func publish(ctx context.Context, to caisson.Publisher, w *caisson.Workspace, kind string, data map[string]string) {
	to.PublishAll(ctx, []*caisson.Event{newEvent(w, kind, data)})
}

// newEvent returns an event about a workspace.
func newEvent(w *caisson.Workspace, kind string, data map[string]string) *caisson.Event {
	if data == nil {
		data = map[string]string{}
	}
	data["sandbox"] = string(w.Sandbox)
	if w.Run != "" {
		data["run"] = string(w.Run)
	}
	return &caisson.Event{Account: w.Account, Type: kind, Subject: string(w.ID), Data: data}
}

// now returns the current time in UTC.
func now() time.Time { return time.Now().UTC() }
