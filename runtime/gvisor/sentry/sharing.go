package sentry

import (
	"bytes"
	"context"
	"fmt"
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
)

// SharingSink is how the daemon asks which programs that came out of a checkpoint may draw the same secrets as in another fork of
// it: see [WritersSink] for the way, and [repeats] for the answer, one program a line.
const SharingSink = "caisson.sharing"

// MaxSharing bounds the programs that an answer names; one more line says how many others there are. MaxSharingName bounds a name
// in bytes.
const (
	MaxSharing     = 16
	MaxSharingName = 80
)

// A sharing answers which programs may repeat what another fork draws. Its kernel is set when that has been loaded, and stays nil
// in a sandbox that was not restored.
type sharing struct {
	reseeded bool
	kernel   atomic.Pointer[kernel.Kernel]
}

// loaded is the one of this process.
var loaded sharing

// install makes the sink. It must run before gVisor starts a kernel.
func (s *sharing) install(reseeded bool) {
	s.reseeded = reseeded
	seccheck.RegisterSink(seccheck.SinkDesc{Name: SharingSink, New: s.answer})
}

// restored notes the kernel, from the context that it is loaded with.
func (s *sharing) restored(ctx context.Context) {
	if k, ok := ctx.Value(kernel.CtxKernel).(*kernel.Kernel); ok {
		s.kernel.Store(k)
	}
}

// answer writes the names.
func (s *sharing) answer(_ map[string]any, endpoint *fd.FD) (seccheck.Sink, error) {
	if endpoint == nil {
		return nil, fmt.Errorf("%s takes a descriptor to write to", SharingSink)
	}
	out := os.NewFile(uintptr(endpoint.Release()), SharingSink)
	defer out.Close()
	var names []string
	if k := s.kernel.Load(); k != nil {
		names = s.names(k)
	}
	if more := len(names) - MaxSharing; more > 0 {
		names = append(names[:MaxSharing], fmt.Sprintf("%d other programs", more))
	}
	if _, err := out.WriteString(strings.Join(names, "\n")); err != nil {
		return nil, err
	}
	return answered(SharingSink), nil
}

// names returns the programs, sorted, each once.
func (s *sharing) names(k *kernel.Kernel) []string {
	ctx := k.SupervisorContext()
	var leaders []*kernel.Task
	init := k.GlobalInit()
	k.TaskSet().ForEachThreadGroup(func(tg *kernel.ThreadGroup, leader *kernel.Task) {
		if tg != init && leader.Origin != kernel.OriginExec { // as for a renaming
			leaders = append(leaders, leader)
		}
	})
	names := map[string]bool{}
	looked := map[string]string{}
	for _, leader := range leaders {
		file := executable(leader)
		if file == nil {
			continue // it has ended
		}
		path := file.MappedName(ctx)
		name, ok := looked[path]
		if !ok {
			name = repeats(programName(path), isGo(ctx, file), s.reseeded)
			looked[path] = name
		}
		file.DecRef(ctx)
		if name != "" {
			names[name] = true
		}
	}
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	return sorted
}

// executable returns the file that a process executes, with a reference; nil if it has ended.
func executable(t *kernel.Task) *vfs.FileDescription {
	var m *mm.MemoryManager
	t.WithMuLocked(func(t *kernel.Task) { m = t.MemoryManager() })
	if m == nil {
		return nil
	}
	return m.Executable() // nil if it has ended since
}

// programName is the last element of a path, without what could not be in one line.
func programName(p string) string {
	name := path.Base(strings.TrimSuffix(p, " (deleted)"))
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
	return name[:min(len(name), MaxSharingName)]
}

// goNote begins the note with the id of its build in a program made by Go: name size, description size (4 bytes that vary),
// type 4, name. Go's linker puts it into the first page.
var goNote = []byte("\x04\x00\x00\x00Go\x00\x00")

// isGo reports whether a file is a program made by Go, whose crypto/rand asks the kernel each time.
func isGo(ctx sentrycontext.Context, file *vfs.FileDescription) bool {
	page := make([]byte, 4096)
	n, err := file.PRead(ctx, usermem.BytesIOSequence(page), 0, vfs.ReadOptions{})
	return (err == nil || n > 0) && bytes.HasPrefix(page, []byte("\x7fELF")) && bytes.Contains(page[:n], goNote)
}

// harmless are programs other than Go's that draw no secrets, or ask the kernel for each.
var harmless = map[string]bool{
	"bash": true, "busybox": true, "cat": true, "dash": true, "env": true, "make": true, "script": true, "sh": true, "sleep": true,
	"tail": true, "tee": true, "timeout": true, "tmux": true, "zsh": true,
}

// repeats says what of a program may draw in a fork what it draws in another one, "" if nothing of it may. Only what is known is
// left out, by the program's name: Node and Python have tests.
func repeats(program string, isGo, reseeded bool) string {
	switch {
	case isGo, harmless[program]:
		return ""
	case !reseeded:
		return program
	case program == "node", program == "nodejs":
		return program + " (crypto.randomUUID and crypto.randomInt, if used before)" // of which it has a supply in memory
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
