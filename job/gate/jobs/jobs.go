// Package jobs lists the worker jobs of all packages of the gate (see package gate).
package jobs

import (
	"slices"

	"github.com/caisson-dev/caisson/job/gate/apply"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/worker"
)

// All returns all worker jobs of the gate, for the table that the binary passes to [worker.Main].
func All() []worker.Declared {
	return slices.Concat(baseline.Jobs(), compare.Jobs(), apply.Jobs(), []worker.Declared{overlay.Job, check.Job})
}
