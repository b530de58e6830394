package engine

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/embedded"
	"github.com/caisson-dev/caisson/internal/embedded/packed"
	"github.com/caisson-dev/caisson/runtime/gvisor"
)

// selfExe is the path of this binary, which stays valid if the file is renamed or replaced.
const selfExe = "/proc/self/exe"

// protocol is the version of the messages between the daemon and the programs of a sandbox: the requests to launchers and to
// gVisor's main process, and the protocols of guestd, of services and terminals, and of the agents' driver. It is increased by
// incompatible changes. minProtocol is the oldest version that this daemon supports. TestProtocol records the types and files
// that define the messages.
const (
	protocol    = 1
	minProtocol = 1
)

// programs manages the programs that run sandboxes. The programs are embedded in the binary and unpacked below the data
// directory. Programs of earlier builds are kept as long as sandboxes or snapshots depend on them. It is safe for concurrent use.
//
// The programs of one build are a set. Each set has a directory, whose name is the id of the set: a hash of the files' contents
// and of the protocol's version. Each daemon verifies the files of a set before it first uses them.
type programs struct {
	dir     string          // directory that contains the directories of sets of programs
	current string          // id of the set of programs of this build
	set     gvisor.Programs // paths of the programs in the set of this build
	worker  string          // path of the program for worker jobs; it is in no set, because no sandbox depends on it
	sentry  lateProgram     // gVisor's kernel of this build

	mu     sync.Mutex
	opened map[string]*gvisor.Programs // sets of other builds by id; nil for unusable ones; guarded by mu
}

// manifestFile is the name of the file with the manifest in the directory of a set of programs.
const manifestFile = "manifest.json"

// A manifest describes a set of programs.
type manifest struct {
	Protocol int               `json:"protocol"` // version of the messages between the daemon and these programs
	SHA256   map[string]string `json:"sha256"`   // hashes of the files in hexadecimal, by file name
}

// id returns the id of the set of programs.
func (m *manifest) id() string {
	sum := sha256.New()
	fmt.Fprintf(sum, "protocol %d\n", m.Protocol)
	for _, name := range slices.Sorted(maps.Keys(m.SHA256)) {
		fmt.Fprintf(sum, "%s %s\n", name, m.SHA256[name])
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// A lateProgram is a program that is unpacked, or verified if it is unpacked already, only after the daemon has begun to serve
// requests: it is large, and only needed to start a sandbox.
type lateProgram struct {
	mu      sync.Mutex
	path    string          // path of the unpacked program
	program *packed.Program // program to unpack to path; nil after that is done; guarded by mu
}

// unpack writes the program to its path, unless an earlier call has succeeded.
func (l *lateProgram) unpack() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.program == nil {
		return nil
	}
	if err := unpack(l.path, *l.program); err != nil {
		return fmt.Errorf("the sandbox's program could not be unpacked: %w", err)
	}
	l.program = nil
	return nil
}

// openPrograms unpacks the programs of this build into dir, except the sentry, which is a [lateProgram]. Returns Unavailable if
// the build embeds none.
func openPrograms(dir string) (*programs, error) {
	p := &programs{dir: dir, opened: map[string]*gvisor.Programs{}}
	m, contents := manifest{Protocol: protocol, SHA256: map[string]string{}}, map[string]packed.Program{}
	for _, name := range []string{embedded.Sentry, embedded.Guestd, embedded.Agent, embedded.Worker} {
		program, ok := embedded.Find(name)
		if !ok {
			return nil, caisson.Errorf(caisson.Unavailable, "this build of caisson carries no %s and cannot start sandboxes; build it with make", name)
		}
		contents[name] = program
		if name != embedded.Worker { // the program for worker jobs is not part of the set of programs
			m.SHA256[name] = program.SHA256
		}
	}
	p.current = m.id()
	at := filepath.Join(dir, p.current)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(at, 0o755)); err != nil {
		return nil, err
	}
	p.set, p.worker = programPaths(at, &m), filepath.Join(dir, "worker-"+contents[embedded.Worker].SHA256[:16])
	p.sentry.path, p.sentry.program = p.set.Exe, new(contents[embedded.Sentry])
	var unpacked errgroup.Group
	for path, name := range map[string]string{p.worker: embedded.Worker, p.set.Guestd: embedded.Guestd, p.set.Coder: embedded.Agent} {
		unpacked.Go(func() error { return unpack(path, contents[name]) })
	}
	unpacked.Go(func() error {
		if _, ok := readManifest(at); ok {
			return nil
		}
		return errors.Join(durable.WriteJSON(filepath.Join(at, manifestFile), m), durable.Sync(dir))
	})
	return p, unpacked.Wait()
}

// readManifest reads the manifest of the set of programs in dir. ok is false if there is no valid manifest, or if the id of the
// set is not the name of dir.
func readManifest(dir string) (m manifest, ok bool) {
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	ok = err == nil && json.Unmarshal(data, &m) == nil && m.id() == filepath.Base(dir)
	return m, ok
}

