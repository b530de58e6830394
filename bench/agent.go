package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
	"github.com/caisson-dev/caisson/internal/excerpt"
)

// agents has the benchmarks of runs of agents. The duration of a run is the time from the request to the event done.
type agents struct{ *suite }

// agentsBenchmark converts the benchmark f of agents to a benchmark of suite. ensure returns the set-up that f uses, and creates
// it if necessary.
func agentsBenchmark(
	ensure func(agents, context.Context) (*agentSetup, error), f func(agents, context.Context, *agentSetup) error,
) func(*suite, context.Context) error {
	return func(s *suite, ctx context.Context) error {
		t, err := ensure(agents{s}, ctx)
		if err != nil {
			return err
		}
		return f(agents{s}, ctx, t)
	}
}

// A measuredRun is a run with its duration.
type measuredRun struct {
	ms  float64      // Milliseconds from the request to the event done.
	run *caisson.Run // the run when it has ended
}

// removalTimeout is the maximum time for the removal of the sandbox of a run after the end of the run.
const removalTimeout = 30 * time.Second

// run starts a run, follows the run's events to the last one, and returns the run with its duration. It returns an error if the
// run did not succeed.
func (t *agentSetup) run(ctx context.Context, req caisson.RunRequest) (*measuredRun, error) {
	start := time.Now()
	run, err := t.api.StartRun(ctx, req)
	if err != nil {
		return nil, err
	}
	events, err := t.api.WatchRun(ctx, run.ID, 0)
	if err != nil {
		return nil, err
	}
	var end time.Duration
	for e := range events {
		if e.Type == caisson.EventDone {
			end = time.Since(start)
		}
	}
	if end == 0 {
		return nil, errors.Join(fmt.Errorf("the events of run %s broke off", run.ID), ctx.Err())
	}
	if run, err = t.api.GetRun(ctx, run.ID); err != nil {
		return nil, err
	}
	if run.State != caisson.RunSucceeded {
		return nil, fmt.Errorf("run %s of %s %s: %w%s", run.ID, run.Agent, run.State, run.Result.Error, t.stderrTail(ctx, run.ID))
	}
	return &measuredRun{milliseconds(end), run}, nil
}

// runAndRemove is like run, but it also waits until the run's sandbox has been removed.
func (t *agentSetup) runAndRemove(ctx context.Context, req caisson.RunRequest) (*measuredRun, error) {
	tr, err := t.run(ctx, req)
	if err != nil {
		return nil, err
	}
	return tr, t.waitRemoved(ctx, tr)
}

// stderrTail returns the last 1,000 bytes of the standard error of a failed run's agent, as a suffix of an error message.
func (t *agentSetup) stderrTail(ctx context.Context, id caisson.ID) string {
	log, err := t.api.RunLog(ctx, id, caisson.LogStderr)
	if err != nil {
		return ""
	}
	defer log.Close()
	return "; its last words: " + excerpt.ReadTail(log, 1000)
}

