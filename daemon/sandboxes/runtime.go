package sandboxes

import (
	"context"
	"os"

	"github.com/caisson-dev/caisson"
)

// Runtime combines the interfaces of a runtime driver that the core requires; [RuntimeOf] returns one. Each component declares a
// smaller interface with the methods that it uses.
type Runtime struct {
	caisson.Runtime
	caisson.Checkpointer
	caisson.Freezer
	caisson.HostMeter
	caisson.Dialer
}

// RuntimeOf returns a driver as a Runtime. Optional interfaces of the driver are found by a type assertion on the field Runtime.
func RuntimeOf[R interface {
	caisson.Runtime
	caisson.Checkpointer
	caisson.Freezer
	caisson.HostMeter
	caisson.Dialer
}](r R) Runtime {
	return Runtime{r, r, r, r, r}
}

// The parts of a runtime that more than one component uses.
type (
	// lister lists the sandboxes of the runtime.
	lister interface {
		List(ctx context.Context) ([]caisson.RuntimeSandbox, error) // returns all sandboxes of the data directory
	}
	// execer starts processes in sandboxes.
	execer interface {
		Exec(ctx context.Context, id caisson.ID, e caisson.RuntimeExec) (caisson.Process, error) // starts a process in a sandbox
	}
	// doneReporter returns a channel that is closed when a sandbox has ended.
	doneReporter interface {
		Done(id caisson.ID) <-chan struct{} // the channel is closed already if no such sandbox runs
	}
	// fileSaver writes the changes to a sandbox's root file system to a file.
	fileSaver interface {
		SaveFiles(ctx context.Context, id caisson.ID, f *os.File) error // writes the changes to f as a tar archive
	}
	// starter creates, restores and destroys sandboxes, and starts processes in them.
	starter interface {
		Create(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec) error              // creates and starts a sandbox
		Restore(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, dir string) error // restores the checkpoint in dir
		Destroy(ctx context.Context, id caisson.ID) error                                       // removes a sandbox from the host
		execer
		doneReporter
	}
)
