package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// programsOfBuild returns the executable of gVisor's processes, and the directory of the layer with guest programs, of the build
// with the given id; "" means the current build.
func (l *launcher) programsOfBuild(cfg *Config, build string) (exe, layer string, err error) {
	if cfg.Find != nil { // l.exe of the current build must exist in any case: user namespaces are created with it.
		if _, err := cfg.Find(cfg.Build); err != nil {
			return "", "", err
		}
	}
	if build == "" || build == cfg.Build {
		return l.exe, l.programsLayer, nil
	}
	if cfg.Find == nil {
		return "", "", caisson.Errorf(caisson.NotFound, "the programs of another build are not here")
	}
	set, err := cfg.Find(build)
	if err != nil {
		return "", "", err
	}
	layer, err = writeLayer(cfg.ToolsDir, set)
	return set.Exe, layer, err
}

// launch starts a sandbox. If image is not "", it restores the sandbox from the checkpoint in that directory.
func (r *Runtime) launch(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, image string) error {
	if spec.Dir != filepath.Join(r.cfg.Dir, string(id)) {
		return fmt.Errorf("directory %s of sandbox %s is not in %s", spec.Dir, id, r.cfg.Dir)
	}
	if err := checkCommand(spec.Command, spec.User, true); err != nil {
		return err
	}
	s := newSandbox(r.watch, id, spec.Dir)
	s.done = make(chan struct{})
	s.state = state{
		Cgroup: filepath.Join(r.cfg.Cgroup, string(id)), HasCommand: len(spec.Command) > 0,
		Memory: spec.Resources.Memory, Disk: spec.Resources.Disk, Restored: image != "",
	}
	for _, m := range spec.Mounts {
		if m.Overlay != nil {
			s.state.Recorded = append(s.state.Recorded, m.Target)
		}
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

// start runs a launcher for s, saves its state and watches its processes. It returns after the command has started.
func (r *Runtime) start(ctx context.Context, s *sandbox, spec caisson.RuntimeSpec, image string) error {
	started := false
	defer func() {
		if !started {
			s.sentryExited()
		}
	}()
	var ready sync.WaitGroup
	// On cgroup v1, moving the launcher to the sandbox's cgroup waits for an RCU grace period of the kernel. prepareCgroupMove
	// starts one early. It is not needed during other launches, because the moves of their launchers start such periods.
	if r.launching.Add(1) == 1 {
		ready.Go(prepareCgroupMove)
	}
	defer ready.Wait()
	defer r.launching.Add(-1)
	for _, dir := range []string{"", fsDir, "bundle", filepath.Join("bundle", protocol.StateDir)} {
		if err := os.Mkdir(filepath.Join(s.dir, dir), 0o700); err != nil {
			return fmt.Errorf("create the runtime's directory: %w", err)
		}
	}
	exe, layer, err := r.launcher.programsOfBuild(&r.cfg, spec.Programs)
	if err != nil {
		return err
	}
	req, files, owned, err := r.launcher.request(s, spec, image, layer)
	defer func() {
		for _, f := range owned {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	reply, err := r.launcher.run(ctx, exe, s, req, files, spec)
	if err != nil {
		return err
	}
	main, err := findProcess(reply.PID)
	if err != nil {
		return fmt.Errorf("the sandbox's main process has ended: %w", err)
	}
	gofer, err := findProcess(reply.GoferPID)
	if err != nil {
		return fmt.Errorf("the sandbox's gofer has ended: %w", err)
	}
	r.mu.Lock() // List may read s.state concurrently
	s.state.Main, s.state.Gofer = main, gofer
	r.mu.Unlock()
	if err := s.save(); err != nil {
		return err
	}
	if err := r.watch.add(s.state.Gofer.PID, s.goferExited); err != nil {
		return err
	}
	if err := r.watch.add(s.state.Main.PID, s.sentryExited); err != nil {
		return err
	}
	started = true
	return s.waitForCommand(ctx)
}
