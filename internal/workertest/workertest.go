// Package workertest gives tests a program to run jobs with.
package workertest

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/worker"
)

// A Program is the package's own test binary as a worker. Its TestMain must call worker.Main if worker.IsWorker.
// Jobs need a static binary, and one built for the race detector is not: then the package is built again, once.
type Program struct {
	once sync.Once
	dir  string
	exe  string
	err  error
}

// Runner returns a runner of the calling package's jobs, or skips the test if it does not run as root.
func (p *Program) Runner(t testing.TB) *worker.Runner {
	t.Helper()
	testneed.Root(t)
	p.once.Do(p.build)
	if p.err != nil {
		t.Fatal(p.err)
	}
	r, err := worker.New(worker.Config{Exe: p.exe, UIDBase: caisson.LayerUIDBase, WorkUID: worker.DefaultUID})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Exe returns the path of the program, once there is a runner.
func (p *Program) Exe() string { return p.exe }

// Close removes what was built.
func (p *Program) Close() {
	if p.dir != "" {
		os.RemoveAll(p.dir)
	}
}

func (p *Program) build() {
	if static("/proc/self/exe") {
		p.exe = "/proc/self/exe"
		return
	}
	if p.dir, p.err = os.MkdirTemp("", "caisson-worker-"); p.err != nil {
		return
	}
	// Jobs run as users that own nothing, and must get at the program.
	if p.err = os.Chmod(p.dir, 0o755); p.err != nil {
		return
	}
	p.exe = filepath.Join(p.dir, "job")
	cmd := exec.Command("go", "test", "-c", "-o", p.exe, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if p.err = cmd.Run(); p.err == nil {
		p.err = os.Chmod(p.exe, 0o755)
	}
}

func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}
