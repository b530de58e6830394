package worker

// forkCalls is empty: arm64 has no fork and vfork.
var forkCalls []uint32
