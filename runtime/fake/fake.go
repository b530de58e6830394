// Package fake is a caisson.Runtime in memory: sandboxes are directories and goroutines, programs are Go functions. It
// keeps the whole contract, checkpoints included, and isolates nothing: it is for tests.
//
// Nothing here is a mock. What a test wants to go wrong, it says with [Runtime.FailNext] and [Runtime.Kill]; what a
// restarted daemon would find, it sees with [Runtime.Reopen].
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

// Config says where a fake keeps its records and which programs its sandboxes have.
type Config struct {
	// Dir is a directory for the records of what exists; required. A fake that is made on the records of a process that
	// has ended finds remains, as after a reboot.
	Dir string
	// Programs are found in every sandbox at the absolute paths that are the keys. The function makes the program of one
	// process, from its arguments, the path first.
	Programs map[string]func(args []string) Program
}

// A Runtime is a [caisson.Runtime], a [caisson.Checkpointer] and a [caisson.Freezer]. Several may be views of the same
// sandboxes: see [Runtime.Reopen].
type Runtime struct {
	*host
}

var (
	_ caisson.Runtime      = (*Runtime)(nil)
	_ caisson.Checkpointer = (*Runtime)(nil)
	_ caisson.Freezer      = (*Runtime)(nil)
)

// A host has what survives a restart of the daemon.
type host struct {
	dir      string
	programs map[string]func(args []string) Program

	mu        sync.Mutex
	sandboxes map[caisson.ID]*sandbox // nil while one is being made; guarded by mu
	remains   map[caisson.ID]string   // directories of sandboxes that do not run; guarded by mu
	faults    map[Op][]error          // guarded by mu
}

// New returns a fake.
func New(cfg Config) (*Runtime, error) {
	if cfg.Dir == "" {
		return nil, caisson.Invalidf("dir", "is required")
	}
	h := &host{
		dir: cfg.Dir, programs: maps.Clone(cfg.Programs),
		sandboxes: map[caisson.ID]*sandbox{}, remains: map[caisson.ID]string{}, faults: map[Op][]error{},
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot make the fake runtime's directory")
	}
	if err := h.loadRecords(); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot read the fake runtime's records")
	}
	return &Runtime{h}, nil
}

// Reopen returns what a restarted daemon would have: another Runtime with the same sandboxes, which went on meanwhile.
func (r *Runtime) Reopen() *Runtime { return &Runtime{r.host} }

// Capabilities implements [caisson.Runtime].
func (r *Runtime) Capabilities() caisson.Capabilities {
	return caisson.Capabilities{Name: "fake", Version: "1", CPU: "fake", Memory: true}
}

// List implements [caisson.Runtime]. No sandbox has a host process.
func (r *Runtime) List(context.Context) ([]caisson.RuntimeSandbox, error) {
	if err := r.fault(OpList); err != nil {
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

// Kill makes a sandbox die by itself, as if its main process had crashed. It remains to be destroyed.
func (r *Runtime) Kill(id caisson.ID) error {
	s, err := r.find(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.die(caisson.ExitStatus{Code: -1, Unknown: true, Reason: "the sandbox died"})
	s.mu.Unlock()
	s.procs.Wait()
	return nil
}

// find returns the sandbox with the id, running or not.
func (h *host) find(id caisson.ID) (*sandbox, error) {
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

// reserve takes the id for a sandbox that is being made, and records where its remains would be.
func (h *host) reserve(id caisson.ID, dir string) error {
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

// forget takes back what reserve did.
func (h *host) forget(id caisson.ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := os.Remove(h.recordFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(h.sandboxes, id)
	delete(h.remains, id)
	return nil
}

// A record is what a file in Config.Dir says of a sandbox.
type record struct {
	Dir string `json:"dir"`
}

const recordSuffix = ".json"

func (h *host) recordFile(id caisson.ID) string { return filepath.Join(h.dir, string(id)+recordSuffix) }

func (h *host) loadRecords() error {
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
