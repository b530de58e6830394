package sentry

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/caisson-dev/caisson/runtime/gvisor/lastwrite"
)

// RecordAnnotation in a spec names the mounts in which it is noted who changes what: JSON of a list of targets.
const RecordAnnotation = "dev.caisson.record"

// WritersSink is how the daemon asks who has changed what: gVisor's control protocol takes new methods from nobody, but lets
// others make the sinks of its trace sessions, and hands them a descriptor. A session with this sink and no points costs
// nothing. In its configuration "target" names the mount; what is written to the descriptor is a table of package lastwrite.
const WritersSink = "caisson.writers"

// A recorder notes which process was the last to change each file of the sandbox's workspaces, as the system calls that change
// files succeed; writing is noted when a file is opened for it. It is part of the process, not of the kernel, so that a
// restored sandbox begins with an empty one.
type recorder struct {
	spaces []*space

	mu    sync.Mutex // held by who looks for the workspaces
	found atomic.Bool
}

// space is one workspace.
type space struct {
	target string
	fs     atomic.Pointer[vfs.Filesystem] // nil until it is found
	table  lastwrite.Table
}

// record names the workspaces among the mounts in the spec.
func (r *LaunchRequest) record() error {
	var targets []string
	for _, m := range r.Mounts {
		if m.Overlay != nil {
			targets = append(targets, m.Target)
		}
	}
	if len(targets) == 0 {
		return nil
	}
	v, err := json.Marshal(targets)
	if err != nil {
		return err
	}
	if r.Spec.Annotations == nil {
		r.Spec.Annotations = map[string]string{}
	}
	r.Spec.Annotations[RecordAnnotation] = string(v)
	return nil
}

// workspacesIn reads the annotation from the spec whose descriptor is among the arguments of gVisor's boot command.
func workspacesIn(args []string) (targets []string, err error) {
	spec, err := specOf(args)
	if err != nil {
		return nil, err
	}
	return annotatedTargets(spec)
}

func annotatedTargets(spec *specs.Spec) (targets []string, err error) {
	v, ok := spec.Annotations[RecordAnnotation]
	if !ok {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(v), &targets); err != nil {
		return nil, fmt.Errorf("%s: %w", RecordAnnotation, err)
	}
	return targets, nil
}

func newRecorder(targets []string) *recorder {
	r := &recorder{}
	for _, target := range targets {
		r.spaces = append(r.spaces, &space{target: target})
	}
	return r
}

// find finds the file systems of the workspaces, before the first call that could move what is on the way there. The guest cannot
// mount anything where its first process looks, and the paths in such a file system are those in the workspace, whatever a process
// has as its root or has bound elsewhere.
func (r *recorder) find(t *kernel.Task) {
	if r.found.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found.Load() {
		return
	}
	k := t.Kernel()
	first := k.GlobalInit()
	if first == nil || first.Leader() == nil {
		return
	}
	mounts := first.Leader().MountNamespace()
	if mounts == nil || !mounts.TryIncRef() {
		return
	}
	defer mounts.DecRef(t)
	root := mounts.Root(t)
	defer root.DecRef(t)
	creds := auth.NewRootCredentials(k.RootUserNamespace())
	missing := 0
	for _, s := range r.spaces {
		if s.fs.Load() != nil {
			continue
		}
		at, err := k.VFS().GetDentryAt(t, creds, &vfs.PathOperation{
			Root: root, Start: root, Path: fspath.Parse(s.target), FollowFinalSymlink: true,
		}, &vfs.GetDentryOptions{})
		if err != nil {
			missing++
			continue
		}
		if fs := at.Mount().Filesystem(); fs != root.Mount().Filesystem() && at.Mount().Root() == at.Dentry() {
			s.fs.Store(fs)
		} else {
			missing++ // a restored guest had moved what is on the way, and may move it back
		}
		at.DecRef(t)
	}
	r.found.Store(missing == 0)
}

// place is a path in a workspace.
type place struct {
	in   *lastwrite.Table
	path string
}

// locate returns where in a workspace something is; ok is false if it is elsewhere, or has no name any more.
func (r *recorder) locate(t *kernel.Task, at vfs.VirtualDentry) (p place, ok bool) {
	fs := at.Mount().Filesystem()
	i := slices.IndexFunc(r.spaces, func(s *space) bool { return s.fs.Load() == fs })
	if i < 0 || at.Dentry().IsDead() {
		return p, false
	}
	path, err := t.Kernel().VFS().PathnameInFilesystem(t, at)
	if err != nil || path == "" {
		return p, false
	}
	return place{&r.spaces[i].table, path[1:]}, true // without the leading slash
}

// below returns a name in the directory p.
func (p place) below(name string) place {
	if p.path != "" {
		name = p.path + "/" + name
	}
	return place{p.in, name}
}

// caller is the process that makes a system call.
func caller(t *kernel.Task) lastwrite.Process {
	group := t.ThreadGroup()
	command := t.Name()
	if leader := group.Leader(); leader != nil && leader != t {
		command = leader.Name() // threads have names of their own
	}
	return lastwrite.Process{
		PID: uint32(t.Kernel().RootPIDNamespace().IDOfThreadGroup(group)), UID: uint32(t.Credentials().EffectiveKUID), Command: command,
	}
}

// answer makes the sink that tells who has changed what.
func (r *recorder) answer(config map[string]any, endpoint *fd.FD) (seccheck.Sink, error) {
	if endpoint == nil {
		return nil, fmt.Errorf("%s takes a descriptor to write to", WritersSink)
	}
	out := os.NewFile(uintptr(endpoint.Release()), WritersSink)
	defer out.Close()
	target, _ := config["target"].(string)
	i := slices.IndexFunc(r.spaces, func(s *space) bool { return s.target == target })
	if i < 0 {
		return nil, fmt.Errorf("no workspace is at %q", target)
	}
	if _, err := out.Write(r.spaces[i].table.Encode()); err != nil {
		return nil, err
	}
	return answered(WritersSink), nil
}

// answered is what is left of an answer: a sink that takes nothing.
func answered(name string) seccheck.Sink { return answeredSink{name: name} }

type answeredSink struct {
	seccheck.SinkDefaults
	name string
}

func (a answeredSink) Name() string { return a.name }
