package engine

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/guest/task"
)

// TestOpenClawWarmUp: forks keep the configuration that the warm-up has written, so it does not contain the warm-up
// model.
func TestOpenClawWarmUp(t *testing.T) {
	t.Parallel()
	models := []caisson.Model{{Alias: runs.WarmModel}, {Alias: "base"}}
	files, err := openClaw{}.Files(&caisson.Agent{}, models)
	if err != nil {
		t.Fatal(err)
	}
	config := files[len(files)-1].Data
	if strings.Contains(config, runs.WarmModel) || !strings.Contains(config, `"primary": "caisson/`+openclaw.DefaultModel+`"`) || !strings.Contains(config, `"id": "base"`) {
		t.Errorf("the configuration of the warm-up is %s", config)
	}
	if models[0].Alias != runs.WarmModel {
		t.Error("the list of models was changed")
	}
	for _, turn := range []struct {
		runs.Turn
		want string
	}{{runs.Turn{Agent: &caisson.Agent{}, Warmup: true}, openclaw.DefaultModel}, {runs.Turn{Agent: &caisson.Agent{}}, "base"}} {
		tk := &task.Task{Model: "base"}
		if err := (openClaw{}).Turn(tk, turn.Turn); err != nil || tk.Model != turn.want {
			t.Errorf("the task's model is %q, want %q: %v", tk.Model, turn.want, err)
		}
	}
}

// TestOpenClawVersion: an agent's version is the one that is installed, unless the agent brings its own set-up.
func TestOpenClawVersion(t *testing.T) {
	steps := []caisson.SetupStep{{Run: []string{"true"}}}
	for name, c := range map[string]struct {
		agent caisson.Agent
		ok    bool
	}{
		"none":         {caisson.Agent{}, true},
		"this":         {caisson.Agent{Version: openclaw.Version}, true},
		"another":      {caisson.Agent{Version: "2025.1.1"}, false},
		"own template": {caisson.Agent{Version: "2025.1.1", Template: "mine"}, true},
		"own set-up":   {caisson.Agent{Version: "2025.1.1", Setup: steps}, true},
	} {
		_, err := openClaw{}.Complete(c.agent)
		if (err == nil) != c.ok || !c.ok && caisson.FieldOf(err) != "version" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
