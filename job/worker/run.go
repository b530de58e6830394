package worker

import (
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
	"github.com/caisson-dev/caisson/internal/excerpt"
)

// Run starts the job, waits until it exits and decodes its result into reply, a pointer. The job is killed when ctx is done or
// its time limit expires. Returns the job's error, with its kind; Exhausted if the job exceeded a limit; Internal if it crashed
// or sent an invalid reply, in which case reply must not be used.
func (r *Runner) Run(ctx context.Context, req Request, reply any) error {
	args, err := json.Marshal(req.Args)
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "worker: arguments of %s", req.Job)
	}
	if req.Network && req.Root != nil {
		return caisson.Errorf(caisson.Internal, "worker: %s requests both a network and a directory", req.Job)
	}
	if err := req.checkPrograms(); err != nil {
		return err
	}
	c := jobRequest{Job: req.Job, Args: args, Files: len(req.Files), Input: req.Input != nil, Root: req.Root != nil,
		Network: req.Network, Limits: req.Limits.withDefaults()}
	timed, cancel := context.WithTimeout(ctx, c.Limits.Time)
	defer cancel()
	defer runtime.KeepAlive(r) // r.exe refers to r.program by its descriptor number only

	p := &process{log: r.log.With("job", req.Job), cancelled: ctx.Done(), stderr: excerpt.Head{Limit: maxStderr}}
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

// process is the process of one job and the parent's resources for it.
type process struct {
	cmd       *exec.Cmd // starts the process of the job
	log       *slog.Logger
	cancelled <-chan struct{} // closed when the caller has cancelled the job
	stderr    excerpt.Head    // beginning of the job's standard error
	heldFiles []*os.File      // the parent's ends of the pipes, and descriptors that must stay open until the job exits
	jobFiles  []*os.File      // the job's ends of the pipes, and directories for the job; the parent closes them after the start
	idmapped  []*os.File      // mounts of directories owned by root, to be idmapped for the job

	request   *os.File       // the parent's end of the pipe for the request
	replies   *os.File       // the parent's end of the pipe for the reply
	copyInput func()         // copies Request.Input to the job; nil if there is nothing to copy
	copying   sync.WaitGroup // counts the goroutine that runs copyInput
}

// close closes the parent's descriptors and waits until the goroutine that copies the input has ended.
func (p *process) close() {
	for _, f := range append(p.heldFiles, p.jobFiles...) {
		f.Close()
	}
	p.copying.Wait()
}

// prepare sets up the command of the job and the descriptors that it inherits.
func (p *process) prepare(ctx context.Context, r *Runner, req Request, c *jobRequest) error {
	stdin, request, err := p.pipe()
	if err != nil {
		return err
	}
	replies, stdout, err := p.pipe()
	if err != nil {
		return err
	}
	p.heldFiles = append(p.heldFiles, request, replies)
	p.jobFiles = append(p.jobFiles, stdin, stdout)
	p.request, p.replies = request, replies

	cmd := exec.CommandContext(ctx, r.exe)
	cmd.Args = []string{argv0}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &p.stderr
	cmd.WaitDelay = 5 * time.Second
	p.cmd = cmd
	if err := p.passFiles(req); err != nil {
		return err
	}
	if err := p.passInput(req.Input); err != nil {
		return err
	}
	if req.Network {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			// All jobs with network run as the same user; the pid namespace keeps them from signalling each other.
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
			Credential: &syscall.Credential{Uid: r.workUID, Gid: r.workUID},
			Pdeathsig:  syscall.SIGKILL,
			Setsid:     true,
		}
		return nil
	}
	return p.isolate(r, req, c)
}

