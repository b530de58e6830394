package runs_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// log reads one stream of a run.
func (w *world) log(id caisson.ID, stream string) string {
	w.t.Helper()
	r := got(w.Runs().RunLog(w.ctx(), id, stream))(w.t)
	defer r.Close()
	return string(got(io.ReadAll(r))(w.t))
}

// has reports whether the run's directory has a file.
func (w *world) has(id caisson.ID, name string) bool {
	_, err := os.Lstat(filepath.Join(w.lconf.Dir, "runs", string(id), name))
	return err == nil
}

func TestRunEndToEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(caisson.Agent{ID: "full", Version: "6.0", Limits: caisson.AgentLimits{Cost: new(caisson.USD(1e9))}})
	w.on("work", func(v *turn) int {
		w.calls.add(caisson.ID(env(v.task.Env, "CAISSON_RUN")), 1, 1000)
		v.mark(task.MarkStarted)
		v.mark(task.MarkPrompt)
		v.event(caisson.RunEvent{Type: caisson.EventStatus, Phase: "thinking"})
		v.text("one ")
		v.event(caisson.RunEvent{Type: caisson.EventToolStart, CallID: "1", Tool: "shell", Args: []byte(`{"a":1}`)})
		v.event(caisson.RunEvent{Type: caisson.EventToolResult, CallID: "1", Result: "ok"})
		v.handleLine(task.Line{RunEvent: caisson.RunEvent{Type: task.LineLog}, Stream: caisson.LogStdout, Data: []byte("out\n")})
		v.handleLine(task.Line{RunEvent: caisson.RunEvent{Type: task.LineLog}, Stream: caisson.LogStderr, Data: []byte("err\n")})
		v.text("two")
		v.mark(task.MarkAnswer)
		v.handleLine(task.Line{RunEvent: caisson.RunEvent{Type: task.LineChanges}, Changes: []caisson.FileChange{{Path: "a", Kind: "added", Added: 1}}, Patch: "+1\n"})
		return v.end(nil)
	})
	r := w.start(caisson.RunRequest{Agent: "full", Prompt: "work now"})
	if r.State != caisson.RunQueued || r.Attempt != 1 || len(r.Trace) != 32 {
		t.Errorf("the run begins as %+v", r)
	}
	list := w.events(r.ID)
	const want = "queued starting running thinking text_delta tool_call_start tool_call_result text_delta usage_report assistant_final done"
	if have := types(list); have != want {
		t.Errorf("events are\n%s, want\n%s", have, want)
	}
	r = w.stored(r.ID)
	wantAnswer(t, r, "one two")
	res := r.Result
	if res.Usage.Calls != 1 || res.Usage.Cost != 1000 || len(res.Changes) != 1 || res.Patch != "+1\n" || res.Exit == nil || res.Cut || res.Warm {
		t.Errorf("the result is %+v", res)
	}
	if v := res.Versions; v["agent"] != "7.0" || v["driver"] != "exec" || v["caisson"] != "test" || v["digest"] == "" {
		t.Errorf("versions are %v", v)
	}
	var phases []string
	for _, p := range res.Phases {
		phases = append(phases, p.Name)
		if p.Time < 0 {
			t.Errorf("phase %s took %v", p.Name, p.Time)
		}
	}
	for _, p := range []string{"queue", "create", "prompt", "agent", "teardown"} {
		if !slices.Contains(phases, p) {
			t.Errorf("phases are %v, without %s", phases, p)
		}
	}
	if r.StartedAt.IsZero() || r.EndedAt.Before(r.StartedAt) || r.Deadline.IsZero() || r.Sandbox != "" || res.Sandbox == "" {
		t.Errorf("the run is %+v", r)
	}
	w.config.Events.Publish(w.ctx(), "local", "egress.denied", string(res.Sandbox), map[string]string{"trace": r.Trace, "host": "a.example"})
	w.config.Events.Publish(w.ctx(), "local", "egress.denied", string(res.Sandbox), map[string]string{"trace": "other", "host": "b.example"})
	for stream, want := range map[string]string{caisson.LogStdout: "out\n", caisson.LogStderr: "err\n"} {
		if have := w.log(r.ID, stream); have != want {
			t.Errorf("%s is %q", stream, have)
		}
	}
	if have := w.log(r.ID, caisson.LogGateway); strings.Count(have, "\n") != 1 {
		t.Errorf("the gateway's log is %q", have)
	}
	if have := w.log(r.ID, caisson.LogEgress); !strings.Contains(have, "a.example") || strings.Contains(have, "b.example") {
		t.Errorf("the log of egress is %q", have)
	}
	_, err := w.Runs().RunLog(w.ctx(), r.ID, "other")
	wantKind(t, err, caisson.Invalid)
	w.empty()
	if w.Live() {
		t.Error("the core says that something is live")
	}
	must(t, w.Runs().RemoveRun(w.ctx(), r.ID))
	if w.has(r.ID, ".") {
		t.Error("the directory of a removed run is there")
	}
	_, err = w.Runs().GetRun(w.ctx(), r.ID)
	wantKind(t, err, caisson.NotFound)
}

