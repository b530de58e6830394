// Package tool has the jobs of all parts of the gate behind one type.
package tool

import (
	"slices"

	"github.com/caisson-dev/caisson/gate/apply"
	"github.com/caisson-dev/caisson/gate/baseline"
	"github.com/caisson-dev/caisson/gate/check"
	"github.com/caisson-dev/caisson/gate/compare"
	"github.com/caisson-dev/caisson/gate/overlay"
	"github.com/caisson-dev/caisson/worker"
)

// Jobs are all jobs of the gate, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared {
	return slices.Concat(baseline.Jobs(), overlay.Jobs(), compare.Jobs(), check.Jobs(), apply.Jobs())
}

// Names under which the embedded types do not hide one another.
type (
	baselineTool = baseline.Tool
	overlayTool  = overlay.Tool
	compareTool  = compare.Tool
	checkTool    = check.Tool
	applyTool    = apply.Tool
)

// A Tool runs the functions of the gate's packages as confined jobs. It has no state of its own and is safe for concurrent use. Its
// methods keep none of the descriptors they are given.
type Tool struct {
	baselineTool
	overlayTool
	compareTool
	checkTool
	applyTool
}

// New returns a Tool whose jobs r runs; the binary that r starts must have the jobs of the gate in its table.
func New(r worker.Starter) *Tool {
	return &Tool{baseline.NewTool(r), overlay.NewTool(r), compare.NewTool(r), check.NewTool(r), apply.NewTool(r)}
}
