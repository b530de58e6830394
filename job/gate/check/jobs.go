package check

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/worker"
)

// checked contains the verdict and the findings of a checking job for one change.
type checked struct {
	Verdict  string            // the verdict on the change
	Findings []caisson.Finding // the findings about the change
}

// Job checks changes of its root, the host's directory; see [Changes]. Its input is a line with the rules, and then a line for
// each change. It writes a [checked] for each change to its first file descriptor. The second one is the frozen copy.
var Job = worker.Job[worker.None, worker.None]{
	Name: "gate.check", Root: true, Files: 2, Access: worker.ReadAsOwner,
	Do: func(ctx context.Context, c *worker.Call, none worker.None) (worker.None, error) {
		in := bufio.NewReaderSize(c.Input(), 1<<16)
		line, err := in.ReadBytes('\n')
		if err != nil {
			return none, caisson.Wrap(err, caisson.Internal, "rules of a check")
		}
		var rules Rules
		if err := worker.Unmarshal(line, &rules); err != nil {
			return none, caisson.Wrap(err, caisson.Internal, "rules of a check")
		}
		changes, err := worker.ReadRows[caisson.Change](in, maxChanges, maxChecked)
		if err != nil {
			return none, caisson.Wrap(err, caisson.Internal, "changes to check")
		}
		frozen, err := overlay.OpenFrozen(c.Files[1])
		if err != nil {
			return none, err
		}
		defer frozen.Close()
		if err := Changes(ctx, changes, c.Root, frozen.Object, rules); err != nil {
			return none, err
		}
		results := make([]checked, len(changes))
		for i := range changes {
			results[i] = checked{changes[i].Verdict, changes[i].Finding}
		}
		return none, worker.WriteRows(c.Files[0], results)
	},
}

// RunChanges adds findings to changes and sets their verdicts; see [Changes]. The checks run in a worker job with the rights of
// host's owner, who must be able to read frozen, the directory that [overlay.Freeze] has written. If it returns an error, all
// changes are denied. The error is Invalid for invalid rules, and Exhausted if the job was killed at a limit of time or memory.
func RunChanges(ctx context.Context, run worker.Starter, host, frozen *os.File, changes []caisson.Change, rules Rules) error {
	before := make([]string, len(changes))
	for i := range changes {
		before[i] = cmp.Or(changes[i].Verdict, caisson.VerdictPass)
		changes[i].Verdict = caisson.VerdictDeny // the verdict until the job has succeeded
	}
	if err := rules.Validate(); err != nil || len(changes) == 0 {
		return err
	}
	results, err := runCheck(ctx, run, host, frozen, changes, rules)
	if err != nil {
		return err
	}
	for i, r := range results {
		// The job is untrusted, so its result can only make a verdict stricter.
		verdict := stricter(before[i], r.Verdict)
		for _, f := range r.Findings {
			verdict = stricter(verdict, f.Verdict)
		}
		changes[i].Finding = append(changes[i].Finding, r.Findings...)
		changes[i].Verdict = verdict
	}
	return nil
}

// runCheck runs Job for changes, and returns the verdict on each change and the findings about it.
func runCheck(
	ctx context.Context, run worker.Starter, host, frozen *os.File, changes []caisson.Change, rules Rules,
) ([]checked, error) {
	changes = slices.Clone(changes)
	for i := range changes {
		changes[i].Patch, changes[i].Finding, changes[i].Verdict = "", nil, ""
	}
	var in bytes.Buffer
	if err := json.NewEncoder(&in).Encode(rules); err != nil {
		return nil, err
	}
	if err := worker.WriteRows(&in, changes); err != nil {
		return nil, err
	}
	out, err := worker.NewMemFile("checked")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	all := time.Duration(rules.WithDefaults().ScanTime) + 2*time.Minute
	_, err = Job.Run(ctx, run, worker.None{}, worker.RunInput{
		Root: host, Files: []*os.File{out, frozen}, Input: &in, Limits: worker.Limits{Time: all, CPU: 2 * all, FileSize: maxChecked},
	})
	if err != nil {
		return nil, err
	}
	return readChecked(io.NewSectionReader(out, 0, maxChecked), len(changes))
}

// Limits of one checking job.
const (
	maxChanges = 200_000 // maximum number of changes in one job
	maxChecked = 1 << 30 // maximum size of the changes that a job reads, and of the results that it writes, in bytes
)

// readChecked reads and validates the untrusted output of a job, which must contain the results for n changes.
func readChecked(r io.Reader, n int) ([]checked, error) {
	results, err := worker.ReadRows[checked](r, n, maxFindings*(6*maxMessage+200))
	if err != nil || len(results) != n || slices.ContainsFunc(results, func(c checked) bool { return !c.valid() }) {
		return nil, caisson.Errorf(caisson.Internal, "a worker job of the gate sent an invalid reply; try again")
	}
	return results, nil
}

// valid reports whether the verdict is known and the findings are within the limits.
func (c *checked) valid() bool {
	verdicts := []string{caisson.VerdictPass, caisson.VerdictAsk, caisson.VerdictConflict, caisson.VerdictDeny}
	for _, f := range c.Findings {
		if !slices.Contains(Names(), f.Check) || !slices.Contains(verdicts, f.Verdict) || f.Line < 0 ||
			strings.ContainsFunc(f.Message, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(f.Message) > maxMessage+len("…") {
			return false
		}
	}
	return len(c.Findings) <= maxFindings && slices.Contains(verdicts, c.Verdict)
}