func env(m map[string]string, k string) string { return m[k] }

// TestRunKeep: a kept sandbox stays, and its calls are not charged to the run.
func TestRunKeep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.do(caisson.RunRequest{Prompt: "hello", Keep: true})
	wantAnswer(t, r, "you said hello")
	if r.Sandbox == "" || r.Sandbox != r.Result.Sandbox {
		t.Fatalf("the sandbox is %q", r.Sandbox)
	}
	w.empty(r.Sandbox)
	if sb := w.box(r.Sandbox); sb.State != caisson.Running || sb.Assigned != nil {
		t.Errorf("the kept sandbox is %s, assigned %+v", sb.State, sb.Assigned)
	}
	w.restart()
	w.empty(r.Sandbox)
	must(t, w.Runs().RemoveRun(w.ctx(), r.ID))
	w.restart()
	w.empty(r.Sandbox)
}

// TestRunDetached: the run continues after the caller's context has ended.
func TestRunDetached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began, goOn := w.hangs("wait")
	ctx, cancel := contextWithCancel(w.ctx())
	r := got(w.Runs().StartRun(ctx, caisson.RunRequest{Agent: "echo", Prompt: "wait"}))(t)
	receive(t, began)
	cancel()
	if out := w.log(r.ID, caisson.LogStdout); out != "" {
		t.Errorf("the log of a run under way is %q", out)
	}
	goOn()
	wantAnswer(t, w.ended(r.ID), "begun done")
}

// TestAccounts: objects of another account are not found.
func TestAccounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.do(caisson.RunRequest{Prompt: "hello"})
	other := w.as("other")
	for name, err := range map[string]error{
		"get":    second(w.Runs().GetRun(other, r.ID)),
		"watch":  second(w.Runs().WatchRun(other, r.ID, 0)),
		"cancel": second(w.Runs().CancelRun(other, r.ID)),
		"retry":  second(w.Runs().RetryRun(other, r.ID)),
		"remove": w.Runs().RemoveRun(other, r.ID),
		"log":    second(w.Runs().RunLog(other, r.ID, "stdout")),
	} {
		if caisson.KindOf(err) != caisson.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, _, err := w.Runs().ListRuns(other, caisson.RunFilter{}); err != nil || len(list) != 0 {
		t.Errorf("another account sees %v, %v", list, err)
	}
	_, err := w.Runs().WatchRun(w.ctx(), r.ID, -1)
	wantKind(t, err, caisson.Invalid)
	if time.Since(r.EndedAt) > patience {
		t.Error("it ended long ago")
	}
}

func second[T any](_ T, err error) error { return err }

// dirs returns how many runs have a directory.
func (w *world) dirs() int {
	w.t.Helper()
	return len(got(os.ReadDir(filepath.Join(w.lconf.Dir, "runs")))(w.t))
}
