package driver_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/drive"
	"github.com/caisson-dev/caisson/guest/openclaw/driver"
	"github.com/caisson-dev/caisson/guest/task"
)

// recorded is a drive.Out that records its calls.
type recorded struct {
	mu       sync.Mutex
	text     string
	gap      bool
	tools    []string
	warnings []string
	phases   []string
	marks    []string
	log      strings.Builder
	usage    *caisson.RunUsage
	end      drive.TurnResult
	watch    func(text string)
}

var _ drive.Out = (*recorded)(nil)

func (r *recorded) Text(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gap && r.text != "" {
		r.text += "\n\n"
	}
	r.gap = false
	r.text += s
	if r.watch != nil {
		r.watch(r.text)
	}
}

func (r *recorded) Separate() { r.do(func() { r.gap = true }) }

func (r *recorded) Status(phase, label string) {
	r.do(func() {
		r.phases = append(r.phases, phase)
		if phase == "warning" {
			r.warnings = append(r.warnings, label)
		}
	})
}

func (r *recorded) ToolStart(_, name string, _ any) {
	r.do(func() { r.tools = append(r.tools, "start:"+name) })
}

func (r *recorded) ToolResult(_, result string, isError bool) {
	r.do(func() {
		if isError {
			result = "error " + result
		}
		r.tools = append(r.tools, "result:"+result)
	})
}

func (r *recorded) Usage(u caisson.RunUsage) { r.do(func() { r.usage = &u }) }
func (r *recorded) Log(_ string, b []byte)   { r.do(func() { r.log.Write(b) }) }
func (r *recorded) Mark(m string)            { r.do(func() { r.marks = append(r.marks, m) }) }

func (r *recorded) do(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// run runs a task.
func run(t *testing.T, ctx context.Context, tk *task.Task, watch func(string)) *recorded {
	t.Helper()
	r := &recorded{watch: watch}
	end, err := driver.OpenClaw{}.Run(ctx, tk, r)
	if err != nil {
		t.Fatal(err)
	}
	r.end = end
	return r
}
