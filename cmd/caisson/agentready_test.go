package main

import (
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestAgentReady(t *testing.T) {
	built := caisson.AgentStatus{Built: true}
	for want, g := range map[string]caisson.Agent{
		"warm":       {Status: caisson.AgentStatus{Built: true, Snapshot: "sn-aaaaaaaaaaaaaaaa"}},
		"cold (why)": {Status: caisson.AgentStatus{Problem: "why"}},
		"built":      {Setup: []caisson.SetupStep{{}}, Status: built},
		"no set-up":  {Image: "host", Status: built},
		"":           {Image: "docker.io/x/y:1", Status: built},
	} {
		if got := agentReadiness(&g); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	if got := agentReadiness(&caisson.Agent{Driver: caisson.DriverOpenClaw, Status: built}); got != "built" {
		t.Errorf("openclaw: %q", got)
	}
}

func TestPoolFits(t *testing.T) {
	t.Parallel()
	limits := func(v any) map[string]any { return map[string]any{"limits": map[string]any{"poolMemory": v}} }
	if n, ok := maxPoolForks(1<<30, limits(float64(4<<30))); n != 4 || !ok {
		t.Errorf("%d, %v", n, ok)
	}
	for _, settings := range []map[string]any{nil, {}, limits(0.0), limits("4GiB")} {
		if n, ok := maxPoolForks(1<<30, settings); ok {
			t.Errorf("%v: %d", settings, n)
		}
	}
	if _, ok := maxPoolForks(0, limits(1.0)); ok {
		t.Error("the size is not known")
	}
}
