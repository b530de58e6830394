package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Run starts the job, waits for its end and decodes its result into reply, a pointer. The job is killed when ctx or its
// time limit ends. Errors are the job's own, with a kind; Exhausted if a limit ended it; Internal if it broke down or
// answered nonsense, and then nothing in reply may be used.
func (r *Runner) Run(ctx context.Context, req Request, reply any) error {
	args, err := json.Marshal(req.Args)
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "worker: arguments of %s", req.Job)
	}
	if req.Network && req.Root != nil {
		return caisson.Errorf(caisson.Internal, "worker: %s asks for a network and a directory", req.Job)
	}
	if err := req.checkPrograms(); err != nil {
		return err
	}
	c := call{Job: req.Job, Args: args, Files: len(req.Files), Input: req.Input != nil, Root: req.Root != nil,
		Network: req.Network, Limits: req.Limits.withDefaults()}
	timed, cancel := context.WithTimeout(ctx, c.Limits.Time)
	defer cancel()
	defer runtime.KeepAlive(r) // its program is known by number

	p := &process{log: r.log.With("job", req.Job)}
	defer p.close()
	if err := p.prepare(timed, r, req, &c); err != nil {
		return caisson.Wrap(err, caisson.Internal, "cannot prepare a worker for %s", req.Job)
	}
	err = p.run(c, req.Progress, reply)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case timed.Err() != nil:
		return caisson.Errorf(caisson.Exhausted, "%s took longer than %v", req.Job, c.Limits.Time)
	}
	return err
}

// process is one job's process and what the parent holds for it.
type process struct {
	cmd    *exec.Cmd
	log    *slog.Logger
	stderr head
	mine   []*os.File // the parent's ends, and what must stay open until the end
	theirs []*os.File // the job's ends, closed here once it has started
	lent   []*os.File // mounts of root's to be idmapped for the job

	request *os.File
	replies *os.File
	feed    func() // copies Request.Input, or nil
	feeding sync.WaitGroup
}

func (p *process) close() {
	for _, f := range append(p.mine, p.theirs...) {
		f.Close()
	}
	p.feeding.Wait()
}

func (p *process) prepare(ctx context.Context, r *Runner, req Request, c *call) error {
	stdin, request, err := p.pipe()
	if err != nil {
		return err
	}
	replies, stdout, err := p.pipe()
	if err != nil {
		return err
	}
	p.mine = append(p.mine, request, replies)
	p.theirs = append(p.theirs, stdin, stdout)
	p.request, p.replies = request, replies

	cmd := exec.CommandContext(ctx, r.exe)
	cmd.Args = []string{argv0}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &p.stderr
	cmd.WaitDelay = 5 * time.Second
	p.cmd = cmd
	if err := p.give(req); err != nil {
		return err
	}
	if err := p.input(req.Input); err != nil {
		return err
	}
	if req.Network {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			// All jobs with network are the same user; they cannot signal whom they have no pid for.
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
			Credential: &syscall.Credential{Uid: r.workUID, Gid: r.workUID},
			Pdeathsig:  syscall.SIGKILL,
			Setsid:     true,
		}
		return nil
	}
	return p.seal(r, req, c)
}

// seal gives a job without network its namespaces and its root directory.
func (p *process) seal(r *Runner, req Request, c *call) error {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(r.uidBase), Size: caisson.UIDRange}}
	gids := ids
	if req.Root != nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(req.Root.Fd()), &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		switch {
		case req.Access == Populate:
			c.Keep = []uint{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID}
		case req.Access == ReadGuest && st.Uid < caisson.UIDRange:
			return errors.New("the directory belongs to a user of the host and to no guest")
		case req.Access == ReadGuest:
			ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(st.Uid), Size: caisson.UIDRange}}
			gids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(st.Gid), Size: caisson.UIDRange}}
			c.Keep = []uint{unix.CAP_DAC_READ_SEARCH}
		case st.Uid == 0 && req.Programs:
			ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(r.uidBase), Size: 1}} // see lend
			gids = ids
		case st.Uid == 0 && req.Access == ReadAsOwner:
			// Only root can have put this here, and it is shown read-only: read all of it, whoever the files belong to.
			ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1<<32 - 1}}
			gids = ids
			c.Keep = []uint{unix.CAP_DAC_READ_SEARCH}
		default:
			ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(st.Uid), Size: 1}}
			gids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(st.Gid), Size: 1}}
		}
		root, err := detach(req.Root, kept(req.Access != Populate && req.Access != WriteAsOwner))
		if err != nil {
			return err
		}
		p.mine = append(p.mine, root)
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, root)
		if req.Programs && st.Uid == 0 {
			p.lent = append(p.lent, root)
		}
	}
	if req.Programs {
		if err := p.furnish(req, c); err != nil {
			return err
		}
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUTS,
		UidMappings:                ids,
		GidMappings:                gids,
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0},
		Pdeathsig:                  syscall.SIGKILL,
		Setsid:                     true,
	}
	return nil
}

