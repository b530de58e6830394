// Package tool combines the worker jobs of all packages of the gate in one type.
package tool

import (
	"slices"

	"github.com/caisson-dev/caisson/job/gate/apply"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/worker"
)

// Jobs returns all worker jobs of the gate, for the table that the binary passes to [worker.Main].
func Jobs() []worker.Declared {
	return slices.Concat(baseline.Jobs(), overlay.Jobs(), compare.Jobs(), check.Jobs(), apply.Jobs())
}

// Aliases with distinct names, so that all Tool types can be embedded in one struct.
type (
	baselineTool = baseline.Tool
	overlayTool  = overlay.Tool
	compareTool  = compare.Tool
	checkTool    = check.Tool
	applyTool    = apply.Tool
)

// A Tool runs the functions of the gate's packages as confined worker jobs. It is stateless and safe for concurrent use. Its
// methods do not retain the file descriptors that are passed to them.
type Tool struct {
	baselineTool
	overlayTool
	compareTool
	checkTool
	applyTool
}

// New returns a Tool that runs its jobs with r. The binary that r starts must have the jobs of the gate in its table.
func New(r worker.Starter) *Tool {
	return &Tool{baseline.NewTool(r), overlay.NewTool(r), compare.NewTool(r), check.NewTool(r), apply.NewTool(r)}
}
