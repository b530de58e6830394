package gvisor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testbin"
)

// TestAgentProgram checks that sandboxes contain the agent program if, and only if, the runtime has one.
func TestAgentProgram(t *testing.T) {
	t.Parallel()
	agent := filepath.Join(t.TempDir(), "agent")
	program, err := os.ReadFile(testbin.Path(t, "caisson-guestd"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(agent, program, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, agent, want string
	}{{"with", agent, "works\n"}, {"without", "", "none\n"}} {
		t.Run(c.name, func(t *testing.T) {
			r := openWith(t, func(cfg *Config) { cfg.Programs.Coder = c.agent })
			id := caisson.NewID("sb")
			if err := r.Create(t.Context(), id, newSpec(t, r, id)); err != nil {
				t.Fatal(err)
			}
			out, st := run(t, r, id, "/bin/sh", "-c", "test -e "+coderPath+" || exec echo none; exec "+coderPath+" test echo works")
			if !st.Success() || out != c.want {
				t.Errorf("%s says %q, %v", coderPath, out, st)
			}
		})
	}
}

func TestAgentProgramMissing(t *testing.T) {
	t.Parallel()
	if _, err := readGuestPrograms("/proc/self/exe", filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("an agent program that is not there is ignored")
	}
}

// TestLayerName checks that a layer's name depends on its content and on the boundaries between the programs.
func TestLayerName(t *testing.T) {
	t.Parallel()
	lists := [][]guestProgram{
		{{"/a", []byte("1")}},
		{{"/a", []byte("2")}},
		{{"/b", []byte("1")}},
		{{"/a", []byte("1")}, {"/b", nil}},
		{{"/a", []byte("1/b 0\n")}},
		{{"/a", nil}, {"/b", []byte("1")}},
	}
	var names []string
	for _, l := range lists {
		names = append(names, layerName(l))
	}
	slices.Sort(names)
	if n := len(slices.Compact(names)); n != len(lists) {
		t.Errorf("%d lists of programs have %d names", len(lists), n)
	}
}
