// Package workertest provides tests with a runner of worker jobs.
package workertest

import (
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testbin"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/worker"
)

// Runner returns a runner that executes worker jobs with the binary of caisson-worker. It skips the test if the test does not
// run as root.
func Runner(t testing.TB) *worker.Runner {
	t.Helper()
	testneed.Root(t)
	r, err := worker.New(worker.Config{Exe: testbin.Path(t, "caisson-worker"), UIDBase: caisson.LayerUIDBase, WorkUID: worker.DefaultUID})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
