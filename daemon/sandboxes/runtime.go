package sandboxes

import (
	"context"
	"os"

	"github.com/caisson-dev/caisson"
)

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
