package gvisor

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/sentry"
)

// endOrphans kills and reaps what a launcher has left that ended before its time. They are this process's children, as it
// is a subreaper, but not of os/exec's, which would wait for them. dir is the sandbox's.
func (l *launcher) endOrphans(launcher int, dir string, uidBase uint32) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	self := os.Getpid()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		st, err := readStat(pid)
		if err != nil || st.parent != self || (st.session != launcher && !isOrphan(pid, st, dir, uidBase)) {
			continue
		}
		if l.watch.add(pid, nil) == nil {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// isOrphan reports whether a child that has left its launcher's session was on its way to be a process of the sandbox's.
func isOrphan(pid int, st stat, dir string, uidBase uint32) bool {
	proc := "/proc/" + strconv.Itoa(pid)
	cmdline, err := os.ReadFile(proc + "/cmdline")
	switch {
	case err != nil:
		return false
	case len(cmdline) == 0: // it has ended; all that is left to tell is whose it was
		var owner unix.Stat_t
		return unix.Stat(proc, &owner) == nil && owner.Uid >= uidBase && owner.Uid-uidBase < caisson.UIDRange
	case strings.HasPrefix(string(cmdline), sentry.LaunchArg0):
		// Forked by the launcher, and not executed yet. Launchers of our own are in our user namespace, or in our session.
		ours, err := os.Readlink("/proc/self/ns/user")
		theirs, err2 := os.Readlink(proc + "/ns/user")
		return err == nil && err2 == nil && ours != theirs && st.session == pid
	}
	return strings.Contains(string(cmdline), dir+"/")
}
