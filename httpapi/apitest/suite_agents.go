package apitest

import (
	"context"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson"
)

func testAgents(t *testing.T, ctx context.Context, c Cores) {
	ids := func() (out []string) {
		for _, a := range must(c.Agents.ListAgents(ctx))(t) {
			out = append(out, a.ID)
		}
		return out
	}
	if got := ids(); !slices.Equal(got, []string{"caisson", "openclaw"}) {
		t.Errorf("%v", got)
	}
	mine := caisson.Agent{
		ID: "mine", Name: "Mine", Driver: caisson.DriverExec, Image: "debian:12", Command: []string{"my-agent", "{prompt}"}, Skills: []string{"/skills/gh"},
		Limits: caisson.AgentLimits{Cost: new(caisson.USD(caisson.Dollar)), Memory: 1 << 30},
		Setup:  []caisson.SetupStep{{Run: []string{"echo", "install"}}, {Run: []string{"echo"}}},
		Warm:   &caisson.Warm{Randomness: "openssl", Prompt: "say ready"}, Service: []string{"/.caisson/inside", "test", "sleep", "24h"},
	}
	put := must(c.Agents.PutAgent(ctx, mine))(t)
	if *put.Limits.Cost != caisson.Dollar || put.Warm == nil || put.Account == "" || put.Status.Built {
		t.Errorf("%+v", put)
	}
	var steps []caisson.Progress
	built := must(c.Agents.BuildAgent(ctx, "mine", func(p caisson.Progress) { steps = append(steps, p) }))(t)
	if !built.Status.Built || !slices.ContainsFunc(steps, func(p caisson.Progress) bool { return p.Done == 1 && p.Total == 2 }) {
		t.Errorf("%+v, steps %+v", built, steps)
	}
	warm := must(c.Agents.WarmAgent(ctx, "mine", nil))(t)
	if warm.Status.Snapshot == "" {
		t.Errorf("%+v", warm)
	}
	if got := must(c.Agents.SetAgentPool(ctx, "mine", 1))(t); got.Status.Pool != 1 {
		t.Errorf("%+v", got.Status)
	}
	warm.Description = "changed" // an agent that was read can be stored again; its status is ignored
	warm.Status.Snapshot = caisson.NewID(caisson.SnapshotPrefix)
	if put = must(c.Agents.PutAgent(ctx, *warm))(t); put.Description != "changed" || put.Status.Snapshot == warm.Status.Snapshot {
		t.Errorf("%+v", put)
	}
	if got := must(c.Agents.GetAgent(ctx, "mine"))(t); got.Name != "Mine" {
		t.Errorf("%+v", got)
	}
	checks := must(c.Agents.CheckAgent(ctx, "mine"))(t)
	if !slices.ContainsFunc(checks, func(c caisson.AgentCheck) bool { return c.Status == "failed" && c.Remedy != "" }) {
		t.Errorf("%+v", checks)
	}
	_, err := c.Agents.WarmAgent(ctx, "caisson", nil)
	if caisson.KindOf(err) != caisson.Invalid {
		t.Error(err)
	}
	_, err = c.Agents.SetAgentPool(ctx, "caisson", 1)
	Fails(t, err, caisson.Conflict, "")
	_, err = c.Agents.SetAgentPool(ctx, "mine", -1)
	Fails(t, err, caisson.Invalid, "size")
	_, err = c.Agents.PutAgent(ctx, caisson.Agent{ID: "openclaw", Name: "x", Driver: caisson.DriverExec, Image: "host", Command: []string{"x"}})
	Fails(t, err, caisson.Denied, "")
	mine.Command = nil
	_, err = c.Agents.PutAgent(ctx, mine)
	Fails(t, err, caisson.Invalid, "command")
	mine.ID, mine.Command, mine.Setup[1].Run = "bad", []string{"x"}, []string{"fail"}
	must(c.Agents.PutAgent(ctx, mine))(t)
	_, err = c.Agents.BuildAgent(ctx, "bad", nil)
	Fails(t, err, caisson.Invalid, "")
	succeeds(t, c.Agents.RemoveAgent(ctx, "bad"))
	Fails(t, c.Agents.RemoveAgent(ctx, "bad"), caisson.NotFound, "")
	Fails(t, c.Agents.RemoveAgent(ctx, "caisson"), caisson.Denied, "")
	for _, err := range []error{
		errorOf(c.Agents.GetAgent(ctx, "nobody")), errorOf(c.Agents.BuildAgent(ctx, "nobody", nil)),
		errorOf(c.Agents.WarmAgent(ctx, "nobody", nil)), errorOf(c.Agents.CheckAgent(ctx, "nobody")),
		errorOf(c.Agents.SetAgentPool(ctx, "nobody", 1)),
	} {
		Fails(t, err, caisson.NotFound, "")
	}
}

// errorOf returns the second of the two results of a call, its error.
func errorOf[T any](_ T, err error) error { return err }
