package fake

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
)

// PIDs of the first processes.
const (
	initPID    = 1
	commandPID = 2
)

// baseMemory is the memory that a sandbox uses without its programs, in bytes.
const baseMemory = 4 << 20

// A sandbox is a file system and the processes that use it.
type sandbox struct {
	id         caisson.ID
	spec       caisson.RuntimeSpec                    // its *os.Files belong to the caller and are not used after Create
	programs   map[string]func(args []string) Program // programs by their path in the sandbox
	tree       *tree
	out        output      // the command's standard output; its child processes write to it, too
	errOut     output      // the command's standard error; its child processes write to it, too
	barrier    stepBarrier // while it is closed, no process begins a step; closed while the sandbox is frozen or captured
	started    time.Time
	done       chan struct{}  // closed when the sandbox is no longer running
	goroutines sync.WaitGroup // goroutines of processes, and the one that flushes the mounted directories

	mu      sync.Mutex
	running bool          // processes can be started; guarded by mu
	frozen  bool          // the sandbox is frozen; guarded by mu
	table   map[int]*Proc // running processes by PID; guarded by mu
	lastPID int           // the last PID that was assigned; guarded by mu
	memory  int64         // bytes that all running processes have allocated; guarded by mu
	command *Proc         // process of the command, also after it has exited; nil without a command; guarded by mu

	network network // the servers in the sandbox and the connections to them

	freed sync.Once // makes only the first call of free take effect
}

// fatalSignals lists the signals that terminate a process which does not catch them. Other signals are ignored.
var fatalSignals = []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL, syscall.SIGTERM}

// start adds p to the table and runs it. Returns ENOENT if the program does not exist, EAGAIN at the limit of processes, and
// ESRCH if the sandbox is not running.
func (s *sandbox) start(p *Proc) error {
	if p.program == nil {
		newProgram, ok := s.programs[p.args[0]]
		if !ok {
			return syscall.ENOENT
		}
		p.program = newProgram(p.args)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return syscall.ESRCH
	}
	if limit := s.spec.Resources.PIDs; limit > 0 && len(s.table) >= limit {
		return syscall.EAGAIN
	}
	if p.pid == 0 {
		s.lastPID++
		p.pid = s.lastPID
	}
	p.sandbox = s
	p.exited, p.caught = make(chan struct{}), map[syscall.Signal]chan syscall.Signal{}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	s.memory += p.memory
	s.table[p.pid] = p
	s.goroutines.Go(func() { s.reap(p, p.program.Run(p.ctx, p)) })
	return nil
}

// reap records the exit status of p and releases its resources.
func (s *sandbox) reap(p *Proc, code int) {
	s.mu.Lock()
	p.status = caisson.ExitStatus{Code: code & 0xff}
	if p.termination != nil {
		p.status = *p.termination
	}
	delete(s.table, p.pid)
	s.memory -= p.memory
	for _, c := range s.table {
		if c.ppid == p.pid {
			c.ppid = initPID
		}
	}
	s.mu.Unlock()
	p.cancel()
	_ = s.tree.overlays.flush() // an error is ignored, because the next flush tries again
	p.CloseStdin()
	p.out.release()
	p.errOut.release()
	s.network.closeServersOf(p)
	close(p.exited)
}

// terminate terminates p with status. The caller must hold s.mu.
func (s *sandbox) terminate(p *Proc, status caisson.ExitStatus) {
	if p.termination == nil {
		p.termination = &status
		p.cancel()
	}
}

// signal delivers sig to p. The caller must hold s.mu.
func (s *sandbox) signal(p *Proc, sig syscall.Signal) {
	if ch, ok := p.caught[sig]; ok {
		select {
		case ch <- sig:
		default: // the channel is full: a signal is pending already, and sig is dropped
		}
		return
	}
	switch {
	case p.pid == initPID && sig == syscall.SIGKILL:
		s.stop(caisson.ExitStatus{Code: -1, Unknown: true, Reason: "init was killed"})
	case p.pid != initPID && slices.Contains(fatalSignals, sig):
		s.terminate(p, caisson.ExitStatus{Code: 128 + int(sig), Signal: int(sig)})
	}
}

// stop stops the sandbox and terminates its running processes with status. The caller must hold s.mu.
func (s *sandbox) stop(status caisson.ExitStatus) {
	if !s.running {
		return
	}
	s.running, s.frozen = false, false
	for _, p := range s.table {
		s.terminate(p, status)
	}
	close(s.done)
}

