package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// runsCmd contains the commands that list, show and remove runs.
type runsCmd struct {
	Ls   runsLsCmd   `cmd:"" help:"List runs, newest first."`
	Show runsShowCmd `cmd:"" help:"Show everything about a run."`
	Rm   runsRmCmd   `cmd:"" help:"Remove runs that have ended."`
}

func runID(r *caisson.Run) string { return string(r.ID) }

// runsLsCmd lists runs.
type runsLsCmd struct {
	State   []string `help:"Only in this state: queued, starting, running, succeeded, failed; may be repeated." placeholder:"STATE" complete:"runstate"`
	Agent   string   `help:"Only of this agent." placeholder:"ID" complete:"agent"`
	Session string   `help:"Only of the session with this id." placeholder:"ID" complete:"session"`
	Parent  string   `help:"Only those that this run has started." placeholder:"RUN" complete:"run"`
	Under   string   `help:"Only this run and its sub-runs." placeholder:"RUN" complete:"run"`
	Count   int      `help:"How many." short:"n" default:"20" placeholder:"N"`
}

func (c *runsLsCmd) Help() string {
	return examples("caisson runs ls", "caisson runs ls --state failed -n 100", "caisson runs ls --agent openclaw -o json")
}

// runStates are the states of runs, in the order in which they occur.
var runStates = []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning, caisson.RunSucceeded, caisson.RunFailed}

// ProvideFilter returns the filter for runs that the flags specify.
func (c *runsLsCmd) ProvideFilter() (f caisson.RunFilter, err error) {
	f.Agent, f.Session = c.Agent, caisson.ID(c.Session)
	if c.Count < 1 {
		return f, usagef("runs ls", "--count must be at least 1")
	}
	if f.States, err = parseStates(c.State, runStates, "runs"); err != nil {
		return f, err
	}
	if f.Parent, err = parseOptional(parseRun, c.Parent); err != nil {
		return f, err
	}
	f.Under, err = parseOptional(parseRun, c.Under)
	return f, err
}

func (c *runsLsCmd) Run(ctx context.Context, a *app, f caisson.RunFilter, api api) error {
	return asList(a, []column[*caisson.Run]{
		{name: "ID", value: runID},
		{name: "AGENT", value: func(r *caisson.Run) string { return r.Agent }},
		{name: "STATE", value: runState, color: func(r *caisson.Run) string {
			switch r.State {
			case caisson.RunSucceeded:
				return "32"
			case caisson.RunFailed:
				return "31"
			}
			return "33"
		}},
		{name: "AGE", value: func(r *caisson.Run) string { return age(r.CreatedAt) }},
		{name: "TIME", value: runTime},
		{name: "COST", value: func(r *caisson.Run) string {
			if r.Result == nil {
				return ""
			}
			return totalUsage(r).Cost.String()
		}},
		{name: "PROMPT", value: func(r *caisson.Run) string {
			p := []rune(oneLine(r.Request.Prompt))
			return string(p[:min(len(p), 60)])
		}},
	})(collectPages(c.Count, runID, func(before string, limit int) ([]*caisson.Run, bool, error) {
		f.Before, f.Limit = caisson.ID(before), limit
		return api.ListRuns(ctx, f)
	}))
}

// runState returns the text that is shown for a run's state, with the error code if the run has failed. A cancelled run, which
// has failed with the code aborted, is shown as cancelled.
func runState(r *caisson.Run) string {
	switch {
	case r.State != caisson.RunFailed || r.Result == nil || r.Result.Error == nil:
		return string(r.State)
	case r.Result.Error.Code == caisson.RunAborted:
		return "cancelled"
	}
	return string(r.State) + " (" + r.Result.Error.Code + ")"
}

// runTime returns how long a run has been running, or was running until its end; "" if it has not started.
func runTime(r *caisson.Run) string {
	switch {
	case r.StartedAt.IsZero():
		return ""
	case r.EndedAt.IsZero():
		return time.Since(r.StartedAt).Round(time.Second).String()
	default:
		return r.EndedAt.Sub(r.StartedAt).Round(100 * time.Millisecond).String()
	}
}

// runArg is the argument that identifies a run.
type runArg struct {
	RunID string `arg:"" name:"run" help:"Id of the run." complete:"run"`
}

// ProvideID parses the id of the run.
func (r *runArg) ProvideID() (caisson.ID, error) { return parseRun(r.RunID) }

// runsShowCmd shows one run.
type runsShowCmd struct{ runArg }

func (c *runsShowCmd) Help() string {
	return examples("caisson runs show rn-abcdefghijklmnop", "caisson runs show rn-abcdefghijklmnop -o json")
}