// isolate sets up the namespaces and the root directory of a job without network.
func (p *process) isolate(r *Runner, req Request, c *jobRequest) error {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(r.uidBase), Size: caisson.UIDRange}}
	gids := ids
	if req.Root != nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(req.Root.Fd()), &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		switch {
		case req.Access == Populate:
			c.Capabilities = []uint{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID}
		case req.Access == ReadGuest && st.Uid < caisson.UIDRange:
			return errors.New("the directory belongs to a user of the host and to no guest")
		case req.Access == ReadGuest:
			ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(st.Uid), Size: caisson.UIDRange}}
			gids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(st.Gid), Size: caisson.UIDRange}}
			c.Capabilities = []uint{unix.CAP_DAC_READ_SEARCH}
		case st.Uid == 0 && req.Programs:
			// The files belong to root; idmap makes them appear to belong to this uid.
			ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(r.uidBase), Size: 1}}
			gids = ids
		case st.Uid == 0 && req.Access == ReadAsOwner:
			// Only root can have created this directory, and it is mounted read-only: allow reading all files, regardless of their owners.
			ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1<<32 - 1}}
			gids = ids
			c.Capabilities = []uint{unix.CAP_DAC_READ_SEARCH}
		default:
			ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(st.Uid), Size: 1}}
			gids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(st.Gid), Size: 1}}
		}
		root, err := cloneMount(req.Root, dataMountAttrs(req.Access != Populate && req.Access != WriteAsOwner))
		if err != nil {
			return err
		}
		p.heldFiles = append(p.heldFiles, root)
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, root)
		if req.Programs && st.Uid == 0 {
			p.idmapped = append(p.idmapped, root)
		}
	}
	if req.Programs {
		if err := p.addMounts(req, c); err != nil {
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

// passFiles adds the descriptors of the request to the job's. Directories are passed as separate mounts: through a plain
// descriptor of a directory, ".." would lead to every directory that its user can access.
func (p *process) passFiles(req Request) error {
	for _, f := range req.Files {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || req.Network {
			p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, f)
			continue
		}
		mount, err := cloneMount(f, dataMountAttrs(false))
		if err != nil {
			return err
		}
		p.heldFiles = append(p.heldFiles, mount) // the mount exists as long as this descriptor is open
		fd, err := unix.Openat(int(mount.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		dir := os.NewFile(uintptr(fd), f.Name())
		p.jobFiles = append(p.jobFiles, dir)
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, dir)
	}
	return nil
}

// dataMountAttrs returns the mount attributes of directories that hold data: no file in them can be executed.
func dataMountAttrs(readOnly bool) (attr uint64) {
	attr = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if readOnly {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	return attr
}

// cloneMount returns a new mount of dir without the mounts below it. It is not attached to any mount namespace yet. dir may also
// be a file.
func cloneMount(dir *os.File, attrs uint64) (*os.File, error) {
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

// pipe returns the ends of a new pipe. Its error names the system call.
func (p *process) pipe() (r, w *os.File, err error) {
	r, w, err = os.Pipe()
	if err != nil {
		return nil, nil, os.NewSyscallError("pipe", err)
	}
	return r, w, nil
}

// passInput gives the job a descriptor from which it reads in.
func (p *process) passInput(in io.Reader) error {
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
	p.jobFiles = append(p.jobFiles, r)
	p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, r)
	p.heldFiles = append(p.heldFiles, w)
	p.copyInput = func() {
		defer p.copying.Done()
		// If in cannot be read, the job gets a short input and reports that. If the pipe cannot be written to, the job has exited.
		io.Copy(w, in)
		w.Close()
	}
	return nil
}

// run starts the job and decodes its reply.
func (p *process) run(c jobRequest, progress func(json.RawMessage), reply any) error {
	line, err := json.Marshal(c)
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "worker: request of %s", c.Job)
	}
	// The kernel sends the parent death signal when the thread that forked the job exits, so this goroutine must keep its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		return caisson.Wrap(err, caisson.Internal, "cannot start a worker for %s", c.Job)
	}
	for _, f := range p.jobFiles {
		f.Close()
	}
	p.jobFiles = nil
	if p.copyInput != nil {
		p.copying.Add(1)
		go p.copyInput()
	}
	if c.Programs != nil {
		if err := p.configureStarted(); err != nil {
			p.cmd.Process.Kill()
			p.cmd.Wait()
			return caisson.Wrap(err, caisson.KindOf(err), "cannot prepare a worker for %s: %s", c.Job, caisson.MessageOf(err))
		}
	}
	if _, err = p.request.Write(append(line, '\n')); err == nil {
		err = readFrames(p.replies, progress, reply)
	}
	if e, ok := errors.AsType[*caisson.Error](err); err == nil || ok {
		// The reply is complete, so the job is killed. Wait is called before run returns, because the job's copies of descriptors
		// that it shares with other processes are closed only when it has exited.
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
	return p.crashError(c, err, p.cmd.Wait())
}

// crashError returns the error for a job that exited without a reply.
func (p *process) crashError(c jobRequest, cause, exit error) error {
	said := printable(p.stderr.String(), maxStderr)
	level := slog.LevelWarn
	select {
	case <-p.cancelled:
		level = slog.LevelDebug
	default:
	}
	p.log.Log(context.Background(), level, "a worker failed", "cause", cause, "exit", exit, "stderr", said)
	if e, ok := errors.AsType[*exec.ExitError](exit); ok {
		switch {
		case e.UserTime()+e.SystemTime() >= c.Limits.CPU/2: // half of the limit: under load some ticks are not counted
			return caisson.Errorf(caisson.Exhausted, "%s used more than %v of processor time", c.Job, c.Limits.CPU)
		case strings.Contains(said, "out of memory") || strings.Contains(said, "cannot allocate memory"):
			return caisson.Errorf(caisson.Exhausted, "%s needed more than %v of memory", c.Job, caisson.Size(c.Limits.Memory))
		case strings.Contains(said, "failed to create new OS thread"):
			return caisson.Errorf(caisson.Exhausted, "%s started more than %d processes and threads", c.Job, maxProcesses)
		}
	}
	return caisson.Wrap(errors.Join(cause, exit), caisson.Internal, "the worker for %s failed; see the daemon's log", c.Job)
}
