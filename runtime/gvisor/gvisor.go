// Package gvisor is the default [caisson.Runtime]. It embeds gVisor.
//
// A sandbox consists of two host processes: its sentry (gVisor's kernel, which executes the guest's system calls) and a gofer
// (which opens host files for it). Both have separate user, mount, PID, IPC and network namespaces and are mapped to the
// account's unprivileged range of uids. A short-lived launcher process (package sentry) starts them; after that, the daemon
// controls the sentry through its control socket. A sandbox has no entries in the host's mount table or in /run: all that exists
// of it are its processes, its cgroup and its directory.
//
// The state that a restarted daemon needs is in each sandbox's directory. Sandboxes keep running without the daemon.
package gvisor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// Programs are the paths of the executables of sandboxes.
type Programs struct {
	Exe    string // gVisor's processes, cmd/caisson-sentry
	Guestd string // /.caisson/inside (guestd) in every sandbox
	Coder  string // /.caisson/agent, the built-in coding agent; "" leaves it out
}

// Config configures a Runtime. Dir, Cgroup, ToolsDir, Programs.Exe, Programs.Guestd and Build are required.
type Config struct {
	// Dir is the parent of the directories of all sandboxes. New finds existing sandboxes in it. It must be in the data directory
	// of this instance of Caisson: its path distinguishes the sandboxes of this instance from those of others.
	Dir string
	// ToolsDir is the directory for the layer with Caisson's guest programs.
	ToolsDir string
	Programs Programs // executables of the current build
	// Find returns the programs of the build with the id build. For the current build, Config.Build, it first makes sure that
	// Programs.Exe exists, which need not be the case before the first launch. The programs of another build are needed to restore
	// checkpoints of that build. If Find is nil, Programs.Exe must exist, and there are no programs of other builds.
	Find func(build string) (Programs, error)
	// Cgroup is the parent of the sandboxes' cgroups, relative to the root of each hierarchy: /caisson/<instance>.
	Cgroup string
	// Platform is gVisor's platform: "systrap" or "ptrace"; "" means systrap.
	Platform string
	Build    string       // id of the build that Programs belongs to
	Log      *slog.Logger // nil discards messages
}

var (
	_ caisson.Runtime            = (*Runtime)(nil)
	_ caisson.Checkpointer       = (*Runtime)(nil)
	_ caisson.Freezer            = (*Runtime)(nil)
	_ caisson.Dialer             = (*Runtime)(nil)
	_ caisson.WriterRecorder     = (*Runtime)(nil)
	_ caisson.RandomnessReporter = (*Runtime)(nil)
	_ caisson.MemoryWaiter       = (*Runtime)(nil)
	_ caisson.EndReporter        = (*Runtime)(nil)
)

// Runtime runs sandboxes in gVisor.
type Runtime struct {
	sinkQueries
	cfg      Config
	launcher *launcher
	watch    *watcher // waits for the exits of the sandboxes' processes

	launching atomic.Int32 // number of launches in progress

	mu        sync.Mutex
	sandboxes map[caisson.ID]*sandbox // by id; guarded by mu
	closed    bool                    // Close was called; guarded by mu
}

// New returns a Runtime that manages the sandboxes which exist in cfg.Dir.
func New(cfg Config) (*Runtime, error) {
	r := &Runtime{cfg: cfg, sandboxes: map[caisson.ID]*sandbox{}}
	r.running = r.getRunning
	r.cfg.Platform = cmp.Or(cfg.Platform, "systrap")
	if cfg.Log == nil {
		r.cfg.Log = slog.New(slog.DiscardHandler)
	}
	layer, err := writeLayer(cfg.ToolsDir, r.cfg.Programs)
	if err != nil {
		return nil, err
	}
	emptyNetNS, err := newEmptyNetNS()
	if err != nil {
		return nil, fmt.Errorf("create an empty network namespace: %w", err)
	}
	// The sentries of sandboxes become orphans when their launcher exits. As a subreaper, the daemon becomes their parent and reaps
	// them, so that no zombies remain on hosts whose process 1 does not reap orphans.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	if r.watch, err = newWatcher(); err != nil {
		return nil, err
	}
	r.launcher = &launcher{
		exe: r.cfg.Programs.Exe, platform: r.cfg.Platform, programsLayer: layer, emptyNetNS: emptyNetNS, watch: r.watch, idmaps: map[[2]uint32]*os.File{},
	}
	return r, adopt(r)
}

