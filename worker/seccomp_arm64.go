package worker

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// forkCalls is empty: fork and vfork do not exist on this machine.
var forkCalls []uint32
