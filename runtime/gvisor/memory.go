package gvisor

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"gvisor.dev/gvisor/runsc/cgroup"

	"github.com/caisson-dev/caisson/internal/meminfo"
)

// memoryBoost is the state of the temporarily raised memory limit of one sandbox.
type memoryBoost struct {
	mu        sync.Mutex
	saves     int  // number of archives of the sandbox's files that are being written; guarded by mu
	restoring bool // a goroutine retries to restore the limit; guarded by mu
}

// raiseMemoryLimit raises the sandbox's memory limit while its sentry saves files: gVisor reads each file completely into
// memory, and a file within the disk limit can exceed the memory limit. The limit is raised by the disk limit or by half of the
// host's available memory, whichever is less. Calling restore sets the old limit, as soon as the kernel allows it, unless other
// calls are still saving files.
func (s *sandbox) raiseMemoryLimit() (restore func()) {
	available, err := meminfo.Available()
	extra := min(s.saveLimit()-saveSlack, int64(available)/2)
	if err != nil || extra <= 0 {
		return func() {}
	}
	s.memoryBoost.mu.Lock()
	defer s.memoryBoost.mu.Unlock()
	s.memoryBoost.saves++
	for _, f := range s.memoryLimitFiles() {
		setLimit(f, int64(s.state.Memory)+extra)
	}
	return func() {
		s.memoryBoost.mu.Lock()
		s.memoryBoost.saves--
		s.memoryBoost.mu.Unlock()
		s.restoreMemoryLimit()
	}
}

// memoryLimitFiles returns the paths of the files with the memory limits of the sandbox's cgroup, in the order in which they can
// be raised. It returns none if the sandbox has no limit.
func (s *sandbox) memoryLimitFiles() []string {
	g, err := s.group()
	if err != nil || s.state.Memory == 0 {
		return nil
	}
	dir := g.MakePath("memory")
	if cgroup.IsOnlyV2() {
		return []string{filepath.Join(dir, "memory.max")}
	}
	return []string{filepath.Join(dir, "memory.memsw.limit_in_bytes"), filepath.Join(dir, "memory.limit_in_bytes")}
}

// restoreMemoryLimit sets the memory limit of the sandbox's spec again. The kernel refuses this while more memory is in use. The
// sentry releases memory only at its next garbage collections, within minutes; until then, a goroutine retries every second.
func (s *sandbox) restoreMemoryLimit() {
	if s.tryRestoreMemoryLimit() {
		return
	}
	s.memoryBoost.mu.Lock()
	defer s.memoryBoost.mu.Unlock()
	if s.memoryBoost.restoring {
		return
	}
	s.memoryBoost.restoring = true
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for !s.tryRestoreMemoryLimit() {
			select {
			case <-tick.C:
			case <-s.done:
				return
			case <-s.watcherStopped:
				return
			}
		}
	}()
}

// tryRestoreMemoryLimit tries once to set the memory limit of the sandbox's spec, and reports whether no further attempt is
// needed. While files are being saved, it changes nothing and reports true, because the limit is restored afterwards.
func (s *sandbox) tryRestoreMemoryLimit() bool {
	s.memoryBoost.mu.Lock()
	defer s.memoryBoost.mu.Unlock()
	done := true
	if s.memoryBoost.saves == 0 {
		for _, f := range slices.Backward(s.memoryLimitFiles()) {
			done = setLimit(f, int64(s.state.Memory)) && done
		}
	}
	if done {
		s.memoryBoost.restoring = false
	}
	return done
}

// setLimit writes a limit of n bytes to a file of a cgroup and reports whether the kernel has accepted it. It also reports true
// if the file does not exist: the limit of memory and swap is missing if the kernel does not account for swap.
func setLimit(path string, n int64) bool {
	err := os.WriteFile(path, strconv.AppendInt(nil, n, 10), 0)
	return err == nil || os.IsNotExist(err)
}
