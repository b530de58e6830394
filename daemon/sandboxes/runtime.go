package sandboxes

import (
	"context"
	"os"

	"github.com/caisson-dev/caisson"
)

// Runtime is a driver of a runtime, by the parts that the core requires; [RuntimeOf] returns it. A component names what it
// uses of it.
type Runtime struct {
	caisson.Runtime
	caisson.Checkpointer
	caisson.Freezer
	caisson.HostMeter
}

// RuntimeOf returns a driver as a Runtime. What else the driver can do is found in its Runtime.Runtime.
func RuntimeOf[R interface {
	caisson.Runtime
	caisson.Checkpointer
	caisson.Freezer
	caisson.HostMeter
}](r R) Runtime {
	return Runtime{r, r, r, r}
}

// The parts of a runtime that more than one component uses.
type (
	lister interface {
		List(ctx context.Context) ([]caisson.RuntimeSandbox, error)
	}
	execer interface {
		Exec(ctx context.Context, id caisson.ID, e caisson.RuntimeExec) (caisson.Process, error)
	}
	ender interface {
		Done(id caisson.ID) <-chan struct{}
	}
	fileSaver interface {
		SaveFiles(ctx context.Context, id caisson.ID, f *os.File) error
	}
	starter interface {
		Create(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec) error
		Restore(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, dir string) error
		Destroy(ctx context.Context, id caisson.ID) error
		execer
		ender
	}
)
