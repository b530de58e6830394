package gvisor

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// WaitForMemory waits until all memory pages of a restored sandbox have been read; the sandbox is running meanwhile. Returns
// NotFound or Conflict if the sandbox stops before that.
func (r *Runtime) WaitForMemory(ctx context.Context, id caisson.ID) error {
	s, err := r.getRunning(id)
	if err != nil || !s.state.Restored {
		return err
	}
	return s.call(ctx, protocol.MethodWaitRestore, nil, nil)
}
