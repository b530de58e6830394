package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-dev/caisson"
)

// Files of a checkpoint.
const (
	filesName  = "files.tar"   // changes to the root file system
	memoryName = "memory.json" // processes and their memory
)

// A memory is the state of a sandbox that is not in files, as stored in memoryName.
type memory struct {
	Processes []processMemory     `json:"processes"`
	NextPID   int                 `json:"nextPid"`        // despite its name, the last PID that was assigned: sandbox.lastPID
	Exit      *caisson.ExitStatus `json:"exit,omitempty"` // exit status of the command, if it has exited
}

// A processMemory is the state of one process that a checkpoint contains.
type processMemory struct {
	PID    int      `json:"pid"`    // id of the process in the sandbox
	PPID   int      `json:"ppid"`   // id of its parent; that of init if the checkpoint does not contain the parent
	Args   []string `json:"args"`   // path of the program, and its arguments
	Env    []string `json:"env"`    // environment, as KEY=value
	Dir    string   `json:"dir"`    // working directory in the sandbox
	UID    int      `json:"uid"`    // user id in the sandbox
	GID    int      `json:"gid"`    // group id in the sandbox
	Origin origin   `json:"origin"` // "command": the command or a descendant; "setsid": from an exec'd process, in a new session
	Memory []byte   `json:"memory"` // memory of the program, in serialised form
	Used   int64    `json:"used"`   // bytes of memory that the process has allocated
}

// Checkpoint implements [caisson.Checkpointer]. Returns Conflict if the program of a process that must be captured is not a
// [StatefulProgram].
func (r *Runtime) Checkpoint(ctx context.Context, id caisson.ID, dir string, keep bool) (err error) {
	s, err := r.findFor(OpCheckpoint, id)
	if err != nil {
		return err
	}
	if !s.alive() {
		return s.notRunning()
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		return caisson.Wrap(errors.Join(err, fmt.Errorf("%d files", len(files))), caisson.Invalid,
			"a checkpoint needs an empty directory")
	}
	opened, err := s.barrier.close(ctx)
	if err != nil {
		return err
	}
	if opened {
		defer func() {
			if keep || err != nil {
				s.barrier.open()
			}
		}()
	}
	s.network.endConnections()
	if err := s.capture(dir); err != nil {
		_ = os.Remove(filepath.Join(dir, memoryName))
		_ = os.Remove(filepath.Join(dir, filesName))
		return err
	}
	if !keep {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.frozen = s.running
	}
	return nil
}

// capture writes a checkpoint of s to dir. The processes of s must be stopped: the caller must have closed s.barrier.
func (s *sandbox) capture(dir string) error {
	m, err := s.captureProcesses()
	if err != nil {
		return err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, memoryName), b, 0o600); err != nil {
		return caisson.Wrap(err, caisson.Internal, "cannot write the checkpoint")
	}
	f, err := os.OpenFile(filepath.Join(dir, filesName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "cannot write the checkpoint")
	}
	err = errors.Join(s.tree.save(f), s.tree.overlays.flush())
	return caisson.Wrap(errors.Join(err, f.Close()), caisson.Internal, "cannot write the checkpoint's files")
}

// captureProcesses returns the processes that a checkpoint contains, with the memory of their programs.
func (s *sandbox) captureProcesses() (*memory, error) {
	m, keep := s.capturedProcesses()
	for i, p := range keep {
		program, ok := p.program.(StatefulProgram)
		if !ok {
			return nil, caisson.Errorf(caisson.Conflict, "process %d (%s) cannot be captured; end it first", p.pid, p.args[0])
		}
		b, err := program.Memory()
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Internal, "cannot capture process %d", p.pid)
		}
		m.Processes[i].Memory = b
	}
	return m, nil
}

