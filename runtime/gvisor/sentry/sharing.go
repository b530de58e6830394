package sentry

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	sentrycontext "gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// A sharedRandomness determines which programs may generate the same random values as another fork. The field kernel is
// set when a restore has loaded the kernel; it stays nil in a sandbox that was not restored.
type sharedRandomness struct {
	reseeded bool                          // the restore gave the processes new PIDs, which makes OpenSSL's generators reseed
	kernel   atomic.Pointer[kernel.Kernel] // the restored kernel; nil if there is none
}

// processSharing determines which programs in this process's sandbox may generate the same random values as another fork.
var processSharing sharedRandomness

// install registers the sink with which the daemon asks which programs may share random values. reseeded means that the restore
// gives processes new PIDs, which makes OpenSSL's generators reseed. It must run before gVisor starts a kernel.
func (s *sharedRandomness) install(reseeded bool) {
	s.reseeded = reseeded
	seccheck.RegisterSink(seccheck.SinkDesc{Name: protocol.SharingSink, New: s.newSink})
}

// storeKernel stores the kernel that is being restored, which ctx, the context of the restore, contains.
func (s *sharedRandomness) storeKernel(ctx context.Context) {
	if k, ok := ctx.Value(kernel.CtxKernel).(*kernel.Kernel); ok {
		s.kernel.Store(k)
		processConnections.kernel.set(k)
	}
}

// newSink is the constructor of protocol.SharingSink. It writes which programs may share random values to endpoint, one per line.
func (s *sharedRandomness) newSink(_ map[string]any, endpoint *fd.FD) (seccheck.Sink, error) {
	if endpoint == nil {
		return nil, fmt.Errorf("%s requires a descriptor to write to", protocol.SharingSink)
	}
	out := os.NewFile(uintptr(endpoint.Release()), protocol.SharingSink)
	defer out.Close()
	var names []string
	if k := s.kernel.Load(); k != nil {
		names = s.names(k)
	}
	if more := len(names) - protocol.MaxSharing; more > 0 {
		names = append(names[:protocol.MaxSharing], fmt.Sprintf("%d other programs", more))
	}
	if _, err := out.WriteString(strings.Join(names, "\n")); err != nil {
		return nil, err
	}
	return newNoopSink(protocol.SharingSink), nil
}

// names returns the descriptions of all programs of restored processes that may generate the same random values as another fork,
// sorted and without duplicates.
func (s *sharedRandomness) names(k *kernel.Kernel) []string {
	ctx := k.SupervisorContext()
	var leaders []*kernel.Task
	init := k.GlobalInit()
	k.TaskSet().ForEachThreadGroup(func(tg *kernel.ThreadGroup, leader *kernel.Task) {
		if tg != init && leader.Origin != kernel.OriginExec { // exec'd processes are not restored; init uses no random values
			leaders = append(leaders, leader)
		}
	})
	names := map[string]bool{}
	looked := map[string]string{}
	for _, leader := range leaders {
		file := executable(leader)
		if file == nil {
			continue // the process has exited
		}
		path := file.MappedName(ctx)
		name, ok := looked[path]
		if !ok {
			name = describeUnsafeProgram(programName(path), isGo(ctx, file), s.reseeded)
			looked[path] = name
		}
		file.DecRef(ctx)
		if name != "" {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// executable returns the file that a process executes, or nil if the process has exited. The caller must release the reference.
func executable(t *kernel.Task) *vfs.FileDescription {
	var m *mm.MemoryManager
	t.WithMuLocked(func(t *kernel.Task) { m = t.MemoryManager() })
	if m == nil {
		return nil
	}
	return m.Executable() // nil if the process has exited in the meantime
}

// programName returns the last element of a path, at most protocol.MaxSharingName bytes. Characters other than printable ASCII
// become '?'.
func programName(p string) string {
	name := path.Base(strings.TrimSuffix(p, " (deleted)"))
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
	return name[:min(len(name), protocol.MaxSharingName)]
}

// goNote is a part of the ELF note with the build ID of a Go program. The note begins with the sizes of its name and of its
// description, 4 bytes each; goNote is what follows them: the type, which is 4, and the name. Go's linker places the note in
// the first page of the file.
var goNote = []byte("\x04\x00\x00\x00Go\x00\x00")

// isGo reports whether a file is a Go program. Go programs are safe, because crypto/rand reads from the kernel each time.
func isGo(ctx sentrycontext.Context, file *vfs.FileDescription) bool {
	page := make([]byte, 4096)
	n, err := file.PRead(ctx, usermem.BytesIOSequence(page), 0, vfs.ReadOptions{})
	return (err == nil || n > 0) && bytes.HasPrefix(page, []byte("\x7fELF")) && bytes.Contains(page[:n], goNote)
}

// safePrograms lists programs, other than those written in Go, that generate no secrets or read random values from the kernel
// each time.
var safePrograms = map[string]bool{
	"bash": true, "busybox": true, "cat": true, "dash": true, "env": true, "make": true, "script": true, "sh": true, "sleep": true,
	"tail": true, "tee": true, "timeout": true, "tmux": true, "zsh": true,
}

// describeUnsafeProgram returns the program's name, possibly with the affected functions, if the program may generate the same
// random values in two forks, and otherwise "". Unknown programs are assumed to do so. reseeded means that each fork has given
// its processes new PIDs, which makes OpenSSL's generators reseed. For Node and Python, tests verify the result.
func describeUnsafeProgram(program string, isGo, reseeded bool) string {
	switch {
	case isGo, safePrograms[program]:
		return ""
	case !reseeded:
		return program
	case program == "node", program == "nodejs":
		return program + " (crypto.randomUUID and crypto.randomInt, if used before)" // both use random values that are cached in memory
	case program == "openssl", isPython(program):
		return ""
	}
	return program
}

// isPython reports whether a program is CPython: python3, python3.13.
func isPython(program string) bool {
	version, ok := strings.CutPrefix(program, "python3")
	return ok && strings.Trim(version, ".0123456789") == ""
}
