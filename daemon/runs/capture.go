package runs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/guest/task"
)

// WarmModel is the model for warming up agents: it follows a script and costs nothing. Runs cannot request it.
const WarmModel = "caisson-warm-up"

// warmModel describes the model for warming up agents.
var warmModel = caisson.Model{Alias: WarmModel, Free: true, Context: 200_000, Output: 8192}

// capturer makes warm snapshots.
type capturer struct {
	recipes     map[string]Recipe // recipes by the name of the agent's driver
	builder     *builder          // builds the templates of agents
	services    *services         // starts the services of agents
	guestExec   *guestExec        // executes programs in sandboxes
	snapshots   *snapshots        // finds warm snapshots
	lifecycle   caisson.Sandboxes // creates, changes and removes sandboxes
	service     caisson.Snapshots // takes snapshots
	assign      assignFunc        // assigns a sandbox to a run
	placeholder bool              // workspaces can be mounted, so snapshots get an empty directory for one
	grace       time.Duration     // time that an agent has to exit after a request to stop
	events      caisson.Publisher
}

// capture boots an agent in a new sandbox, runs the warm-up turns, and takes the warm snapshot. If fresh is false, it returns
// the current snapshot if there is one.
func (c *capturer) capture(ctx context.Context, id string, fresh bool, progress func(caisson.Progress)) (_ *caisson.Snapshot, err error) {
	a, err := c.builder.complete(ctx, id)
	if err != nil {
		return nil, err
	}
	if !usesWarmSnapshot(a) {
		return nil, caisson.Invalidf("warm", "agent %s has no service, so its runs do not use a warm snapshot; prepare it with caisson agent build %s, and keep sandboxes of it ready with warm.pool in its file", id, id)
	}
	template, err := c.builder.prepare(ctx, a, "", progress)
	if err != nil {
		return nil, err
	}
	if !fresh {
		if snap, err := c.snapshots.current(ctx, a, template); err != nil || snap != nil {
			return snap, err
		}
	}
	key, err := c.snapshots.key(ctx, a, template)
	if err != nil {
		return nil, err
	}
	progress(caisson.Progress{Stage: "boot"})
	req := template.createRequest(a)
	warmup := &caisson.Run{ID: caisson.NewID(caisson.RunPrefix), Agent: a.ID, Attempt: 1, Trace: newTrace(), Model: WarmModel, Limits: a.Limits}
	req.Labels = map[string]string{labelAgent: a.ID, labelKey: key}
	if c.placeholder {
		req.Placeholder = a.Workdir
	}
	req.Policy = &caisson.Policy{} // no network access, so that the snapshot contains nothing from the network
	req.Assigned = &caisson.Assignment{
		Run: warmup.ID, Attempt: 1, Agent: a.ID, Trace: warmup.Trace, Models: &caisson.ModelGrant{Models: []string{WarmModel}},
	}
	box, err := c.lifecycle.Create(asAuthor(ctx, a), req)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, caisson.IgnoreNotFound(c.lifecycle.Remove(context.WithoutCancel(ctx), string(box.ID))))
	}()
	models, err := c.services.usableModels(ctx, a)
	if err != nil {
		return nil, err
	}
	if err := c.services.startService(ctx, box.ID, a, append([]caisson.Model{warmModel}, models...)); err != nil {
		return nil, err
	}
	if err := c.warmUp(ctx, a, box, warmup, progress); err != nil {
		return nil, err
	}
	if _, err := c.assign(ctx, box.ID, nil); err != nil {
		return nil, err
	}
	progress(caisson.Progress{Stage: "snapshot"})
	snap, err := c.service.Snapshot(ctx, string(box.ID), caisson.SnapshotRequest{Labels: req.Labels})
	if err != nil {
		return nil, err
	}
	c.events.Publish(ctx, snap.Account, "agent.warmed", a.ID, map[string]string{"snapshot": string(snap.ID), "size": snap.Size.String()})
	replaced, err := c.snapshots.list(ctx, a.ID)
	if err == nil {
		err = c.snapshots.dropOthers(ctx, a.ID, snap.ID)
	}
	if err == nil {
		err = c.snapshots.setPool(ctx, a, snap, replaced)
	}
	return snap, err
}

