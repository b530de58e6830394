package worker

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/confine"
)

// deniedSyscalls are system calls that jobs do not need and that are common in attacks on kernels. They fail with EPERM. Jobs
// with programs are allowed execve and execveat.
var deniedSyscalls = []uint32{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
	unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_OPEN, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2,
	unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_BPF, unix.SYS_USERFAULTFD, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_SETUID, unix.SYS_SETGID,
	unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETGROUPS, unix.SYS_CAPSET,
	unix.SYS_PERSONALITY, unix.SYS_SECCOMP, unix.SYS_FANOTIFY_INIT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG, unix.SYS_REBOOT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_KCMP, unix.SYS_MBIND, unix.SYS_MOVE_PAGES,
}

// newNamespaces are the flags of clone that create namespaces.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET

// syscallFilter returns the filter for all threads of a job, which new processes inherit. Without programs, a job may start
// threads, but no processes and no programs; with programs, it may start both, but not in new namespaces. The only sockets are
// internet sockets for jobs with network, and stream sockets for jobs with programs. All other deniedSyscalls are denied to every
// job.
func syscallFilter(network bool, programs *layout) confine.Filter {
	clone := confine.Test{Arg: 0, AnyBit: unix.CLONE_THREAD}
	var sockets []confine.Rule
	calls := slices.Concat([]uint32{unix.SYS_SOCKETPAIR, unix.SYS_SOCKET}, deniedSyscalls, forkCalls)
	switch {
	case programs != nil:
		clone = confine.Test{Arg: 0, NoBit: newNamespaces}
		sockets = []confine.Rule{allowStreams(unix.SYS_SOCKET, programs.Unix), allowStreams(unix.SYS_SOCKETPAIR, true)}
		calls = slices.DeleteFunc(slices.Clone(deniedSyscalls), func(nr uint32) bool { return nr == unix.SYS_EXECVE || nr == unix.SYS_EXECVEAT })
		calls = append(calls, unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET) // programs could execute files in memory
	case network: // no unix sockets: daemons of this host listen on them
		inet := confine.Test{Arg: 0, Is: []uint32{unix.AF_INET, unix.AF_INET6}}
		sockets = []confine.Rule{{Calls: []uint32{unix.SYS_SOCKET}, AnyOf: [][]confine.Test{{inet}}}}
		calls = slices.Concat([]uint32{unix.SYS_SOCKETPAIR}, deniedSyscalls, forkCalls)
	}
	return confine.Filter{AllowOthers: true, Rules: slices.Concat([]confine.Rule{
		// The flags of clone3 are in memory, where a filter cannot check them. On ENOSYS, programs use clone.
		{Calls: []uint32{unix.SYS_CLONE3}, Else: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Calls: []uint32{unix.SYS_CLONE}, AnyOf: [][]confine.Test{{clone}}},
	}, sockets, []confine.Rule{{Calls: calls}})}
}

// allowStreams allows call, which is socket or socketpair, to create TCP sockets and, if local, unix stream sockets. The code of
// other protocols in the kernel cannot be reached.
func allowStreams(call uint32, local bool) confine.Rule {
	family := confine.Test{Arg: 0, Is: []uint32{unix.AF_INET, unix.AF_INET6}, Deny: []uint32{unix.AF_UNIX}}
	if local {
		family.Allow, family.Deny = family.Deny, nil
	}
	return confine.Rule{Calls: []uint32{call}, AnyOf: [][]confine.Test{{
		{Arg: 1, Mask: 0xf, Is: []uint32{unix.SOCK_STREAM}}, // the other bits of the argument are flags
		family,
		{Arg: 2, Is: []uint32{0, unix.IPPROTO_TCP}},
	}}}
}
