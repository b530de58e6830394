package gate

import (
	"slices"

	"github.com/caisson-dev/caisson/worker"
)

// Jobs are all jobs of the gate, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared {
	return slices.Concat(baselineJobs(), overlayJobs(), compareJobs(), checkJobs(), applyJobs())
}

type (
	baselined = baselineTool
	overlaid  = overlayTool
	compared  = compareTool
	check_    = checkTool
	applied   = applyTool
)

// A Tool runs the functions of the gate's packages as confined jobs. It has no state of its own and is safe for concurrent use. Its
// methods keep none of the descriptors they are given.
type Tool struct {
	baselined
	overlaid
	compared
	check_
	applied
}

// NewTool returns a Tool whose jobs r runs; the binary that r starts must have the jobs of the gate in its table.
func NewTool(r worker.Starter) *Tool {
	return &Tool{newBaselineTool(r), newOverlayTool(r), newCompareTool(r), newCheckTool(r), newApplyTool(r)}
}
