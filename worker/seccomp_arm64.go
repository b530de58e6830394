package worker

// forkCalls is empty: fork and vfork do not exist on this machine.
var forkCalls []uint32
