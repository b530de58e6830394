package gvisor

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"gvisor.dev/gvisor/runsc/cgroup"

	"github.com/caisson-dev/caisson/internal/meminfo"
)

// lendMemory raises the sandbox's memory limit while its main process saves files: gVisor reads each file whole into memory
// for that, and a file that fits its disk need not fit its memory. At most as much is lent as the disk limit allows files to
// be, and half of what the host has available. giveBack restores the limit as
// soon as that is possible.
func (s *sandbox) lendMemory() (giveBack func()) {
	available, err := meminfo.Available()
	extra := min(s.saveLimit()-saveSlack, int64(available)/2)
	if err != nil || extra <= 0 || s.state.Memory == 0 {
		return func() {}
	}
	g, err := s.group()
	if err != nil {
		return func() {}
	}
	dir := g.MakePath("memory")
	files := []string{"memory.memsw.limit_in_bytes", "memory.limit_in_bytes"} // raised in this order, lowered in the other
	if cgroup.IsOnlyV2() {
		files = []string{"memory.max"}
	}
	limit := int64(s.state.Memory)
	for _, f := range files {
		setLimit(filepath.Join(dir, f), limit+extra)
	}
	lower := func() bool {
		ok := true
		for _, f := range slices.Backward(files) {
			ok = setLimit(filepath.Join(dir, f), limit) && ok
		}
		return ok
	}
	return func() {
		if !lower() {
			go s.lowerLater(lower)
		}
	}
}

// lowerLater tries until it succeeds or the sandbox or this Runtime ends. The kernel refuses while more is in use, and the
// main process gives back what it needed only with its next garbage collections, within minutes.
func (s *sandbox) lowerLater(lower func() bool) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !lower() {
		select {
		case <-tick.C:
		case <-s.done:
			return
		case <-s.quit:
			return
		}
	}
}

// setLimit reports whether the limit could be set; not every kernel counts swap.
func setLimit(path string, n int64) bool {
	err := os.WriteFile(path, strconv.AppendInt(nil, n, 10), 0)
	return err == nil || os.IsNotExist(err)
}
