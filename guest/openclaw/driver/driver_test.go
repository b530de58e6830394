package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson/guest/task"
)

// TestModelOf tests that a model that OpenClaw's configuration lacks, or has with another context window, is replaced.
func TestModelOf(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "openclaw.json")
	const text = `{"models": {"providers": {"caisson": {"models": [{"id": "a", "contextWindow": 1000}]}, "x": {"models": [{"id": "b", "contextWindow": 1000}]}}}}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		model, config string
		context       int64
		want          string
	}{
		{"", config, 1000, ""},
		{"a", config, 1000, "caisson/a"},
		{"a", config, 2000, "caisson/spare"},
		{"b", config, 1000, "caisson/spare"},
		{"a", config + ".none", 1000, "caisson/spare"},
		{"a", os.DevNull, 1000, "caisson/spare"},
	} {
		got := modelName(&task.Task{Model: tt.model, Substitute: &task.Substitute{Config: tt.config, Context: tt.context, Model: "spare"}})
		if got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
	if got := modelName(&task.Task{Model: "b"}); got != "caisson/b" {
		t.Errorf("without a substitute: %s", got)
	}
}
