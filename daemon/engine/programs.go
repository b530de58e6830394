package engine

import (
	"bytes"
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

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/embedded"
	"github.com/caisson-dev/caisson/runtime/gvisor"
)

// selfExe is the path of this binary, which stays valid if the file is renamed or replaced.
const selfExe = "/proc/self/exe"

// protocol is the version of the messages between the daemon and the programs of a sandbox: the requests to launchers and to gVisor's main
// process, and the protocols of guestd, of services and terminals, and of the agents' driver. It is increased by incompatible changes.
// minProtocol is the oldest version that this daemon supports. TestProtocol records the types and files that define the messages.
const (
	protocol    = 1
	minProtocol = 1
)

// programs are the embedded programs that run sandboxes, unpacked below the data directory, of this build and of earlier ones: the
// sandboxes and snapshots of those can go on as long as their programs are kept. It is safe for concurrent use.
//
// Each set has a directory, whose name is the set's id, a hash of the contents and of the protocol. Files are verified before the first
// use by each daemon.
type programs struct {
	dir     string
	current string // id of the set of this build
	set     gvisor.Programs
	worker  string // path of the program for jobs, which no sandbox depends on

	mu     sync.Mutex
	opened map[string]*gvisor.Programs // sets of other builds that were looked up; nil: cannot be used; guarded by mu
}

// manifestFile is the file in the directory of a set that describes it.
const manifestFile = "manifest.json"

// A manifest describes a set of programs.
type manifest struct {
	Protocol int               `json:"protocol"`
	SHA256   map[string]string `json:"sha256"` // by name of the file, in hexadecimal
}

// id returns the id of the set.
func (m *manifest) id() string {
	sum := sha256.New()
	fmt.Fprintf(sum, "protocol %d\n", m.Protocol)
	for _, name := range slices.Sorted(maps.Keys(m.SHA256)) {
		fmt.Fprintf(sum, "%s %s\n", name, m.SHA256[name])
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// The names of the programs of a set.
const (
	sentryName = "sentry"
	guestdName = "guestd"
	agentName  = "agent"
	workerName = "worker" // not part of a set
)

// openPrograms unpacks the programs of this build into dir. A build that embeds no programs, as tests are, does without those of other
// builds, too: its own binary takes all roles.
func openPrograms(dir string) (*programs, error) {
	p := &programs{dir: dir, worker: selfExe, set: gvisor.Programs{Exe: selfExe, Guestd: selfExe}, opened: map[string]*gvisor.Programs{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	m, contents := manifest{Protocol: protocol, SHA256: map[string]string{}}, map[string]*io.SectionReader{}
	for name, open := range map[string]func() (*io.SectionReader, bool){
		workerName: embedded.Worker, sentryName: embedded.Sentry, guestdName: embedded.Guestd, agentName: embedded.Agent,
	} {
		r, ok := open()
		if !ok {
			continue
		}
		sum := embedded.Sum(name)
		if sum == "" {
			var err error
			if sum, err = hashOf(r); err != nil {
				return nil, err
			}
		}
		contents[name], m.SHA256[name] = r, sum
	}
	var unpacked errgroup.Group
	if r := contents[workerName]; r != nil {
		p.worker = filepath.Join(dir, "worker-"+m.SHA256[workerName][:16])
		unpacked.Go(func() error { return unpack(p.worker, r) })
		delete(contents, workerName)
		delete(m.SHA256, workerName)
	}
	if contents[sentryName] == nil || contents[guestdName] == nil {
		err := unpacked.Wait()
		if err == nil {
			p.current, err = buildID()
		}
		return p, err
	}
	p.current = m.id()
	at := filepath.Join(dir, p.current)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, err
	}
	for name, r := range contents {
		unpacked.Go(func() error { return unpack(filepath.Join(at, name), r) })
	}
	p.set = setIn(at, &m)
	return p, errors.Join(unpacked.Wait(), durable.WriteJSON(filepath.Join(at, manifestFile), m), durable.Sync(dir))
}

// setIn returns the set of programs in a directory.
func setIn(dir string, m *manifest) gvisor.Programs {
	set := gvisor.Programs{Exe: filepath.Join(dir, sentryName), Guestd: filepath.Join(dir, guestdName)}
	if m.SHA256[agentName] != "" {
		set.Coder = filepath.Join(dir, agentName)
	}
	return set
}

// Find returns the programs of a set that this daemon can work with. Returns NotFound if there is none, or if its files are not what they
// were.
func (p *programs) Find(id string) (gvisor.Programs, error) {
	if id == p.current {
		return p.set, nil
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

// Usable reports whether Find returns the programs of a set.
func (p *programs) Usable(id string) bool {
	_, err := p.Find(id)
	return err == nil
}

// open reads and verifies a set of another build. It returns nil if it cannot be used.
func (p *programs) open(id string) *gvisor.Programs {
	if b, err := hex.DecodeString(id); err != nil || len(b) != 8 {
		return nil
	}
	dir := filepath.Join(p.dir, id)
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	var m manifest
	if err != nil || json.Unmarshal(data, &m) != nil || m.id() != id || m.Protocol < minProtocol || m.Protocol > protocol {
		return nil
	}
	for name, sum := range m.SHA256 {
		if name != filepath.Base(name) || !hasHash(filepath.Join(dir, name), sum) {
			return nil
		}
	}
	set := setIn(dir, &m)
	return &set
}

// Collect removes the programs of other builds that are not in used, by id.
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

// hashOf returns the SHA-256 hash of a program in hexadecimal.
func hashOf(r *io.SectionReader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(r, 0, r.Size())); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// hasHash reports whether a regular file has a hash.
func hasHash(path, sum string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	got, err := hashOf(io.NewSectionReader(f, 0, info.Size()))
	return err == nil && got == sum
}

// unpack writes a program to path, unless the file has its content already.
func unpack(path string, r *io.SectionReader) error {
	if hasContent(path, r) {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "tmp-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = io.Copy(tmp, io.NewSectionReader(r, 0, r.Size()))
	// Processes of unprivileged users execute it, through /proc/self/exe.
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// hasContent reports whether a regular file has the content of r.
func hasContent(path string, r *io.SectionReader) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() != r.Size() {
		return false
	}
	ours, theirs := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); at < r.Size(); at += int64(len(ours)) {
		n, err := r.ReadAt(ours, at)
		if err != nil && err != io.EOF {
			return false
		}
		if _, err := io.ReadFull(f, theirs[:n]); err != nil || !bytes.Equal(ours[:n], theirs[:n]) {
			return false
		}
	}
	return true
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

// programs returns which programs of sandboxes the cores work with. Drivers without programs have those of this binary.
func (e *Engine) programs() caisson.Programs {
	if e.on.Programs == nil {
		return caisson.Programs{Current: e.process.build}
	}
	return caisson.Programs{Current: e.on.Programs.current, Older: e.on.Programs.Usable}
}

// collectPrograms removes the programs of earlier builds that no sandbox and no snapshot depends on.
func (e *Engine) collectPrograms(ctx context.Context) {
	if e.on.Programs == nil {
		return
	}
	used, err := e.sandboxes.ProgramsInUse(ctx)
	if err == nil {
		err = e.on.Programs.Collect(used)
	}
	if err != nil {
		e.cfg.Log.WarnContext(ctx, "programs of earlier builds could not be removed", "err", err)
	}
}
