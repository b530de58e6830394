package worker

import (
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbidden is what no job needs and what attacks on kernels are made of; the call fails with EPERM.
var forbidden = []uint32{
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

// Offsets in struct seccomp_data (little-endian machines only, which is what Go runs gVisor on).
const (
	offNr   = 0
	offArch = 4
	offArg0 = 16
)

// filterSyscalls installs a seccomp filter on all threads, which new processes inherit: no new programs and processes (threads
// are allowed) unless the job has programs, and then none in namespaces of their own; no sockets but those of the internet, and
// those only with network, or streams, and those only with programs; nothing from forbidden.
func filterSyscalls(network bool, programs *layout) error {
	prog := slices.Concat(wrongMachine(), clones(programs != nil))
	var calls []uint32
	switch {
	case programs != nil:
		prog = slices.Concat(prog, streams(unix.SYS_SOCKET, programs.Unix), streams(unix.SYS_SOCKETPAIR, true))
		calls = slices.DeleteFunc(slices.Clone(forbidden), func(nr uint32) bool { return nr == unix.SYS_EXECVE || nr == unix.SYS_EXECVEAT })
		calls = append(calls, unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET) // files in memory could be executed
	case network:
		prog = append(prog, internet()...)
		calls = slices.Concat([]uint32{unix.SYS_SOCKETPAIR}, forbidden, forkCalls)
	default:
		calls = slices.Concat([]uint32{unix.SYS_SOCKETPAIR, unix.SYS_SOCKET}, forbidden, forkCalls)
	}
	for _, nr := range calls {
		prog = append(prog, jump(unix.BPF_JEQ, nr, 0, 1), stmt(ret, deny(unix.EPERM)))
	}
	prog = append(prog, stmt(ret, unix.SECCOMP_RET_ALLOW))

	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return errno
	}
	if r != 0 {
		return unix.ESRCH // a thread could not take the filter over
	}
	return nil
}

// The parts of a filter. The accumulator has the number of the call at their begin, and at their end unless they have returned.
const load, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_RET | unix.BPF_K

func stmt(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

// jump compares with k and skips jt instructions if that is so, else jf.
func jump(op uint16, k uint32, jt, jf uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | op, K: k, Jt: jt, Jf: jf}
}

func deny(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

// wrongMachine kills who calls the kernel in a way that this filter does not understand.
func wrongMachine() []unix.SockFilter {
	return []unix.SockFilter{
		stmt(load, offArch),
		jump(unix.BPF_JEQ, auditArch, 1, 0),
		stmt(ret, unix.SECCOMP_RET_KILL_PROCESS),
		stmt(load, offNr),
		// Numbers from here on are those of x32 on amd64, and of nothing elsewhere.
		jump(unix.BPF_JGE, 0x40000000, 0, 1),
		stmt(ret, unix.SECCOMP_RET_KILL_PROCESS),
	}
}

// newNamespaces are the flags of clone that make namespaces.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET

// clones allows new threads, and with processes those without namespaces of their own.
func clones(processes bool) []unix.SockFilter {
	flags := jump(unix.BPF_JSET, unix.CLONE_THREAD, 1, 0)
	if processes {
		flags = jump(unix.BPF_JSET, newNamespaces, 0, 1)
	}
	return []unix.SockFilter{
		// The flags of clone3 are in memory; told that it is missing, everybody uses clone.
		jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1),
		stmt(ret, deny(unix.ENOSYS)),
		jump(unix.BPF_JEQ, unix.SYS_CLONE, 0, 4),
		stmt(load, offArg0),
		flags,
		stmt(ret, deny(unix.EPERM)),
		stmt(ret, unix.SECCOMP_RET_ALLOW),
	}
}

// internet allows sockets of the internet, but not those that daemons of this host listen on.
func internet() []unix.SockFilter {
	return []unix.SockFilter{
		jump(unix.BPF_JEQ, unix.SYS_SOCKET, 0, 5),
		stmt(load, offArg0),
		jump(unix.BPF_JEQ, unix.AF_INET, 2, 0),
		jump(unix.BPF_JEQ, unix.AF_INET6, 1, 0),
		stmt(ret, deny(unix.EPERM)),
		stmt(ret, unix.SECCOMP_RET_ALLOW),
	}
}

// streams allows call, socket or socketpair, to make TCP and perhaps unix streams: no other protocol's code can be reached.
func streams(call uint32, local bool) []unix.SockFilter {
	refuse := uint8(5)
	if local {
		refuse++
	}
	return []unix.SockFilter{
		jump(unix.BPF_JEQ, call, 0, 12),
		stmt(load, offArg0+8),
		stmt(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, 0xf), // the rest are flags
		jump(unix.BPF_JEQ, unix.SOCK_STREAM, 0, 7),
		stmt(load, offArg0),
		jump(unix.BPF_JEQ, unix.AF_UNIX, refuse, 0),
		jump(unix.BPF_JEQ, unix.AF_INET, 1, 0),
		jump(unix.BPF_JEQ, unix.AF_INET6, 0, 3),
		stmt(load, offArg0+16),
		jump(unix.BPF_JEQ, 0, 2, 0),
		jump(unix.BPF_JEQ, unix.IPPROTO_TCP, 1, 0),
		stmt(ret, deny(unix.EPERM)),
		stmt(ret, unix.SECCOMP_RET_ALLOW),
	}
}
