package main

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
)

// An interactiveRun connects the user's terminal with the terminal of an agent in a run.
type interactiveRun struct {
	*app
	api api
}

// start starts a run and, unless detach is set, attaches to its terminal. An interrupt ends only the attachment, not the run.
func (i interactiveRun) start(ctx context.Context, req caisson.RunRequest, detach bool) error {
	run, err := i.api.StartRun(ctx, req)
	if err != nil {
		return err
	}
	if run.HiddenCount > 0 {
		i.infof("caisson: hidden from the agent: %s; use --show-hidden NAME to show a file", hiddenFiles(run.Hidden, run.HiddenCount))
	}
	if detach {
		return printDone(i.app, run, string(run.ID))
	}
	return i.attach(ctx, run, attachFlags{DetachKeys: parseKeys(defaultDetachKeys)})
}

// parseKeys returns the detach keys that text describes, which must be valid.
func parseKeys(text string) (k detachKeys) {
	_ = k.UnmarshalText([]byte(text)) // UnmarshalText never fails for a valid text
	return k
}

// attach waits until the terminal of the run is open, and attaches to it until the run ends or the user detaches.
func (i interactiveRun) attach(ctx context.Context, run *caisson.Run, flags attachFlags) error {
	run, err := i.waitForTerminal(ctx, run)
	if err != nil {
		return err
	}
	if !run.State.Ended() {
		_, left, err := attachment{i.app, i.api}.attachTo(ctx, string(run.Sandbox), run.Terminal, flags)
		if left {
			i.infof("caisson: the run continues; attach again with: caisson attach %s", run.ID)
			return nil
		}
		if err != nil && caisson.KindOf(err) != caisson.NotFound { // NotFound means that the terminal has just ended
			return err
		}
	}
	events, err := i.api.WatchRun(ctx, run.ID, 0)
	if err != nil {
		return err
	}
	for range events { // the channel is closed when the run has ended
	}
	return runConsole{i.app, i.api}.conclude(ctx, run, time.Time{})
}

// waitForTerminal shows the progress of a run until its terminal is open or the run has ended.
func (i interactiveRun) waitForTerminal(ctx context.Context, run *caisson.Run) (*caisson.Run, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := i.api.WatchRun(ctx, run.ID, 0)
	if err != nil {
		return nil, err
	}
	isOpen := func(e caisson.RunEvent) bool { return e.Attempt == run.Attempt && e.Phase == "interactive" }
	if err := newRunView(i.app).follow(events, run.Attempt, isOpen); err != nil {
		return nil, err
	}
	return i.api.GetRun(ctx, run.ID)
}
