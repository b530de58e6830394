package gvisor

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Written returns the disk space on the host that a sandbox's changes to its root file system use. gVisor stores them in an
// unlinked file, so Written searches the open files of the sentry for it. Returns NotFound if the sandbox does not exist,
// and Conflict if it does not run.
func (r *Runtime) Written(id caisson.ID) (caisson.Size, error) {
	s, err := r.getRunning(id)
	if err != nil {
		return 0, err
	}
	var dir unix.Stat_t
	if err := unix.Stat(filepath.Join(s.dir, fsDir), &dir); err != nil {
		return 0, &os.PathError{Op: "stat", Path: filepath.Join(s.dir, fsDir), Err: err}
	}
	open := fmt.Sprintf("/proc/%d/fd", s.state.Main.PID)
	list, err := os.ReadDir(open)
	if err != nil {
		return 0, err
	}
	var blocks int64
	seen := map[uint64]bool{}
	for _, fd := range list {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(open, fd.Name()), &st) != nil {
			continue // the descriptor was closed after ReadDir
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0 && st.Dev == dir.Dev && !seen[st.Ino] {
			seen[st.Ino] = true
			blocks += st.Blocks
		}
	}
	if !s.state.Main.alive() {
		return 0, caisson.Errorf(caisson.Conflict, "sandbox %s has ended", id)
	}
	return caisson.Size(blocks * 512), nil
}
