package gvisor

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// killOrphans kills and reaps the processes that a failed launcher has left behind. launcher is its PID, and dir the runtime's
// directory of the sandbox. The processes are children of this process, because it is a subreaper, but os/exec does not reap
// them.
func (l *launcher) killOrphans(launcher int, dir string, uidBase uint32) {
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

// isOrphan reports whether a child that has left its launcher's session is a starting process of the sandbox.
func isOrphan(pid int, st stat, dir string, uidBase uint32) bool {
	proc := "/proc/" + strconv.Itoa(pid)
	cmdline, err := os.ReadFile(proc + "/cmdline")
	switch {
	case err != nil:
		return false
	case len(cmdline) == 0: // The process has exited, so only its owner can still be read.
		var owner unix.Stat_t
		return unix.Stat(proc, &owner) == nil && owner.Uid >= uidBase && owner.Uid-uidBase < caisson.UIDRange
	case strings.HasPrefix(string(cmdline), protocol.LaunchArg0):
		// The launcher has forked the process, which has not called exec yet. Other children of the daemon with these arguments
		// are excluded: launchers are in the daemon's user namespace, and those that create user namespaces are in its session.
		ours, err := os.Readlink("/proc/self/ns/user")
		theirs, err2 := os.Readlink(proc + "/ns/user")
		return err == nil && err2 == nil && ours != theirs && st.session == pid
	}
	return strings.Contains(string(cmdline), dir+"/")
}