func (c *runsShowCmd) Run(ctx context.Context, a *app, id caisson.ID, api api) error {
	return asOne(a, runID, runRows)(api.GetRun(ctx, id))
}

// runRows returns the properties of a run, as pairs of a name and a value.
func runRows(r *caisson.Run) [][2]string {
	rows := [][2]string{
		{"ID", string(r.ID)}, {"Agent", r.Agent}, {"State", runState(r)}, {"Attempt", strconv.Itoa(r.Attempt)}, {"Model", r.Model},
		{"Prompt", oneLine(r.Request.Prompt)}, {"Directory", directoryOf(r)}, {"Volume", volumeOf(r)}, {"Repository", repoOf(r)}, {"Session", string(r.Session)}, {"User", r.Request.User},
		{"Sandbox", string(r.Sandbox)}, {"Parent", string(r.Parent)}, {"Labels", formatPairs(r.Request.Labels)}, {"Trace", r.Trace},
		{"Created", formatTime(r.CreatedAt)}, {"Started", formatTime(r.StartedAt)}, {"Ended", formatTime(r.EndedAt)},
	}
	rows = append(rows, hiddenRows(r.Hidden, r.HiddenCount)...)
	res := r.Result
	if res == nil {
		return rows
	}
	if res.Error != nil {
		rows = append(rows, [2]string{"Error", res.Error.Error()})
	}
	u := totalUsage(r)
	rows = append(rows,
		[2]string{"Provider", res.Provider}, [2]string{"Answer", oneLine(res.Answer)}, [2]string{"Calls", strconv.FormatInt(u.Calls, 10)},
		[2]string{"Tokens", strconv.FormatInt(u.Tokens.Total(), 10)}, [2]string{"Cost", costText(u)},
		[2]string{"Warm", strconv.FormatBool(res.Warm)}, [2]string{"Versions", formatPairs(res.Versions)})
	var phases []string
	for _, p := range res.Phases {
		phases = append(phases, p.Name+" "+time.Duration(p.Time).Round(time.Millisecond).String())
	}
	rows = append(rows, [2]string{"Phases", strings.Join(phases, ", ")})
	rows = append(rows, [2]string{"Delivery", deliveryRow(res.Delivery)})
	for _, ch := range res.Changes {
		rows = append(rows, [2]string{"Changed", ch.Kind + " " + ch.Path + " +" + strconv.Itoa(ch.Added) + " -" + strconv.Itoa(ch.Removed)})
	}
	return rows
}

// runsRmCmd removes the records of runs.
type runsRmCmd struct {
	Runs []string `arg:"" name:"run" help:"Ids of runs." complete:"run"`
}

func (c *runsRmCmd) Help() string {
	return "The model calls of the run stay in the ledger.\n\n" + examples("caisson runs rm rn-abcdefghijklmnop")
}

func (c *runsRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Runs, func(ctx context.Context, ref string) error {
		id, err := parseRun(ref)
		if err != nil {
			return err
		}
		return api.RemoveRun(ctx, id)
	})
}

// cancelCmd cancels runs.
type cancelCmd struct {
	Runs []string `arg:"" name:"run" help:"Ids of runs." complete:"run"`
}

func (c *cancelCmd) Help() string {
	return "The sub-runs of a run are cancelled with it. Records are kept.\n\n" + examples("caisson cancel rn-abcdefghijklmnop")
}

func (c *cancelCmd) Run(ctx context.Context, a *app, api api) error {
	return forEachRef(ctx, a, c.Runs, runID, byID(parseRun, func(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
		r, err := api.GetRun(ctx, id)
		if err == nil && r.State.Ended() {
			err = caisson.Errorf(caisson.Conflict, "run %s has ended already, as %s; see caisson runs show %[1]s", id, r.State)
		}
		if err != nil {
			return nil, err
		}
		return api.CancelRun(ctx, id)
	}))
}

// retryCmd starts another attempt of a run.
type retryCmd struct {
	RunID  string `arg:"" name:"run" help:"Id of the run, which must have failed." complete:"run"`
	Detach bool   `help:"Print the id of the run and leave it running." short:"d"`
}

func (c *retryCmd) Help() string {
	return examples("caisson retry rn-abcdefghijklmnop", "caisson retry -d rn-abcdefghijklmnop")
}

// ProvideID parses the id of the run.
func (c *retryCmd) ProvideID() (caisson.ID, error) { return parseRun(c.RunID) }

func (c *retryCmd) Run(ctx context.Context, a *app, id caisson.ID, api api) error {
	return runConsole{a, api}.startAndFollow(ctx, c.Detach, func(ctx context.Context) (*caisson.Run, error) { return api.RetryRun(ctx, id) })
}
