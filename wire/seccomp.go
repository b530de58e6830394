package wire

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// allowedSyscalls is what the Go runtime and the wire process need once it is confined, most frequent first. There is no
// open, listen, exec, fork, kill, ptrace, ioctl or mount among them; accept is of use only for a socket on which the engine
// listens. clone, mmap, mprotect, socket and setsockopt are restricted further. All others fail with EPERM instead of killing the process:
// a call that a future Go runtime tries should cost what it is for, not all connections.
func allowedSyscalls() []uint32 {
	return []uint32{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT,
		unix.SYS_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_SCHED_YIELD, unix.SYS_MADVISE,
		unix.SYS_TGKILL, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGPROCMASK,
		unix.SYS_RT_SIGACTION, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL, unix.SYS_MUNMAP, unix.SYS_MINCORE,
		unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_SENDTO, unix.SYS_CONNECT, unix.SYS_BIND,
		unix.SYS_SHUTDOWN, unix.SYS_ACCEPT4,
		unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKOPT, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_FCNTL, unix.SYS_EPOLL_CTL,
		unix.SYS_GETRANDOM,
		unix.SYS_SCHED_GETAFFINITY, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
	}
}

// An option is one of a socket.
type option struct{ level, name uint32 }

// allowedOptions is what package net and we set: there must be fewer than 50, for the filter's jumps.
func allowedOptions() []option {
	return []option{
		{unix.SOL_SOCKET, unix.SO_BROADCAST}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.SOL_SOCKET, unix.SO_LINGER},
		{unix.SOL_SOCKET, unix.SO_RCVBUF}, {unix.SOL_SOCKET, unix.SO_SNDBUF},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, {unix.IPPROTO_IPV6, unix.IPV6_V6ONLY},
	}
}

// Offsets in struct seccomp_data. Arguments are 64 bits wide; their lower halves, which is where the flags are, come
// first on the little-endian machines that auditArch knows.
const (
	dataNr   = 0
	dataArch = 4
	dataArg0 = 16
	dataArg1 = 16 + 8
	dataArg2 = 16 + 2*8
)

// filterSyscalls restricts the whole process to allowedSyscalls, and says whether the kernel can do that.
func filterSyscalls() (bool, error) {
	arch := auditArch()
	if arch == 0 {
		return false, nil
	}
	prog := seccompProgram(arch)
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errno == unix.ENOSYS || errno == unix.EINVAL: // not in this kernel
		return false, nil
	case errno != 0:
		return false, errno
	case thread != 0:
		return false, errors.New("a thread could not be filtered")
	}
	return true, nil
}

// auditArch returns the kernel's name for this machine, 0 if there is no filter for it.
func auditArch() uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64
	default:
		return 0
	}
}

func seccompProgram(arch uint32) []unix.SockFilter {
	const (
		load    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		atLeast = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		anyBit  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret     = unix.BPF_RET | unix.BPF_K
		allow   = unix.SECCOMP_RET_ALLOW
		deny    = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		x32     = 0x40000000 // another numbering of the system calls of amd64, under the same architecture
	)
	p := []unix.SockFilter{
		{Code: load, K: dataArch},
		{Code: equal, K: arch, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: dataNr},
		{Code: atLeast, K: x32, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS},
	}
	for _, nr := range allowedSyscalls() {
		p = append(p, unix.SockFilter{Code: equal, K: nr, Jf: 1}, unix.SockFilter{Code: ret, K: allow})
	}
	// A thread, not a process; memory, not code.
	p = append(p,
		unix.SockFilter{Code: equal, K: unix.SYS_CLONE, Jf: 4},
		unix.SockFilter{Code: load, K: dataArg0},
		unix.SockFilter{Code: anyBit, K: unix.CLONE_THREAD, Jf: 1},
		unix.SockFilter{Code: ret, K: allow},
		unix.SockFilter{Code: ret, K: deny},
	)
	// TCP and UDP, nothing raw and no other family: not the host's unix sockets, not netlink. And no other protocol, which is
	// another kernel module for an attacker to talk to: not MPTCP, SMC, SCTP or UDP-Lite.
	const sockType = 0xf // without SOCK_CLOEXEC and SOCK_NONBLOCK
	p = append(p,
		unix.SockFilter{Code: equal, K: unix.SYS_SOCKET, Jf: 13},
		unix.SockFilter{Code: load, K: dataArg0},
		unix.SockFilter{Code: equal, K: unix.AF_INET, Jt: 1},
		unix.SockFilter{Code: equal, K: unix.AF_INET6, Jf: 9},
		unix.SockFilter{Code: load, K: dataArg1},
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: sockType},
		unix.SockFilter{Code: equal, K: unix.SOCK_STREAM, Jt: 1},
		unix.SockFilter{Code: equal, K: unix.SOCK_DGRAM, Jf: 5},
		unix.SockFilter{Code: load, K: dataArg2},
		unix.SockFilter{Code: equal, K: 0, Jt: 2},
		unix.SockFilter{Code: equal, K: unix.IPPROTO_TCP, Jt: 1},
		unix.SockFilter{Code: equal, K: unix.IPPROTO_UDP, Jf: 1},
		unix.SockFilter{Code: ret, K: allow},
		unix.SockFilter{Code: ret, K: deny},
	)
	// Only the options in use: others load filters and protocols into the kernel, or evade the host's routes.
	options := allowedOptions()
	p = append(p, unix.SockFilter{Code: equal, K: unix.SYS_SETSOCKOPT, Jf: uint8(5*len(options) + 1)})
	for _, o := range options {
		p = append(p,
			unix.SockFilter{Code: load, K: dataArg1},
			unix.SockFilter{Code: equal, K: o.level, Jf: 3},
			unix.SockFilter{Code: load, K: dataArg2},
			unix.SockFilter{Code: equal, K: o.name, Jf: 1},
			unix.SockFilter{Code: ret, K: allow},
		)
	}
	p = append(p, unix.SockFilter{Code: ret, K: deny})
	for _, nr := range []uint32{unix.SYS_MMAP, unix.SYS_MPROTECT} {
		p = append(p,
			unix.SockFilter{Code: equal, K: nr, Jf: 4},
			unix.SockFilter{Code: load, K: dataArg2},
			unix.SockFilter{Code: anyBit, K: unix.PROT_EXEC, Jt: 1},
			unix.SockFilter{Code: ret, K: allow},
			unix.SockFilter{Code: ret, K: deny},
		)
	}
	return append(p, unix.SockFilter{Code: ret, K: deny})
}
