package apply

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/worker"
)

// Jobs returns the worker jobs of this package, for the table that the binary passes to [worker.Main].
func Jobs() []worker.Declared {
	return []worker.Declared{jobApply, jobRecover, jobUndo, jobLayer}
}

// writeReply is the reply of a job that changes the host's directory. Each of its two lists of paths has at most maxPaths
// elements.
type writeReply struct {
	Outcome Outcome     // how the apply or undo ended
	Moved   *gate.Moved // the paths whose unexpected states are the cause of a Conflict error; nil for other results
}

// writeJob declares a job that changes the host's directory, the root of the job, with the rights of the directory's owner. files
// is the number of the job's file descriptors; the first one is the directory for the originals and the journals.
func writeJob(name string, files int, do func(ctx context.Context, c *worker.Call, saved *os.File) (Outcome, error)) worker.Job[worker.None, writeReply] {
	return worker.Job[worker.None, writeReply]{
		Name: name, Root: true, Files: files, Access: worker.WriteAsOwner,
		Do: func(ctx context.Context, c *worker.Call, _ worker.None) (writeReply, error) {
			out, err := do(ctx, c, c.Files[0])
			if moved, ok := errors.AsType[*gate.Moved](err); ok {
				return writeReply{Outcome: out, Moved: moved}, nil
			}
			return writeReply{Outcome: out}, err
		},
		Valid: func(_ worker.None, r *writeReply) bool {
			return slices.Contains([]string{None, Applied, RolledBack, Undone}, r.Outcome.State)
		},
	}
}

var (
	// jobApply applies the plan in its input to its root; see [Apply]. The contents are in its second descriptor, a frozen copy.
	jobApply = writeJob("gate.apply", 2, func(ctx context.Context, c *worker.Call, saved *os.File) (Outcome, error) {
		plan, err := gate.DecodePlan(c.Input())
		if err != nil {
			return Outcome{}, err
		}
		all, err := overlay.OpenContents(c.Files[1])
		if err != nil {
			return Outcome{}, err
		}
		defer all.Close()
		return Apply(ctx, c.Root, saved, plan, all.Open)
	})
	// jobRecover completes or rolls back an unfinished apply or undo of its root, the host's directory; see [Recover].
	jobRecover = writeJob("gate.recover", 1, func(ctx context.Context, c *worker.Call, saved *os.File) (Outcome, error) {
		return Recover(ctx, c.Root, saved)
	})
	// jobUndo reverts the changes of an apply to its root, the host's directory; see [Undo].
	jobUndo = writeJob("gate.undo", 1, func(ctx context.Context, c *worker.Call, saved *os.File) (Outcome, error) {
		return Undo(ctx, c.Root, saved)
	})
)

// RunApply applies plan to host, the directory for which it was made, in a worker job; see [Apply]. saved is the directory for
// the journal and the originals of this apply, for recovery and undo; it belongs to the owner of host, and only that user can
// access it. frozen is the directory of the frozen copy with the new contents; that user can read it. If the job fails or ctx
// is canceled, a second job runs [Recover]. The outcome is unknown only if the second job fails as well.
func RunApply(ctx context.Context, run worker.Starter, host, saved, frozen *os.File, plan *gate.Plan) (Outcome, error) {
	text, err := plan.Input()
	if err != nil {
		return Outcome{}, err
	}
	out, err := runWriteJob(ctx, run, jobApply, worker.RunInput{Root: host, Files: []*os.File{saved, frozen}, Input: text})
	return settle(ctx, run, host, saved, out, err, Applied)
}

// RunUndo reverts an apply to host, in a worker job; see [Undo]. saved is the directory with the journal and the originals of
// that apply. If the job fails or ctx is canceled, a second job runs [Recover].
func RunUndo(ctx context.Context, run worker.Starter, host, saved *os.File) (Outcome, error) {
	out, err := runWriteJob(ctx, run, jobUndo, worker.RunInput{Root: host, Files: []*os.File{saved}})
	return settle(ctx, run, host, saved, out, err, Undone)
}

// RunRecover completes or rolls back an apply or undo of host that was interrupted, in a worker job. saved has its journal.
func RunRecover(ctx context.Context, run worker.Starter, host, saved *os.File) (Outcome, error) {
	return runWriteJob(ctx, run, jobRecover, worker.RunInput{Root: host, Files: []*os.File{saved}})
}

// runWriteJob runs a job that writeJob has declared. It returns a Conflict with a [*gate.Moved] if the job has reported one.
func runWriteJob(
	ctx context.Context, run worker.Starter, job worker.Job[worker.None, writeReply], given worker.RunInput,
) (Outcome, error) {
	reply, err := job.Run(ctx, run, worker.None{}, given)
	if err != nil {
		return Outcome{}, err
	}
	// The job is untrusted, so the lengths of the lists in its reply are limited again.
	out := reply.Outcome
	out.LeftInPlace = out.LeftInPlace[:min(len(out.LeftInPlace), maxPaths)]
	if m := reply.Moved; m != nil {
		m.Paths = m.Paths[:min(len(m.Paths), maxPaths)]
		return out, m.Conflict()
	}
	return out, nil
}

// settle returns the outcome of a job that has returned out and err. If the job failed and may not have rolled back, for example
// because it was killed, settle runs [Recover], and returns no error if the state is then want, the state after success.
func settle(ctx context.Context, run worker.Starter, host, saved *os.File, out Outcome, err error, want string) (Outcome, error) {
	if k := caisson.KindOf(err); err == nil || k == caisson.Conflict || k == caisson.Invalid {
		return out, err // the job has succeeded, or has rolled back before it returned err
	}
	out, rerr := RunRecover(context.WithoutCancel(ctx), run, host, saved)
	switch {
	case rerr != nil:
		return Outcome{}, caisson.Wrap(errors.Join(err, rerr), caisson.Internal,
			"it is not known whether the changes were applied; that is found out, and taken back if need be, the next time")
	case out.State == want:
		return out, nil
	}
	return out, err
}

// jobLayer writes the plan in its input to its root, the layer. Its file descriptors are the manifest and the frozen copy.
var jobLayer = worker.Job[worker.None, worker.None]{
	Name: "gate.layer", Root: true, Files: 2, Access: worker.WriteAsOwner, Limits: fsat.ReadLimits,
	Do: func(ctx context.Context, c *worker.Call, none worker.None) (worker.None, error) {
		plan, err := gate.DecodePlan(c.Input())
		if err != nil {
			return none, err
		}
		all, err := overlay.OpenContents(c.Files[1])
		if err != nil {
			return none, err
		}
		defer all.Close()
		return none, Layer(ctx, plan, c.Files[0], c.Root, all.Open)
	},
}

// RunLayer writes plan into the empty directory layer as the upper layer of an overlay, in a worker job with the rights of the
// guest's root user, who owns layer; see [Layer]. frozen is the directory of the frozen copy with the contents of plan.
func RunLayer(ctx context.Context, run worker.Starter, manifest, frozen, layer *os.File, plan *gate.Plan) error {
	text, err := plan.Input()
	if err != nil {
		return err
	}
	_, err = jobLayer.Run(ctx, run, worker.None{}, worker.RunInput{Root: layer, Files: []*os.File{manifest, frozen}, Input: text})
	return err
}
