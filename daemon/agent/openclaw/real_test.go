package openclaw_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw/openclawtest"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestRealConfigValidates: OpenClaw accepts the generated configuration.
func TestRealConfigValidates(t *testing.T) {
	testneed.Full(t, "TestOpenClaw runs the real agent")
	h := openclawtest.New(t, openclaw.Setup{
		Agent: &caisson.Agent{
			ID: "openclaw", Skills: []string{"/opt/skills"},
			Tools: caisson.ToolRule{Deny: []string{"web_fetch", "Bash"}},
			Personas: []caisson.Persona{
				{ID: "reviewer", Model: "large", Deny: []string{"exec", "write"}, Instructions: "You review."},
				{ID: "writer", Model: "not-granted"},
			},
		},
		Models: openclawtest.Models("small", "large"),
	}, "http://127.0.0.1:1/v1")
	out, err := h.Run(t, "config", "validate")
	if err != nil || !strings.Contains(out, "Config valid") || strings.Contains(out, "warning") {
		t.Errorf("config validate: %v\n%s", err, out)
	}
}
