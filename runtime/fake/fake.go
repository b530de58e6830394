// Package fake implements caisson.Runtime within the process, for tests: sandboxes are directories and goroutines, programs
// are Go functions. It implements the complete interface, including checkpoints, but no isolation.
//
// It is not a mock. Tests inject faults with [Runtime.FailNext] and [Runtime.Kill], and simulate a restart of the daemon with
// [Runtime.Reopen].
package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
)

// Config configures a fake runtime: the directory for its records and the programs of its sandboxes.
type Config struct {
	// Dir is the directory for the records of existing sandboxes; required. If it contains records of a process that has
	// exited, the sandboxes are listed as not running, as after a reboot.
	Dir string
	// Programs maps absolute paths in every sandbox to programs. The function returns the program of one process for its
	// arguments, of which the first is the path.
	Programs map[string]func(args []string) Program
}

// A Runtime is a [caisson.Runtime], a [caisson.Checkpointer] and a [caisson.Freezer]. Several Runtimes may share the same
// sandboxes, see [Runtime.Reopen].
type Runtime struct {
	*sharedState
}

var (
	_ caisson.Runtime      = (*Runtime)(nil)
	_ caisson.Checkpointer = (*Runtime)(nil)
	_ caisson.Freezer      = (*Runtime)(nil)
	_ caisson.Dialer       = (*Runtime)(nil)
)

// A sharedState has the state that the Runtimes before and after a simulated restart of the daemon share.
type sharedState struct {
	dir      string                                 // directory with the records of sandboxes
	programs map[string]func(args []string) Program // programs by their path in a sandbox

	mu        sync.Mutex
	sandboxes map[caisson.ID]*sandbox // by id; an element is nil while the sandbox is being created; guarded by mu
	remains   map[caisson.ID]string   // host directories of sandboxes of an earlier process, which do not run; guarded by mu
	faults    map[Op][]error          // errors that the next calls of an operation return, see FailNext; guarded by mu
}

// New returns a fake runtime. Returns Invalid if cfg.Dir is empty.
func New(cfg Config) (*Runtime, error) {
	if cfg.Dir == "" {
		return nil, caisson.Invalidf("dir", "is required")
	}
	h := &sharedState{
		dir: cfg.Dir, programs: maps.Clone(cfg.Programs),
		sandboxes: map[caisson.ID]*sandbox{}, remains: map[caisson.ID]string{}, faults: map[Op][]error{},
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot create the fake runtime's directory")
	}
	if err := h.loadRecords(); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot read the fake runtime's records")
	}
	return &Runtime{h}, nil
}

// Reopen returns another Runtime with the same sandboxes, which keep running, as after a restart of the daemon.
func (r *Runtime) Reopen() *Runtime { return &Runtime{r.sharedState} }

// Capabilities implements [caisson.Runtime].
func (r *Runtime) Capabilities() caisson.Capabilities {
	return caisson.Capabilities{Name: "fake", Version: "1", CPU: "fake", Memory: true}
}

// List implements [caisson.Runtime]. No sandbox has a host process.
func (r *Runtime) List(context.Context) ([]caisson.RuntimeSandbox, error) {
	if err := r.takeFault(OpList); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []caisson.RuntimeSandbox
	for id, s := range r.sandboxes {
		out = append(out, caisson.RuntimeSandbox{ID: id, Running: s != nil && s.alive()})
	}
	for id := range r.remains {
		out = append(out, caisson.RuntimeSandbox{ID: id})
	}
	slices.SortFunc(out, func(a, b caisson.RuntimeSandbox) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out, nil
}

// Kill stops a sandbox as if its sentry had crashed. The sandbox must still be destroyed.
func (r *Runtime) Kill(id caisson.ID) error {
	s, err := r.find(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.stop(caisson.ExitStatus{Code: -1, Unknown: true, Reason: "the sandbox died"})
	s.mu.Unlock()
	s.goroutines.Wait()
	return nil
}

// find returns the sandbox with the id, running or not. Returns Conflict if only its record exists, else NotFound.
func (h *sharedState) find(id caisson.ID) (*sandbox, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sandboxes[id]; s != nil {
		return s, nil
	}
	if _, ok := h.remains[id]; ok {
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s is not running", id)
	}
	return nil, caisson.Errorf(caisson.NotFound, "no sandbox %.40s in this runtime", id)
}

// findFor returns the sandbox with the id, for a call of op. It returns the next injected error of op if there is one, and
// otherwise the errors of find.
func (h *sharedState) findFor(op Op, id caisson.ID) (*sandbox, error) {
	if err := h.takeFault(op); err != nil {
		return nil, err
	}
	return h.find(id)
}

// reserve reserves the id for a sandbox that is being created, and writes a record of its directory. Returns Conflict if the
// id is in use.
func (h *sharedState) reserve(id caisson.ID, dir string) error {
	if _, err := caisson.ParseID(caisson.SandboxPrefix, string(id)); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, exists := h.sandboxes[id]
	if _, remains := h.remains[id]; exists || remains {
		return caisson.Errorf(caisson.Conflict, "sandbox %s exists already", id)
	}
	b, err := json.Marshal(record{Dir: dir})
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.recordFile(id), b, 0o600); err != nil {
		return caisson.Wrap(err, caisson.Internal, "cannot record sandbox %s", id)
	}
	h.sandboxes[id] = nil
	return nil
}

// forget removes the sandbox with the id from h, and its record.
func (h *sharedState) forget(id caisson.ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := os.Remove(h.recordFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(h.sandboxes, id)
	delete(h.remains, id)
	return nil
}

// A record is the JSON content of the file <id>.json that is kept for each existing sandbox.
type record struct {
	Dir string `json:"dir"` // the sandbox's directory on the host
}

// recordSuffix follows the sandbox's id in the name of the file that stores the host directory of an existing sandbox.
const recordSuffix = ".json"

// recordFile returns the path of the file that stores the host directory of a sandbox.
func (h *sharedState) recordFile(id caisson.ID) string {
	return filepath.Join(h.dir, string(id)+recordSuffix)
}

// loadRecords adds the sandboxes of earlier processes to h.remains.
func (h *sharedState) loadRecords() error {
	files, err := os.ReadDir(h.dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), recordSuffix)
		id, err := caisson.ParseID(caisson.SandboxPrefix, name)
		if !ok || err != nil {
			continue
		}
		b, err := os.ReadFile(h.recordFile(id))
		if err != nil {
			return err
		}
		var rec record
		if err := json.Unmarshal(b, &rec); err != nil {
			return err
		}
		h.remains[id] = rec.Dir
	}
	return nil
}
