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
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// launcher starts the short-lived processes that create sandboxes.
type launcher struct {
	exe           string   // binary for gVisor's processes
	platform      string   // gVisor's platform: "systrap" or "ptrace"
	programsLayer string   // directory of the layer with guest programs
	emptyNetNS    *os.File // network namespace without interfaces
	watch         *watcher // reaps the processes of failed launches

	mu     sync.Mutex
	idmaps map[[2]uint32]*os.File // user namespaces that idmap has cached, by the arguments uid and to; guarded by mu
}

// close closes the descriptors of all namespaces.
func (l *launcher) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.emptyNetNS.Close()
	for _, f := range l.idmaps {
		err = errors.Join(err, f.Close())
	}
	clear(l.idmaps)
	return err
}

// request returns the request that describes the sandbox, and the files whose descriptors must be passed with it. programs is the
// directory of the layer with guest programs; image is the directory of the checkpoint to restore, or "". The caller must close
// the files in owned, also after an error.
func (l *launcher) request(s *sandbox, spec caisson.RuntimeSpec, image, programs string) (req *protocol.LaunchRequest, files, owned []*os.File, err error) {
	give := func(f *os.File) int {
		files = append(files, f)
		return protocol.FirstFD + len(files) - 1
	}
	idmap, err := l.idmap(caisson.LayerUIDBase, caisson.LayerUIDBase, spec.UIDBase, caisson.UIDRange)
	if err != nil {
		return nil, nil, nil, err
	}
	req = &protocol.LaunchRequest{
		ID: string(s.id), Image: image,
		Flags:   l.flags(s.dir, spec.Resources, spec.NetNS != nil),
		Bundle:  filepath.Join(s.dir, "bundle"),
		Spec:    ociSpec(spec, s.state.Cgroup),
		Layers:  append([]string{programs}, spec.Rootfs.Layers...),
		Binds:   map[string]string{},
		IDMapFD: give(idmap), EmptyNetNSFD: give(l.emptyNetNS), NetNSFD: -1,
	}
	if image != "" {
		if err := setRestoreAnnotations(req.Spec, &spec); err != nil {
			return nil, nil, nil, err
		}
	}
	for _, b := range spec.Rootfs.Binds {
		req.Binds[b.Target] = b.Source
	}
	if spec.NetNS != nil {
		req.NetNSFD = give(spec.NetNS)
	}
	for _, m := range spec.Mounts {
		lm := protocol.LaunchMount{Target: m.Target, Writable: m.Writable}
		trees, err := l.cloneMounts(m, spec.UIDBase, &lm)
		if err != nil {
			return nil, nil, owned, err
		}
		owned = append(owned, trees...)
		lm.FD = give(trees[0])
		if lm.Overlay != nil {
			lm.Overlay.DirFD, lm.Overlay.MaskFD = give(trees[1]), -1
			if len(trees) > 2 {
				lm.Overlay.MaskFD = give(trees[2])
			}
		}
		req.Mounts = append(req.Mounts, lm)
	}
	return req, files, owned, nil
}

// run starts a launcher of the binary exe, sends it the request and waits for its reply.
func (l *launcher) run(ctx context.Context, exe string, s *sandbox, req *protocol.LaunchRequest, files []*os.File, spec caisson.RuntimeSpec) (*protocol.LaunchReply, error) {
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

	cmd := exec.Command(exe)
	cmd.Args = []string{protocol.LaunchArg0}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = writerOrNil(spec.Stdout), writerOrNil(spec.Stderr)
	cmd.ExtraFiles = append([]*os.File{reqR, replyW}, files...)
	cmd.SysProcAttr = protocol.LaunchAttr()
	// The kernel kills the launcher when the thread that started it exits (PR_SET_PDEATHSIG), and Go may terminate an unlocked
	// thread at any time: for example one that has changed its namespaces.
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
			l.killOrphans(cmd.Process.Pid, s.dir, spec.UIDBase)
		}
	}()
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()

	if err := json.NewEncoder(reqW).Encode(req); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("write to launcher: %w", err)
	}
	reqW.Close()
	var reply protocol.LaunchReply
	if err := json.NewDecoder(io.LimitReader(replyR, protocol.MaxLaunchReply)).Decode(&reply); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("the launcher died: %w", err)
	}
	if reply.Refused != "" {
		return nil, overlayError(errors.New(reply.Error), reply.Refused)
	}
	if reply.Error != "" {
		return nil, fmt.Errorf("gvisor: %s", reply.Error)
	}
	return &reply, nil
}

// writerOrNil returns f as an io.Writer. A nil *os.File becomes a nil interface, with which exec.Cmd discards the output.
func writerOrNil(f *os.File) io.Writer {
	if f == nil {
		return nil
	}
	return f
}