// Close releases the resources of the Runtime in this process. Sandboxes keep running. Idempotent.
func (r *Runtime) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	for _, s := range r.sandboxes {
		s.control.close()
	}
	if len(r.sandboxes) == 0 {
		removeEmptyGroup(r.cfg.Cgroup)
	}
	return errors.Join(r.launcher.close(), r.watch.close())
}

// Capabilities implements [caisson.Runtime].
func (r *Runtime) Capabilities() caisson.Capabilities {
	return caisson.Capabilities{Name: "gvisor", Platform: r.cfg.Platform, Version: r.cfg.Build, CPU: cpuFeatures(), Memory: true}
}

// cpuFeatures returns a hash of the CPU flags in /proc/cpuinfo, or "unknown" if there are none.
func cpuFeatures() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "flags" {
			sum := sha256.Sum256([]byte(value))
			return hex.EncodeToString(sum[:8])
		}
	}
	return "unknown"
}

// sandbox is the data that the daemon has in memory of one sandbox.
type sandbox struct {
	id             caisson.ID
	dir            string                             // the runtime's subdirectory of the sandbox's directory
	state          state                              // the part that is stored in state.json
	control        *controlClient                     // calls methods of the sandbox's sentry
	freezer        freezer                            // records whether the sandbox is frozen
	exit           atomic.Pointer[caisson.ExitStatus] // exit status of the command; nil until WaitCommand has returned it
	done           chan struct{}                      // closed when the sentry has exited
	memoryBoost    memoryBoost                        // raised memory limit while files are saved
	watcherStopped <-chan struct{}                    // closed when the Runtime's watcher has stopped
}

// newSandbox returns a sandbox with the directory dir. The sandbox counts as not running until its done channel is replaced.
func newSandbox(w *watcher, id caisson.ID, dir string) *sandbox {
	s := &sandbox{id: id, dir: runtimeDir(dir), freezer: newFreezer(), done: closedChannel, watcherStopped: w.ended}
	s.control = &controlClient{socket: filepath.Join(s.dir, "bundle", protocol.StateDir, "runsc-"+string(id)+".sock")}
	return s
}

// sentryExited records that the sentry has exited.
func (s *sandbox) sentryExited() {
	s.control.close()
	close(s.done)
}

// call calls a method of gVisor's control protocol in the sentry, and decodes the reply into result, which may be nil.
func (s *sandbox) call(ctx context.Context, method string, arg, result any, files ...*os.File) error {
	return s.control.call(ctx, method, arg, result, files...)
}

// running reports whether the sentry has been started and has not exited.
func (s *sandbox) running() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// runtimeDir returns the runtime's subdirectory of a sandbox's directory.
func runtimeDir(sandboxDir string) string { return filepath.Join(sandboxDir, "runtime") }

// get returns a sandbox of this Runtime, running or not. Returns NotFound if there is none with the id.
func (r *Runtime) get(id caisson.ID) (*sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sandboxes[id]
	if !ok {
		return nil, caisson.Errorf(caisson.NotFound, "no sandbox %s in this runtime", id)
	}
	return s, nil
}

// getRunning returns a sandbox. Returns NotFound if it does not exist, and Conflict if its sentry has exited.
func (r *Runtime) getRunning(id caisson.ID) (*sandbox, error) {
	s, err := r.get(id)
	if err != nil {
		return nil, err
	}
	if !s.running() {
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s has ended", id)
	}
	return s, nil
}

// closedChannel is a channel that is closed from the start: the done channel of sandboxes that do not run.
var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done implements [caisson.Runtime].
func (r *Runtime) Done(id caisson.ID) <-chan struct{} {
	s, err := r.get(id)
	if err != nil {
		return closedChannel
	}
	return s.done
}

// Create implements [caisson.Runtime].
func (r *Runtime) Create(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec) error {
	return r.launch(ctx, id, spec, "")
}

// List implements [caisson.Runtime].
func (r *Runtime) List(context.Context) ([]caisson.RuntimeSandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []caisson.RuntimeSandbox
	for id, s := range r.sandboxes {
		list = append(list, caisson.RuntimeSandbox{ID: id, Running: s.running(), PID: s.state.Main.PID})
	}
	return list, nil
}
