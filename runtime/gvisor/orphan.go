package gvisor

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/sentry"
)

// endOrphans kills and reaps what a launcher has left that ended before its time: processes that it had forked, but that
// had not become gVisor's yet (those have their directory in their arguments, and Destroy finds them), or that have ended
// for want of it. They are this process's children, as it is a subreaper, but not of os/exec's, which would wait for them.
func (r *Runtime) endOrphans(launcher int, uidBase uint32) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	self := os.Getpid()
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		st, err := readStat(pid)
		if err != nil || st.parent != self || !isOrphan(pid, st, launcher, uidBase) {
			continue
		}
		if r.watch.add(pid, nil) == nil {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// isOrphan reports whether a child comes from that launcher: it is still in the launcher's session, or has gone on to
// be one of the account's, where it is either dead or not executed yet.
func isOrphan(pid int, st stat, launcher int, uidBase uint32) bool {
	if st.session == launcher {
		return true
	}
	var owner unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &owner); err != nil || owner.Uid < uidBase || owner.Uid-uidBase >= caisson.UIDRange {
		return false
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && (st.state == 'Z' || strings.HasPrefix(string(cmdline), sentry.LaunchArg0))
}
