package worker

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// forbiddenHere are calls that newer machines never had.
var forbiddenHere = []uint32{unix.SYS_FORK, unix.SYS_VFORK}