// capturedProcesses returns the processes that a checkpoint contains, sorted by PID. m describes them, but does not yet contain
// the memory of their programs.
func (s *sandbox) capturedProcesses() (m *memory, keep []*Proc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m = &memory{NextPID: s.lastPID}
	for _, p := range s.table {
		if p.pid != initPID && p.origin != originExec && p.termination == nil {
			keep = append(keep, p)
		}
	}
	slices.SortFunc(keep, func(a, b *Proc) int { return a.pid - b.pid })
	for _, p := range keep {
		pm := processMemory{
			PID: p.pid, PPID: p.ppid, Args: p.args, Env: p.env, Dir: p.dir,
			UID: p.user.uid, GID: p.user.gid, Origin: p.origin, Used: p.memory,
		}
		if parent := s.table[p.ppid]; parent == nil || parent.origin == originExec {
			pm.PPID = initPID
		}
		m.Processes = append(m.Processes, pm)
	}
	if c := s.command; c != nil {
		select {
		case <-c.exited:
			m.Exit = &c.status
		default:
		}
	}
	return m, keep
}

// Restore implements [caisson.Checkpointer].
func (r *Runtime) Restore(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, dir string) error {
	if err := r.takeFault(OpRestore); err != nil {
		return err
	}
	var m memory
	b, err := os.ReadFile(filepath.Join(dir, memoryName))
	if errors.Is(err, fs.ErrNotExist) {
		return caisson.Errorf(caisson.Invalid, "the directory holds no checkpoint")
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the checkpoint is damaged")
	}
	spec.Files = filepath.Join(dir, filesName)
	return r.createSandbox(ctx, id, spec, func(s *sandbox) error { return s.resume(&m) })
}

// resume starts the processes of a checkpoint.
func (s *sandbox) resume(m *memory) error {
	if err := s.startInit(); err != nil {
		return err
	}
	s.lastPID = max(commandPID, m.NextPID)
	if m.Exit != nil {
		s.command = &Proc{exited: make(chan struct{}), status: *m.Exit}
		close(s.command.exited)
	}
	for _, pm := range m.Processes {
		if err := s.resumeProcess(&pm); err != nil {
			return caisson.Wrap(err, caisson.Invalid, "cannot restore process %d", pm.PID)
		}
	}
	return nil
}

// resumeProcess starts one process of a checkpoint.
func (s *sandbox) resumeProcess(pm *processMemory) error {
	if len(pm.Args) == 0 {
		return errors.New("it has no name")
	}
	newProgram, ok := s.programs[pm.Args[0]]
	if !ok {
		return fmt.Errorf("%s: %w", pm.Args[0], fs.ErrNotExist)
	}
	program, ok := newProgram(pm.Args).(StatefulProgram)
	if !ok {
		return fmt.Errorf("%s has no memory", pm.Args[0])
	}
	if err := program.RestoreMemory(pm.Memory); err != nil {
		return err
	}
	p := &Proc{
		program: program, pid: pm.PID, ppid: pm.PPID, args: pm.Args, env: pm.Env, dir: pm.Dir,
		user: owner{pm.UID, pm.GID}, origin: pm.Origin, memory: pm.Used, out: noOutput{}, errOut: noOutput{},
	}
	if pm.PID == commandPID {
		return s.startCommand(p)
	}
	if pm.Origin == originCommand {
		if err := shareOutputs(p, s.out, s.errOut); err != nil {
			return err
		}
	}
	return s.start(p)
}

// SaveFiles implements [caisson.Checkpointer].
func (r *Runtime) SaveFiles(ctx context.Context, id caisson.ID, w *os.File) error {
	s, err := r.findFor(OpSaveFiles, id)
	if err != nil {
		return err
	}
	if !s.alive() {
		return s.notRunning()
	}
	opened, err := s.barrier.close(ctx)
	if err != nil {
		return err
	}
	if opened {
		defer s.barrier.open()
	}
	return caisson.Wrap(errors.Join(s.tree.save(w), s.tree.overlays.flush()), caisson.Internal, "cannot save the files of sandbox %s", id)
}
