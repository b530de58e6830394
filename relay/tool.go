package relay

import (
	"context"

	"github.com/caisson-dev/caisson/worker"
)

// A Runner runs jobs: [*worker.Runner].
type Runner interface {
	Run(ctx context.Context, req worker.Request, reply any) error
}

// A Tool runs this package's functions as confined jobs. It has no state of its own and is safe for concurrent use; what must not
// happen at the same time is said at the methods. Its methods keep none of the descriptors they are given. Directories are opened
// for reading, and belong to one uid that nothing else of the host has.
type Tool struct {
	run Runner
}

// NewTool returns a Tool whose jobs r runs; the binary that r starts must have the jobs of this package in its table.
func NewTool(r Runner) *Tool { return &Tool{run: r} }

// A Ref is a branch or tag.
type Ref struct {
	Name   string // in full, as "refs/heads/main"
	Commit string // 40 or 64 hexadecimal digits; for annotated tags the tag object's
}
