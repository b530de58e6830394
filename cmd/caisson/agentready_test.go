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
		if got := agentReady(&g); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	if got := agentReady(&caisson.Agent{Driver: caisson.DriverOpenClaw, Status: built}); got != "built" {
		t.Errorf("openclaw: %q", got)
	}
}
