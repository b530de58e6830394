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

// loan is memory that a sandbox has beyond its limit.
type loan struct {
	mu        sync.Mutex
	savers    int  // saves under way; guarded by mu
	returning bool // a goroutine tries to get it back; guarded by mu
}

// lendMemory raises the sandbox's memory limit while its main process saves files: gVisor reads each file whole into memory
// for that, and a file that fits its disk need not fit its memory. At most as much is lent as the disk limit allows files to
// be, and half of what the host has available. giveBack restores the limit when no save is under way any more, as soon as
// the kernel allows it.
func (s *sandbox) lendMemory() (giveBack func()) {
	available, err := meminfo.Available()
	extra := min(s.saveLimit()-saveSlack, int64(available)/2)
	if err != nil || extra <= 0 {
		return func() {}
	}
	s.loan.mu.Lock()
	defer s.loan.mu.Unlock()
	s.loan.savers++
	for _, f := range s.memoryFiles() {
		setLimit(f, int64(s.state.Memory)+extra)
	}
	return func() {
		s.loan.mu.Lock()
		s.loan.savers--
		s.loan.mu.Unlock()
		s.returnMemory()
	}
}

// memoryFiles are the limits of the sandbox's cgroup, in the order in which they can be raised; none if it has no limit.
func (s *sandbox) memoryFiles() []string {
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

// returnMemory restores the limit, now or as soon as possible. The kernel refuses while more is in use, and the main process
// gives back what it needed only with its next garbage collections, within minutes.
func (s *sandbox) returnMemory() {
	if s.limitMemory() {
		return
	}
	s.loan.mu.Lock()
	defer s.loan.mu.Unlock()
	if s.loan.returning {
		return
	}
	s.loan.returning = true
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for !s.limitMemory() {
			select {
			case <-tick.C:
			case <-s.done:
				return
			case <-s.quit:
				return
			}
		}
	}()
}

// limitMemory sets the sandbox's own limit and reports whether that is done; while a save is under way it leaves it to
// that.
func (s *sandbox) limitMemory() bool {
	s.loan.mu.Lock()
	defer s.loan.mu.Unlock()
	done := true
	if s.loan.savers == 0 {
		for _, f := range slices.Backward(s.memoryFiles()) {
			done = setLimit(f, int64(s.state.Memory)) && done
		}
	}
	if done {
		s.loan.returning = false
	}
	return done
}

// setLimit reports whether the limit could be set; not every kernel counts swap.
func setLimit(path string, n int64) bool {
	err := os.WriteFile(path, strconv.AppendInt(nil, n, 10), 0)
	return err == nil || os.IsNotExist(err)
}
