package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/osthread"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// newEmptyNetNS returns a new network namespace without configured interfaces. All gofers share it.
func newEmptyNetNS() (*os.File, error) {
	var f *os.File
	err := osthread.Do(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			f, err = os.Open("/proc/thread-self/ns/net")
		}
		return err
	})
	return f, err
}

// idmap returns a user namespace for mounts that maps n ids, starting at uid and gid, to the ids starting at to. If n is
// greater than 1, the namespace is cached.
func (l *launcher) idmap(uid, gid, to uint32, n int) (*os.File, error) {
	key := [2]uint32{uid, to}
	// Only the maps for layers, one per account, are cached. Those for owners of mounted directories could be too many.
	cache := n > 1
	if cache {
		l.mu.Lock()
		defer l.mu.Unlock()
		if f, ok := l.idmaps[key]; ok {
			return f, nil
		}
	}
	ids := func(id uint32) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: int(id), HostID: int(to), Size: n}}
	}
	f, err := l.newUserNS(ids(uid), ids(gid))
	if err == nil && cache {
		l.idmaps[key] = f
	}
	return f, err
}

// newUserNS returns a new user namespace with the given id mappings.
func (l *launcher) newUserNS(uids, gids []syscall.SysProcIDMap) (*os.File, error) {
	// A user namespace is created with a process. The process waits for a request that is never sent, until it is killed.
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer pr.Close()
	defer pw.Close()
	cmd := exec.Command(l.exe)
	cmd.Args = []string{protocol.LaunchArg0}
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{pr}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: uids,
		GidMappings: gids,
		Pdeathsig:   unix.SIGKILL,
	}
	runtime.LockOSThread() // the kernel kills the process when the thread that started it exits
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("create a user namespace: %w", err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
}
