package worker

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// forbiddenHere is empty: fork and vfork do not exist on this machine.
var forbiddenHere []uint32