// alloc adds n bytes to the memory of p, and kills p if the sandbox exceeds its limit.
func (s *sandbox) alloc(p *Proc, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.memory += n
	s.memory += n
	if limit := int64(s.spec.Resources.Memory); limit > 0 && baseMemory+s.memory > limit {
		sig := int(syscall.SIGKILL)
		s.terminate(p, caisson.ExitStatus{Code: 128 + sig, Signal: sig, Reason: "out of memory"})
	}
}

// boot starts init and, if there is one, the command.
func (s *sandbox) boot() error {
	if err := s.startInit(); err != nil {
		return err
	}
	if len(s.spec.Command) == 0 {
		return nil
	}
	p, err := s.newProc(caisson.RuntimeExec{
		Command: s.spec.Command, Env: s.spec.Env, Workdir: s.spec.Workdir, User: s.spec.User,
	})
	if err != nil {
		return err
	}
	p.origin = originCommand
	return s.startCommand(p)
}

// startInit starts the process initPID, which waits until the sandbox stops.
func (s *sandbox) startInit() error {
	asleep := Func(func(ctx context.Context, _ *Proc) int { <-ctx.Done(); return 0 })
	return s.start(&Proc{
		program: asleep, pid: initPID, args: []string{"init"}, dir: "/", origin: originCommand, out: noOutput{}, errOut: noOutput{},
	})
}

// startCommand starts p as the sandbox's command, with the sandbox's outputs.
func (s *sandbox) startCommand(p *Proc) error {
	if err := shareOutputs(p, s.out, s.errOut); err != nil {
		return err
	}
	p.pid, p.ppid = commandPID, initPID
	if err := s.start(p); err != nil {
		p.out.release()
		p.errOut.release()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.command = p
	return nil
}

// shareOutputs sets the outputs of p to new references to the destinations of out and errOut.
func shareOutputs(p *Proc, out, errOut output) (err error) {
	if p.out, err = out.share(); err != nil {
		return err
	}
	if p.errOut, err = errOut.share(); err != nil {
		p.out.release()
	}
	return err
}

// newProc returns a process that has not been started and has no outputs. Returns Invalid if the program, user or working
// directory does not exist.
func (s *sandbox) newProc(e caisson.RuntimeExec) (*Proc, error) {
	if len(e.Command) == 0 || e.Command[0] == "" {
		return nil, caisson.Invalidf("command", "is empty; name a program")
	}
	program, err := s.lookup(e.Command[0], getenv(e.Env, "PATH"))
	if err != nil {
		return nil, s.conflictIfStopping(err)
	}
	user, err := s.tree.user(e.User)
	if err != nil {
		return nil, s.conflictIfStopping(err)
	}
	dir := cmp.Or(e.Workdir, "/")
	if info, err := s.tree.stat(dir); err != nil || !info.IsDir() {
		return nil, s.conflictIfStopping(caisson.Invalidf("workdir", "%.200q is not a directory in the sandbox", dir))
	}
	args := append([]string{program}, e.Command[1:]...)
	return &Proc{args: args, env: slices.Clone(e.Env), dir: dir, user: user}, nil
}

// conflictIfStopping returns err, or Conflict if the sandbox's root directory is missing: then the sandbox is being destroyed,
// and the file that err reports as missing may have been removed for that reason.
func (s *sandbox) conflictIfStopping(err error) error {
	if _, gone := s.tree.stat("/"); gone != nil {
		return caisson.Wrap(err, caisson.Conflict, "the sandbox is stopping")
	}
	return err
}

// defaultPath is the PATH in which commands are looked up if the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookup resolves the program name in the directories of search, a value of PATH. Returns Invalid if it does not exist.
func (s *sandbox) lookup(name, search string) (string, error) {
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		candidates = nil
		for dir := range strings.SplitSeq(cmp.Or(search, defaultPath), ":") {
			candidates = append(candidates, strings.TrimSuffix(dir, "/")+"/"+name)
		}
	}
	found := false
	for _, c := range candidates {
		if _, ok := s.programs[c]; ok {
			return c, nil
		}
		_, err := s.tree.stat(c)
		found = found || err == nil
	}
	if found {
		return "", caisson.Invalidf("command", "%.200q cannot be executed", name)
	}
	return "", caisson.Invalidf("command", "%.200q was not found in the sandbox", name)
}
