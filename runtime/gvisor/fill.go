package gvisor

import (
	"context"

	"gvisor.dev/gvisor/runsc/boot"

	"github.com/caisson-dev/caisson"
)

// Filled returns when a restored sandbox has all of its memory: it runs while its pages are still being read. NotFound or Conflict if
// the sandbox ends before.
func (r *Runtime) Filled(ctx context.Context, id caisson.ID) error {
	s, err := r.getRunning(id)
	if err != nil || !s.state.Restored {
		return err
	}
	return s.call(ctx, boot.ContMgrWaitRestore, nil, nil)
}
