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
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// RecordAnnotation is the annotation of a spec with the workspaces in which the sentry records which process was the last to
// change each file: a JSON list of their mount points.
const RecordAnnotation = "dev.caisson.record"

// A recorder records which process was the last to change each file of the sandbox's workspaces, whenever a system call that
// changes files succeeds. Opening a file for writing counts as a change. The recorder is part of the process and not saved with
// the kernel, so a restored sandbox starts with an empty one.
type recorder struct {
	workspaces []*workspace // the workspaces of the sandbox

	mu    sync.Mutex  // held while the file systems are searched
	found atomic.Bool // the file systems of all workspaces have been found
}

// workspace is a workspace of the sandbox for which the last writers of files are recorded.
type workspace struct {
	target string                         // mount point in the sandbox
	fs     atomic.Pointer[vfs.Filesystem] // file system of the workspace; nil until it has been found
	table  lastwrite.Table                // by path in the workspace, the process that was the last to change it
}

// addRecordAnnotation annotates the spec with the mount points of the workspaces, where the last change of each file is recorded.
func (r *launchRequest) addRecordAnnotation() error {
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

// readRecordTargets returns the mount points of the workspaces in which changes are recorded, from the spec whose descriptor is
// among the arguments of gVisor's boot command.
func readRecordTargets(args []string) (targets []string, err error) {
	spec, err := readSpec(args)
	if err != nil {
		return nil, err
	}
	return annotatedTargets(spec)
}

// annotatedTargets returns the mount points, by the annotation of spec, of workspaces in which changes are recorded; nil if none.
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

// newRecorder returns a recorder of the last change of each file, for the workspaces with the mount points targets.
func newRecorder(targets []string) *recorder {
	r := &recorder{}
	for _, target := range targets {
		r.workspaces = append(r.workspaces, &workspace{target: target})
	}
	return r
}

// findFilesystems finds the file systems of the workspaces. It runs before the first system call that could rename a parent
// directory of a workspace, and the guest cannot mount anything in the mount namespace of its first process. Paths in the file
// system of a workspace are those relative to the workspace, independent of a process's root directory and of bind mounts.
func (r *recorder) findFilesystems(t *kernel.Task) {
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
	for _, s := range r.workspaces {
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
			missing++ // the guest renamed a parent directory before the checkpoint, and may rename it back later
		}
		at.DecRef(t)
	}
	r.found.Store(missing == 0)
}

// workspacePath is a path in a workspace.
type workspacePath struct {
	table *lastwrite.Table // last changes of files in the workspace
	path  string           // path relative to the workspace
}

// locate returns the path of a dentry in a workspace; ok is false if it is not in a workspace or was unlinked.
func (r *recorder) locate(t *kernel.Task, at vfs.VirtualDentry) (p workspacePath, ok bool) {
	fs := at.Mount().Filesystem()
	i := slices.IndexFunc(r.workspaces, func(s *workspace) bool { return s.fs.Load() == fs })
	if i < 0 || at.Dentry().IsDead() {
		return p, false
	}
	path, err := t.Kernel().VFS().PathnameInFilesystem(t, at)
	if err != nil || path == "" {
		return p, false
	}
	return workspacePath{&r.workspaces[i].table, path[1:]}, true // path is absolute: its leading slash is removed
}

// below returns the path of name in the directory p.
func (p workspacePath) below(name string) workspacePath {
	if p.path != "" {
		name = p.path + "/" + name
	}
	return workspacePath{p.table, name}
}

// callingProcess returns the process that makes a system call.
func callingProcess(t *kernel.Task) lastwrite.Process {
	group := t.ThreadGroup()
	command := t.Name()
	if leader := group.Leader(); leader != nil && leader != t {
		command = leader.Name() // threads of a process can have different names
	}
	return lastwrite.Process{
		PID: uint32(t.Kernel().RootPIDNamespace().IDOfThreadGroup(group)), UID: uint32(t.Credentials().EffectiveKUID), Command: command,
	}
}

// newSink is the constructor of protocol.WritersSink. For the workspace mounted at config["target"], it writes to endpoint, in
// encoded form, which process was the last to change each file.
func (r *recorder) newSink(config map[string]any, endpoint *fd.FD) (seccheck.Sink, error) {
	if endpoint == nil {
		return nil, fmt.Errorf("%s requires a descriptor to write to", protocol.WritersSink)
	}
	out := os.NewFile(uintptr(endpoint.Release()), protocol.WritersSink)
	defer out.Close()
	target, _ := config["target"].(string)
	i := slices.IndexFunc(r.workspaces, func(s *workspace) bool { return s.target == target })
	if i < 0 {
		return nil, fmt.Errorf("no workspace is at %q", target)
	}
	if _, err := out.Write(r.workspaces[i].table.Encode()); err != nil {
		return nil, err
	}
	return newNoopSink(protocol.WritersSink), nil
}

// newNoopSink returns a sink that receives no events. gVisor requires that the constructor of a sink returns a sink; the
// constructors of this package's sinks do, or start, all the work of the sink.
func newNoopSink(name string) seccheck.Sink { return noopSink{name: name} }

// noopSink is a sink of gVisor's trace sessions that receives no events.
type noopSink struct {
	seccheck.SinkDefaults
	name string
}

func (a noopSink) Name() string { return a.name }
