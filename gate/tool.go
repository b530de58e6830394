package gate

import (
	"context"

	"github.com/caisson-dev/caisson/worker"
)

// A Runner runs jobs: [*worker.Runner].
type Runner interface {
	Run(ctx context.Context, req worker.Request, reply any) error
}

// A Tool runs this package's functions as confined jobs. It has no state of its own and is safe for concurrent use. Its methods
// keep none of the descriptors they are given.
type Tool struct {
	run Runner
}

// NewTool returns a Tool whose jobs r runs; the binary that r starts must have the jobs of this package in its table.
func NewTool(r Runner) *Tool { return &Tool{run: r} }
