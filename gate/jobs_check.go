package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/worker"
)

// jobCheck is the name of the job that checks.
const jobCheck = "gate.check"

// CheckJobs are the jobs that check changes. Their root is the host's directory. Rules and changes come from their input as JSON,
// one after the other; what was found goes to the first descriptor in the same way; the second one is the frozen copy.
func CheckJobs() []worker.Job {
	return []worker.Job{{Name: jobCheck, Run: runCheck}}
}

// checked is what the job says of one change.
type checked struct {
	Verdict  string
	Findings []caisson.Finding
}

// checkReply is what the job answers.
type checkReply struct{ Changes int }

func runCheck(ctx context.Context, c *worker.Call) (any, error) {
	out, err := c.File(0)
	if err != nil {
		return nil, err
	}
	dir, err := c.File(1)
	if err != nil {
		return nil, err
	}
	in := json.NewDecoder(bufio.NewReaderSize(c.Input(), 1<<16))
	in.DisallowUnknownFields()
	var head checkHead
	if err := in.Decode(&head); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "rules of a check")
	}
	var changes []caisson.Change
	for range head.Changes {
		var ch caisson.Change
		if err := in.Decode(&ch); err != nil {
			return nil, caisson.Wrap(err, caisson.Internal, "changes to check")
		}
		changes = append(changes, ch)
	}
	host, err := os.Open("/")
	if err != nil {
		return nil, err
	}
	defer host.Close()
	frozen, err := OpenFrozen(dir)
	if err != nil {
		return nil, err
	}
	defer frozen.Close()
	if err := Check(ctx, changes, host, frozen.Object, head.Rules); err != nil {
		return nil, err
	}
	w := bufio.NewWriterSize(out, 1<<16)
	enc := json.NewEncoder(w)
	for i := range changes {
		if err := enc.Encode(checked{changes[i].Verdict, changes[i].Finding}); err != nil {
			return nil, err
		}
	}
	return checkReply{len(changes)}, w.Flush()
}
