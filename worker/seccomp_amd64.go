package worker

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// forkCalls are what clone has replaced on newer machines.
var forkCalls = []uint32{unix.SYS_FORK, unix.SYS_VFORK}