// waitRemoved waits until the sandboxes of runs have been removed. Removal happens after the end of a run and would otherwise
// slow down the next measurement.
func (t *agentSetup) waitRemoved(ctx context.Context, trials ...*measuredRun) error {
	ctx, cancel := context.WithTimeout(ctx, removalTimeout)
	defer cancel()
	for _, tr := range trials {
		for {
			_, err := t.api.Get(ctx, string(tr.run.Result.Sandbox))
			if caisson.KindOf(err) == caisson.NotFound {
				break
			}
			if err != nil {
				return fmt.Errorf("the sandbox of run %s is still there: %w", tr.run.ID, err)
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// measuredRuns are runs of one kind, in the order in which they were made. The first run warms up and is not counted.
type measuredRuns []*measuredRun

// record returns a measure that makes a run with the function run and appends it to all. The function check returns an error if
// the result of a successful run is wrong.
func (all *measuredRuns) record(run func(context.Context) (*measuredRun, error), check func(*caisson.Run) error) measure {
	return func(ctx context.Context) (samples, error) {
		tr, err := run(ctx)
		if err == nil {
			err = check(tr.run)
		}
		if err != nil {
			return nil, err
		}
		*all = append(*all, tr)
		return samples{tr.ms}, nil
	}
}

// checkAnswer returns a function that returns an error if the answer of a run does not contain text.
func checkAnswer(text string) func(*caisson.Run) error {
	return func(r *caisson.Run) error {
		if !strings.Contains(r.Result.Answer, text) {
			return fmt.Errorf("run %s of %s answered %.200q, without %q", r.ID, r.Agent, r.Result.Answer, text)
		}
		return nil
	}
}

// phases returns rows with the phases of the run with the median duration. row is the beginning of their names. The row "rest"
// has the time outside of all phases: that of the request, the queue, the store and the delivery of the events.
func (all measuredRuns) phases(row string) []Row {
	counted := slices.Clone(all[1:])
	slices.SortFunc(counted, func(a, b *measuredRun) int { return cmp.Compare(a.ms, b.ms) })
	median := counted[(len(counted)-1)/2]
	rest := median.ms
	var rows []Row
	for _, p := range median.run.Result.Phases {
		ms := milliseconds(time.Duration(p.Time))
		rest -= ms
		rows = append(rows, newRow(row+"."+p.Name, "ms", samples{ms}, "", nil))
	}
	return append(rows, newRow(row+".rest", "ms", samples{rest}, "", nil))
}

// addRun adds the row r, which is about the runs all, and the rows of the phases of these runs.
func (s agents) addRun(r Row, all measuredRuns) {
	s.add(r)
	for _, p := range all.phases(r.Name) {
		s.add(p)
	}
}

// shellAnswer is the answer of a run that does almost nothing. It is not empty, because a run without an answer fails.
const shellAnswer = "done"

// shell compares runs of the agent "shell" that do almost nothing with the operations that such a run consists of: creating a
// sandbox and running a process in it.
func (s agents) shell(ctx context.Context, t *agentSetup) error {
	var ours measuredRuns
	var id string
	bare := operation{
		do: func(ctx context.Context) (err error) {
			if id, err = t.create(ctx); err != nil {
				return err
			}
			return t.exec(ctx, id)
		},
		after: func(ctx context.Context) error { return t.api.Remove(ctx, id) },
	}
	all, err := interleave(ctx, s.N,
		ours.record(func(ctx context.Context) (*measuredRun, error) {
			return t.runAndRemove(ctx, caisson.RunRequest{Agent: "shell", Prompt: "echo " + shellAnswer})
		}, checkAnswer(shellAnswer)),
		bare.measure(),
	)
	if err != nil {
		return err
	}
	s.addRun(newRow("agent.shell", "ms", all[0], "create, exec", all[1]), ours)
	return nil
}

// caisson compares runs of the built-in agent "caisson" with the same program on the host. Both work on copies of the same
// repository.
func (s agents) caisson(ctx context.Context, t *agentSetup) error {
	var ours measuredRuns
	native := filepath.Join(s.Dir, "native")
	host := operation{
		before: func(context.Context) error { return errors.Join(os.RemoveAll(native), sample.Write(native)) },
		do: func(ctx context.Context) error {
			cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "caisson-agent"),
				"code", "--model", sampleModel, "--gateway", "http://"+t.models[sampleModel].address)
			cmd.Dir, cmd.Env, cmd.Stdin = native, []string{"PATH=/usr/bin:/bin"}, strings.NewReader(sample.Prompt)
			return runExpecting(cmd, sample.Answer)
		},
	}
	all, err := interleave(ctx, s.N,
		ours.record(func(ctx context.Context) (*measuredRun, error) {
			dir := filepath.Join(s.Dir, "sample")
			if err := errors.Join(os.RemoveAll(dir), sample.Write(dir)); err != nil {
				return nil, err
			}
			f, err := os.Open(dir)
			if err != nil {
				return nil, err
			}
			return t.runAndRemove(ctx, caisson.RunRequest{
				Agent: "caisson", Model: sampleModel, Prompt: sample.Prompt, Source: dir, Directory: f,
			})
		}, checkAnswer(sample.Answer)),
		host.measure(),
	)
	if err != nil {
		return err
	}
	s.addRun(newRow("agent.caisson.warm", "ms", all[0], "the same program on the host", all[1]), ours)
	return nil
}

// runExpecting runs a program and returns an error unless the program succeeds and prints text.
func runExpecting(cmd *exec.Cmd, text string) error {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case err != nil:
		return fmt.Errorf("%v: %w: %.2000s%.2000s", cmd.Args, err, out, stderr.String())
	case !strings.Contains(string(out), text):
		return fmt.Errorf("%v printed no %q: %.2000s", cmd.Args, text, out)
	}
	return nil
}
