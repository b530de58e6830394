package gate

import (
	"slices"

	"github.com/caisson-dev/caisson/worker"
)

// Jobs are all jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Job {
	return slices.Concat(ReadJobs(), PartJobs(), CheckJobs(), WriteJobs(), LayerJobs(), ArchiveJobs())
}