// warmUp waits until the agent is ready, runs the warm-up turns, and runs the programs that reduce the size of the snapshot.
func (c *capturer) warmUp(ctx context.Context, a *caisson.Agent, box *caisson.Sandbox, run *caisson.Run, progress func(caisson.Progress)) error {
	t := &task.Task{
		Driver: a.Driver, Prompt: a.Warm.Prompt, PromptMode: a.Prompt, Events: a.Events, Workdir: a.Workdir, Model: WarmModel,
		Session: string(run.ID), Ready: a.Ready, ReadyTime: caisson.Duration(warmTimeout), Time: caisson.Duration(warmTimeout),
		Grace: caisson.Duration(c.grace), Output: 1 << 20, Files: a.Files, Env: map[string]string{"OPENAI_BASE_URL": gatewayURL + "/v1"},
	}
	warm := *a
	warm.Models = nil // no restriction, so that the warm-up model is allowed
	set, err := agent.Resolve(&warm, caisson.RunRequest{Agent: a.ID, Prompt: a.Warm.Prompt, Model: WarmModel},
		agent.Defaults{Models: []caisson.GatewayModel{{Model: warmModel}}}, caisson.HostCaller("", "warm up an agent"))
	if err != nil {
		return err
	}
	t.Command = set.Command
	maps.Copy(t.Env, set.Env)
	if recipe := c.recipes[a.Driver]; recipe != nil {
		if err := recipe.Turn(t, Turn{Agent: a, Run: run, Models: []caisson.Model{warmModel}, First: true, Warmup: true}); err != nil {
			return err
		}
	}
	if t.Prompt == "" {
		return caisson.Invalidf("warm.prompt", "agent %s has no prompt to warm it up with", a.ID)
	}
	// The first turn loads the agent's code; the next turns compile the code that is executed repeatedly.
	for i := range max(1, a.Warm.Rounds) {
		t.Session = fmt.Sprintf("%s-%d", run.ID, i)
		if err := c.turn(ctx, a, box, t, progress); err != nil {
			return err
		}
		t.Files, t.Remove = nil, nil
	}
	if recipe := c.recipes[a.Driver]; recipe != nil {
		for _, command := range recipe.Settle(a) {
			progress(caisson.Progress{Stage: "settle", Detail: strings.Join(command, " ")})
			if err := c.guestExec.execute(ctx, box.ID, command); err != nil {
				return err
			}
		}
	}
	return nil
}

// turn runs one warm-up turn, and returns an error if the agent gives no answer.
func (c *capturer) turn(ctx context.Context, a *caisson.Agent, box *caisson.Sandbox, t *task.Task, progress func(caisson.Progress)) error {
	var said strings.Builder
	progress(caisson.Progress{Stage: "warm up"})
	end, err := c.services.drive(ctx, box.ID, a, t, func(l *task.Line) {
		switch l.Type {
		case caisson.EventTextDelta:
			said.WriteString(l.Delta)
		case task.LineMark:
			progress(caisson.Progress{Stage: "warm up", Detail: l.Mark})
		case task.LineLog:
			progress(caisson.Progress{Stage: "warm up", Message: strings.TrimSpace(string(l.Data))})
		}
	})
	switch {
	case err != nil:
		return caisson.Wrap(err, caisson.Unavailable, "the agent %s did not warm up: %v", a.ID, err)
	case end.Error != nil:
		return caisson.Errorf(caisson.Unavailable, "the agent %s did not warm up: %s", a.ID, end.Error.Message)
	case said.Len() == 0:
		return caisson.Errorf(caisson.Unavailable, "the agent %s did not warm up: it gave no answer", a.ID)
	}
	return nil
}
