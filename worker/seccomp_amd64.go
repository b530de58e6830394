package worker

import "golang.org/x/sys/unix"

// forkCalls are what clone has replaced on newer machines.
var forkCalls = []uint32{unix.SYS_FORK, unix.SYS_VFORK}
