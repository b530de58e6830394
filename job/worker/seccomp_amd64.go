package worker

import "golang.org/x/sys/unix"

// forkCalls are the old system calls that clone replaces.
var forkCalls = []uint32{unix.SYS_FORK, unix.SYS_VFORK}