// programPaths returns the paths of the programs in dir, the directory of a set of programs with the manifest m.
func programPaths(dir string, m *manifest) gvisor.Programs {
	set := gvisor.Programs{Exe: filepath.Join(dir, embedded.Sentry), Guestd: filepath.Join(dir, embedded.Guestd)}
	if m.SHA256[embedded.Agent] != "" {
		set.Coder = filepath.Join(dir, embedded.Agent)
	}
	return set
}

// Find returns the paths of a set of programs. It unpacks the programs of this build first, if necessary. Returns NotFound if
// there is no such set, if this daemon does not support the protocol of the set, or if files of the set have changed.
func (p *programs) Find(id string) (gvisor.Programs, error) {
	if id == p.current {
		return p.set, p.sentry.unpack()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	set, known := p.opened[id]
	if !known {
		set = p.open(id)
		p.opened[id] = set
	}
	if set == nil {
		return gvisor.Programs{}, caisson.Errorf(caisson.NotFound, "the programs that it was started with are missing or have changed; stop and start it")
	}
	return *set, nil
}

// Usable reports whether this daemon can use a set of programs, that is, whether Find succeeds. It unpacks nothing.
func (p *programs) Usable(id string) bool {
	if id == p.current {
		return true
	}
	_, err := p.Find(id)
	return err == nil
}

// Newer reports whether the protocol of a set of programs is newer than that of this build.
func (p *programs) Newer(id string) bool {
	m, ok := readManifest(filepath.Join(p.dir, filepath.Base(id)))
	return ok && m.Protocol > protocol
}

// open reads and verifies the set of programs of another build. It returns nil if the set cannot be used.
func (p *programs) open(id string) *gvisor.Programs {
	if b, err := hex.DecodeString(id); err != nil || len(b) != 8 {
		return nil
	}
	dir := filepath.Join(p.dir, id)
	m, ok := readManifest(dir)
	if !ok || m.Protocol < minProtocol || m.Protocol > protocol {
		return nil
	}
	for name, sum := range m.SHA256 {
		if name != filepath.Base(name) || !hasHash(filepath.Join(dir, name), sum) {
			return nil
		}
	}
	set := programPaths(dir, &m)
	return &set
}

// Collect removes the sets of programs of other builds whose ids are not in used, and the worker programs of other builds.
func (p *programs) Collect(used map[string]bool) error {
	list, err := os.ReadDir(p.dir)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, e := range list {
		if name := e.Name(); name != p.current && name != filepath.Base(p.worker) && !used[name] {
			delete(p.opened, name)
			errs = append(errs, os.RemoveAll(filepath.Join(p.dir, name)))
		}
	}
	return errors.Join(errs...)
}

// hasHash reports whether a regular file has a SHA-256 hash, given in hexadecimal.
func hasHash(path, sum string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return false
	}
	got := sha256.New()
	_, err = io.Copy(got, f)
	return err == nil && hex.EncodeToString(got.Sum(nil)) == sum
}

// unpack writes a program to the file at path, unless the file has its content already.
func unpack(path string, program packed.Program) error {
	if hasHash(path, program.SHA256) {
		return nil
	}
	// A process that another goroutine forks meanwhile must not inherit the file open for writing: as long as such a descriptor
	// exists, execve of the file fails with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return durable.Write(path, func(f *os.File) error {
		// Processes of unprivileged users execute the file, through /proc/self/exe.
		return errors.Join(program.Unpack(f), f.Chmod(0o755))
	})
}

// buildID returns an id of this binary: a hash of the build id that Go's linker derives from its content.
func buildID() (string, error) {
	f, err := elf.Open(selfExe)
	if err != nil {
		return "", err
	}
	defer f.Close()
	note := f.Section(".note.go.buildid")
	if note == nil {
		return "", errors.New("this binary has no build id; build it with the Go tool")
	}
	data, err := note.Data()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}

// programs returns the sets of programs that the cores can use. If the drivers have no programs, the only set has the id of this
// build.
func (e *Engine) programs() caisson.Programs {
	if e.drivers.Programs == nil {
		return caisson.Programs{Current: e.process.build}
	}
	return caisson.Programs{Current: e.drivers.Programs.current, Older: e.drivers.Programs.Usable, Newer: e.drivers.Programs.Newer}
}

// unpackPrograms unpacks the sentry before the first sandbox needs it. An error is logged.
func (e *Engine) unpackPrograms(ctx context.Context) {
	if e.drivers.Programs == nil {
		return
	}
	if err := e.drivers.Programs.sentry.unpack(); err != nil {
		e.cfg.Log.ErrorContext(ctx, "no sandbox can be started", "err", err)
	}
}

// collectPrograms removes the programs of earlier builds that no sandbox and no snapshot depends on.
func (e *Engine) collectPrograms(ctx context.Context) {
	if e.drivers.Programs == nil {
		return
	}
	used, err := e.sandboxes.ProgramsInUse(ctx)
	if err == nil {
		err = e.drivers.Programs.Collect(used)
	}
	if err != nil {
		e.cfg.Log.WarnContext(ctx, "programs of earlier builds could not be removed", "err", err)
	}
}
