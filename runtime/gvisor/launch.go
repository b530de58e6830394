package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/sentry"
)

// launch makes a sandbox, from nothing or from the checkpoint in image.
func (r *Runtime) launch(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, image string) error {
	if spec.Dir != filepath.Join(r.cfg.Dir, string(id)) {
		return fmt.Errorf("directory %s of sandbox %s is not in %s", spec.Dir, id, r.cfg.Dir)
	}
	if err := checkCommand(spec.Command, spec.User, true); err != nil {
		return err
	}
	s := newSandbox(id, spec.Dir)
	s.done = make(chan struct{})
	s.state = state{
		Cgroup: filepath.Join(r.cfg.Cgroup, string(id)), HasCommand: len(spec.Command) > 0,
		Memory: spec.Resources.Memory, Restored: image != "",
	}
	r.mu.Lock()
	if _, ok := r.sandboxes[id]; ok {
		r.mu.Unlock()
		return caisson.Errorf(caisson.Conflict, "sandbox %s exists already", id)
	}
	r.sandboxes[id] = s
	r.mu.Unlock()

	if err := r.start(ctx, s, spec, image); err != nil {
		return errors.Join(err, r.Destroy(context.WithoutCancel(ctx), id))
	}
	return nil
}

func (r *Runtime) start(ctx context.Context, s *sandbox, spec caisson.RuntimeSpec, image string) error {
	started := false
	defer func() {
		if !started {
			s.end()
		}
	}()
	for _, dir := range []string{"", "fs", "bundle", filepath.Join("bundle", sentry.StateDir)} {
		if err := os.Mkdir(filepath.Join(s.dir, dir), 0o700); err != nil {
			return fmt.Errorf("make the runtime's directory: %w", err)
		}
	}
	req, files, owned, err := r.request(s, spec, image)
	defer func() {
		for _, f := range owned {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	reply, err := r.runLauncher(ctx, req, files, spec)
	if err != nil {
		return err
	}
	main, err := processOf(reply.PID)
	if err != nil {
		return fmt.Errorf("the sandbox's main process has ended: %w", err)
	}
	gofer, err := processOf(reply.GoferPID)
	if err != nil {
		return fmt.Errorf("the sandbox's gofer has ended: %w", err)
	}
	r.mu.Lock() // List reads them meanwhile
	s.state.Main, s.state.Gofer = main, gofer
	r.mu.Unlock()
	if err := s.save(); err != nil {
		return err
	}
	if err := r.watch.add(s.state.Gofer.PID, s.goferEnded); err != nil {
		return err
	}
	if err := r.watch.add(s.state.Main.PID, s.end); err != nil {
		return err
	}
	started = true
	return s.waitForCommand(ctx)
}

// request describes the sandbox for its launcher, with the descriptors that it is given; those in owned are to be closed
// afterwards.
func (r *Runtime) request(s *sandbox, spec caisson.RuntimeSpec, image string) (req *sentry.LaunchRequest, files, owned []*os.File, err error) {
	give := func(f *os.File) int {
		files = append(files, f)
		return sentry.FirstFD + len(files) - 1
	}
	idmap, err := r.idmap(caisson.LayerUIDBase, caisson.LayerUIDBase, spec.UIDBase, caisson.UIDRange)
	if err != nil {
		return nil, nil, nil, err
	}
	req = &sentry.LaunchRequest{
		ID: string(s.id), Image: image,
		Flags:   r.flags(s.dir, spec.Resources, spec.NetNS != nil),
		Bundle:  filepath.Join(s.dir, "bundle"),
		Spec:    ociSpec(spec, s.state.Cgroup),
		Layers:  append([]string{r.tools}, spec.Rootfs.Layers...),
		Binds:   map[string]string{},
		IDMapFD: give(idmap), NullFD: give(r.nullNS), NetNSFD: -1,
	}
	for _, b := range spec.Rootfs.Binds {
		req.Binds[b.Target] = b.Source
	}
	if spec.NetNS != nil {
		req.NetNSFD = give(spec.NetNS)
	}
	for _, m := range spec.Mounts {
		tree, err := r.cloneMount(m, spec.UIDBase)
		if err != nil {
			return nil, nil, owned, err
		}
		owned = append(owned, tree)
		req.Mounts = append(req.Mounts, sentry.LaunchMount{FD: give(tree), Target: m.Target, Writable: m.Writable})
	}
	return req, files, owned, nil
}

// runLauncher starts a launcher, hands it the request and waits for its reply.
func (r *Runtime) runLauncher(ctx context.Context, req *sentry.LaunchRequest, files []*os.File, spec caisson.RuntimeSpec) (*sentry.LaunchReply, error) {
	reqR, reqW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reqW.Close()
	replyR, replyW, err := os.Pipe()
	if err != nil {
		reqR.Close()
		return nil, err
	}
	defer replyR.Close()

	cmd := exec.Command(r.exe)
	cmd.Args = []string{sentry.LaunchArg0}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = orNil(spec.Stdout), orNil(spec.Stderr)
	cmd.ExtraFiles = append([]*os.File{reqR, replyW}, files...)
	cmd.SysProcAttr = sentry.LaunchAttr()
	// The kernel ends the launcher when the thread that started it ends, and a thread may end at any time: one that has
	// changed its namespaces does.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	reqR.Close()
	replyW.Close()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot start a process for the sandbox; is the host out of processes or memory?")
	}
	defer func() {
		if cmd.Wait() != nil {
			r.endOrphans(cmd.Process.Pid, spec.UIDBase)
		}
	}()
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()

	if err := json.NewEncoder(reqW).Encode(req); err != nil {
		return nil, fmt.Errorf("write to launcher: %w", err)
	}
	reqW.Close()
	var reply sentry.LaunchReply
	if err := json.NewDecoder(io.LimitReader(replyR, sentry.MaxLaunchReply)).Decode(&reply); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("the launcher died: %w", err)
	}
	if reply.Error != "" {
		return nil, fmt.Errorf("gvisor: %s", reply.Error)
	}
	return &reply, nil
}

// orNil avoids an interface that holds a nil *os.File.
func orNil(f *os.File) io.Writer {
	if f == nil {
		return nil
	}
	return f
}
