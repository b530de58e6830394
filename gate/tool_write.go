package gate

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/worker"
)

// Apply is [Apply] as a job. host is the directory as it was when its changes were reviewed; saved belongs to the same user, who
// alone may get at it; frozen is what [Freeze] has written, and is readable for that user. If the job breaks down or
// ctx ends, another job recovers, and only if that fails is anything left to be done.
func (t *Tool) Apply(ctx context.Context, host, saved, frozen *os.File, plan *Plan) (Outcome, error) {
	if err := plan.Validate(); err != nil {
		return Outcome{}, err
	}
	var text bytes.Buffer
	if err := plan.Encode(&text); err != nil {
		return Outcome{}, err
	}
	out, err := t.write(ctx, worker.Request{Job: jobApply, Root: host, Files: []*os.File{saved, frozen}, Input: &text})
	return t.settle(ctx, host, saved, out, err, OutcomeApplied)
}

// Undo is [Undo] as a job. What breaks down is recovered as in [Tool.Apply].
func (t *Tool) Undo(ctx context.Context, host, saved *os.File) (Outcome, error) {
	out, err := t.write(ctx, worker.Request{Job: jobUndo, Root: host, Files: []*os.File{saved}})
	return t.settle(ctx, host, saved, out, err, OutcomeUndone)
}

// Recover is [Recover] as a job.
func (t *Tool) Recover(ctx context.Context, host, saved *os.File) (Outcome, error) {
	return t.write(ctx, worker.Request{Job: jobRecover, Root: host, Files: []*os.File{saved}})
}

func (t *Tool) write(ctx context.Context, req worker.Request) (Outcome, error) {
	req.Access = worker.WriteAsOwner
	var reply writeReply
	if err := t.run.Run(ctx, req, &reply); err != nil {
		return Outcome{}, err
	}
	// Jobs are not believed: what they say is bounded here, too.
	out := Outcome{State: reply.Outcome.State, Kept: reply.Outcome.Kept[:min(len(reply.Outcome.Kept), maxPaths)]}
	if !slices.Contains([]string{OutcomeNone, OutcomeApplied, OutcomeRolledBack, OutcomeUndone}, out.State) {
		return Outcome{}, caisson.Errorf(caisson.Internal, "a job of the gate answered nonsense")
	}
	if m := reply.Moved; m != nil {
		m.Paths = m.Paths[:min(len(m.Paths), maxPaths)]
		return out, m.conflict()
	}
	return out, nil
}

// settle finds out what became of a job that answered with err, which may be that it was killed, and ends what it has begun.
func (t *Tool) settle(ctx context.Context, host, saved *os.File, out Outcome, err error, want string) (Outcome, error) {
	if k := caisson.KindOf(err); err == nil || k == caisson.Conflict || k == caisson.Invalid {
		return out, err // the job has said so itself, after it had taken everything back
	}
	out, rerr := t.Recover(context.WithoutCancel(ctx), host, saved)
	switch {
	case rerr != nil:
		return Outcome{}, caisson.Wrap(errors.Join(err, rerr), caisson.Internal,
			"it is not known whether the changes were applied; that is found out, and taken back if need be, the next time")
	case out.State == want:
		return out, nil
	}
	return out, err
}
