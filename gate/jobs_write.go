package gate

import (
	"context"
	"errors"
	"os"

	"github.com/caisson-dev/caisson/worker"
)

// Names of the jobs that write.
const (
	jobApply   = "gate.apply"
	jobRecover = "gate.recover"
	jobUndo    = "gate.undo"
)

// WriteJobs are the jobs that change a host's directory, which is their root; they run as [worker.WriteAsOwner]. Their first
// descriptor is the directory for what is saved. Apply reads the plan from its input and contents from its second one.
func WriteJobs() []worker.Job {
	return []worker.Job{
		{Name: jobApply, Run: func(ctx context.Context, c *worker.Call) (any, error) {
			frozen, err := c.File(1)
			if err != nil {
				return nil, err
			}
			plan, err := DecodePlan(c.Input())
			if err != nil {
				return nil, err
			}
			all, err := openFrozenContents(frozen)
			if err != nil {
				return nil, err
			}
			defer all.close()
			return runWrite(c, func(host, saved *os.File) (Outcome, error) { return Apply(ctx, host, saved, plan, all.open) })
		}},
		{Name: jobRecover, Run: func(ctx context.Context, c *worker.Call) (any, error) {
			return runWrite(c, func(host, saved *os.File) (Outcome, error) { return Recover(ctx, host, saved) })
		}},
		{Name: jobUndo, Run: func(ctx context.Context, c *worker.Call) (any, error) {
			return runWrite(c, func(host, saved *os.File) (Outcome, error) { return Undo(ctx, host, saved) })
		}},
	}
}

// writeReply is what a job that writes answers. Paths are bounded by [Outcome] and [Moved].
type writeReply struct {
	Outcome Outcome
	Moved   *Moved
}

func runWrite(c *worker.Call, do func(host, saved *os.File) (Outcome, error)) (any, error) {
	saved, err := c.File(0)
	if err != nil {
		return nil, err
	}
	host, err := os.Open("/")
	if err != nil {
		return nil, err
	}
	defer host.Close()
	out, err := do(host, saved)
	if moved, ok := errors.AsType[*Moved](err); ok {
		return writeReply{Outcome: out, Moved: moved}, nil
	}
	return writeReply{Outcome: out}, err
}
