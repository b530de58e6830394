package wire

import (
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/confine"
)

// allowedSyscalls returns the system calls that the Go runtime and the wire process need after confinement, most frequent first.
// open, listen, exec, fork, kill, ptrace, ioctl and mount are not among them; accept is of use only for a socket on which the
// engine listens. clone, mmap, mprotect, socket and setsockopt are restricted further. All other system calls fail with EPERM
// instead of killing the process: a call that a future Go runtime adds then disables one feature and does not break all
// connections.
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

// A socketOption identifies a socket option, as setsockopt(2) does.
type socketOption struct{ level, name uint32 }

// allowedOptions returns the options that package net and this package set. There must be fewer than 50, because of the range of
// the filter's jumps.
func allowedOptions() []socketOption {
	return []socketOption{
		{unix.SOL_SOCKET, unix.SO_BROADCAST}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.SOL_SOCKET, unix.SO_LINGER},
		{unix.SOL_SOCKET, unix.SO_RCVBUF}, {unix.SOL_SOCKET, unix.SO_SNDBUF},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, {unix.IPPROTO_IPV6, unix.IPV6_V6ONLY},
	}
}

// syscallFilter restricts the whole process to allowedSyscalls.
func syscallFilter() confine.Filter {
	var options [][]confine.Test
	for _, o := range allowedOptions() {
		options = append(options, []confine.Test{{Arg: 1, Is: []uint32{o.level}}, {Arg: 2, Is: []uint32{o.name}}})
	}
	return confine.Filter{Rules: []confine.Rule{
		{Calls: allowedSyscalls(), Else: unix.SECCOMP_RET_ALLOW},
		// clone may create threads but not processes. mmap and mprotect, below, may not make memory executable.
		{Calls: []uint32{unix.SYS_CLONE}, AnyOf: [][]confine.Test{{{Arg: 0, AnyBit: unix.CLONE_THREAD}}}},
		// Only TCP and UDP sockets are allowed: no raw sockets and no other family, so neither the host's unix sockets nor
		// netlink. No other protocol (MPTCP, SMC, SCTP, UDP-Lite), because each exposes another kernel module to an attacker.
		{Calls: []uint32{unix.SYS_SOCKET}, AnyOf: [][]confine.Test{{
			{Arg: 0, Is: []uint32{unix.AF_INET, unix.AF_INET6}},
			{Arg: 1, Mask: 0xf, Is: []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM}}, // ignores SOCK_CLOEXEC and SOCK_NONBLOCK
			{Arg: 2, Is: []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}},
		}}},
		// Only the socket options in use are allowed: others load filters and protocols into the kernel, or bypass the host's
		// routes.
		{Calls: []uint32{unix.SYS_SETSOCKOPT}, AnyOf: options},
		{Calls: []uint32{unix.SYS_MMAP, unix.SYS_MPROTECT}, AnyOf: [][]confine.Test{{{Arg: 2, NoBit: unix.PROT_EXEC}}}},
	}}
}