// give lists the descriptors of the request for the job. From a plain descriptor of a directory, ".." leads to all that its
// user may see.
func (p *process) give(req Request) error {
	for _, f := range req.Files {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || req.Network {
			p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, f)
			continue
		}
		mount, err := detach(f, kept(false))
		if err != nil {
			return err
		}
		p.mine = append(p.mine, mount) // the mount lasts as long as this descriptor
		fd, err := unix.Openat(int(mount.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		dir := os.NewFile(uintptr(fd), f.Name())
		p.theirs = append(p.theirs, dir)
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, dir)
	}
	return nil
}

// kept are the attributes of what jobs keep files in: nothing of it is ever executed.
func kept(readOnly bool) (attr uint64) {
	attr = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if readOnly {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	return attr
}

// detach returns a mount of dir alone, in no namespace yet, that the job can attach; dir may be a file, too.
func detach(dir *os.File, attrs uint64) (*os.File, error) {
	defer runtime.KeepAlive(dir)
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	f := os.NewFile(uintptr(fd), "root")
	attr := unix.MountAttr{Attr_set: attrs}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		f.Close()
		return nil, os.NewSyscallError("mount_setattr", err)
	}
	return f, nil
}

func (p *process) pipe() (r, w *os.File, err error) {
	r, w, err = os.Pipe()
	if err != nil {
		return nil, nil, os.NewSyscallError("pipe", err)
	}
	return r, w, nil
}

// input gives the job a descriptor to read in from.
func (p *process) input(in io.Reader) error {
	switch in := in.(type) {
	case nil:
		return nil
	case *os.File:
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, in)
		return nil
	}
	r, w, err := p.pipe()
	if err != nil {
		return err
	}
	p.theirs = append(p.theirs, r)
	p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, r)
	p.mine = append(p.mine, w)
	p.feed = func() {
		defer p.feeding.Done()
		// A failed read shows as a short stream, which the job reports; a failed write means that it has ended.
		io.Copy(w, in)
		w.Close()
	}
	return nil
}

// run starts the job and returns what it answered.
func (p *process) run(c call, progress func(json.RawMessage), reply any) error {
	line, err := json.Marshal(c)
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "worker: request of %s", c.Job)
	}
	// The kernel sends a job its death signal when the thread that forked it ends, so this goroutine keeps the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		return caisson.Wrap(err, caisson.Internal, "cannot start a worker for %s", c.Job)
	}
	for _, f := range p.theirs {
		f.Close()
	}
	p.theirs = nil
	if p.feed != nil {
		p.feeding.Add(1)
		go p.feed()
	}
	if c.Programs != nil {
		if err := p.settle(); err != nil {
			p.cmd.Process.Kill()
			p.cmd.Wait()
			return caisson.Wrap(err, caisson.KindOf(err), "cannot prepare a worker for %s: %s", c.Job, caisson.MessageOf(err))
		}
	}
	if _, err = p.request.Write(append(line, '\n')); err == nil {
		err = readFrames(p.replies, progress, reply)
	}
	if e, ok := errors.AsType[*caisson.Error](err); err == nil || ok {
		// It has said all it has to say. Descriptors it shares with others close only when it is gone.
		p.request.Close()
		p.cmd.Process.Kill()
		p.cmd.Wait()
		if ok {
			return e
		}
		return nil
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.EPIPE) {
		p.cmd.Process.Kill()
	}
	return p.broken(c, err, p.cmd.Wait())
}

// broken explains a job that ended without an answer.
func (p *process) broken(c call, cause, exit error) error {
	said := p.stderr.String()
	p.log.Warn("a worker broke down", "cause", cause, "exit", exit, "stderr", said)
	if e, ok := errors.AsType[*exec.ExitError](exit); ok {
		switch {
		case e.UserTime()+e.SystemTime() >= c.Limits.CPU/2: // of the two clocks of the kernel the one asked here counts ticks, and misses some under load
			return caisson.Errorf(caisson.Exhausted, "%s used more than %v of processor time", c.Job, c.Limits.CPU)
		case strings.Contains(said, "out of memory") || strings.Contains(said, "cannot allocate memory"):
			return caisson.Errorf(caisson.Exhausted, "%s needed more than %v of memory", c.Job, caisson.Size(c.Limits.Memory))
		case strings.Contains(said, "failed to create new OS thread"):
			return caisson.Errorf(caisson.Exhausted, "%s started more than %d processes and threads", c.Job, maxProcesses)
		}
	}
	return caisson.Wrap(errors.Join(cause, exit), caisson.Internal, "the worker for %s broke down; the daemon's log has the details", c.Job)
}

// head keeps the first bytes written to it: a crash begins with its reason.
type head struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *head) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b[:min(len(b), 4096-t.buf.Len())])
	return len(b), nil
}

func (t *head) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return printable(t.buf.String(), t.buf.Len())
}
