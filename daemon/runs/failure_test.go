package runs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
)

// TestRefused: an invalid request is rejected at once, and nothing remains of it.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.models.set(nil, "small")
	w.put(caisson.Agent{ID: "chatty", Models: []string{"small", "large"}})
	w.models.add(caisson.GatewayModel{Model: caisson.Model{Alias: "sonnet", Provider: "p", Upstream: "sonnet"}, Kind: caisson.ProviderAnthropic})
	w.put(caisson.Agent{ID: "lost", Models: []string{"gone"}})
	w.put(caisson.Agent{ID: "other-api", Models: []string{"small", "sonnet"}, APIs: []string{caisson.APIOpenAI}})
	for _, c := range []struct {
		name string
		req  caisson.RunRequest
		kind caisson.Kind
	}{
		{"unknown agent", caisson.RunRequest{Agent: "nobody", Prompt: "x"}, caisson.NotFound},
		{"model that it may not use", caisson.RunRequest{Agent: "chatty", Prompt: "x", Model: "other"}, caisson.Invalid},
		{"model that is not configured", caisson.RunRequest{Agent: "chatty", Prompt: "x", Model: "large"}, caisson.Invalid},
		{"no model at all", caisson.RunRequest{Agent: "lost", Prompt: "x"}, caisson.Invalid},
		{"model of another API", caisson.RunRequest{Agent: "other-api", Prompt: "x"}, caisson.Invalid},
		{"model for an agent that calls none", caisson.RunRequest{Agent: "echo", Prompt: "x", Model: "small"}, caisson.Invalid},
		{"the model of warming up", caisson.RunRequest{Agent: "chatty", Prompt: "x", Model: "caisson-warm-up"}, caisson.Invalid},
		{"no prompt", caisson.RunRequest{Agent: "echo"}, caisson.Invalid},
		{"session with spaces", caisson.RunRequest{Agent: "echo", Prompt: "x", Session: "a b"}, caisson.Invalid},
		{"labels of Caisson's own", caisson.RunRequest{Agent: "echo", Prompt: "x", Labels: map[string]string{"caisson/session": "x"}}, caisson.Invalid},
		{"persona", caisson.RunRequest{Agent: "echo", Prompt: "x", Persona: "p"}, caisson.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.Runs().StartRun(w.ctx(), c.req)
			wantKind(t, err, c.kind)
		})
	}
	_, err := w.Runs().StartRun(w.as("other"), caisson.RunRequest{Agent: "chatty", Prompt: "x", Limits: caisson.AgentLimits{Time: 1 << 60}})
	wantKind(t, err, caisson.NotFound)
	w.models.set(errInjected)
	_, err = w.Runs().StartRun(w.ctx(), caisson.RunRequest{Agent: "echo", Prompt: "x"})
	if !errors.Is(err, errInjected) {
		t.Errorf("error is %v", err)
	}
	if list, _, err := w.Runs().ListRuns(w.ctx(), caisson.RunFilter{}); err != nil || len(list) != 0 {
		t.Errorf("there are runs: %v, %v", list, err)
	}
}

// TestAgentFails: whatever an agent does, its run ends once with a reason, and nothing of it remains.
func TestAgentFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		name  string
		voice func(*turn) int
		code  string
		words string
	}{
		{"says what went wrong", func(v *turn) int {
			v.text("half")
			return v.end(&caisson.RunError{Code: caisson.RunAgentError, Message: "no luck"})
		}, caisson.RunAgentError, "no luck"},
		{"over budget", func(v *turn) int {
			return v.end(&caisson.RunError{Code: caisson.RunAgentError, Message: "call failed: over_budget"})
		}, caisson.RunNoCredits, "over_budget"},
		{"too many calls", func(v *turn) int {
			return v.end(&caisson.RunError{Code: caisson.RunAgentError, Message: "HTTP 429 from the model: rate_limit"})
		}, caisson.RunRateLimit, "rate_limit"},
		{"its own time is over", func(v *turn) int {
			return v.end(&caisson.RunError{Code: caisson.RunTimeout, Message: "after 1s"})
		}, caisson.RunTimeout, "after 1s"},
		{"exits in the middle", func(v *turn) int {
			v.text("and then")
			fmt.Fprintln(v.Stderr(), "panic: oh")
			return 2
		}, caisson.RunAgentError, "panic: oh"},
		{"exits at once", func(*turn) int { return 0 }, caisson.RunAgentError, "exited with 0"},
		{"garbage", func(v *turn) int {
			v.text("fine")
			fmt.Fprintln(v.Stdout(), `{"type":"done"}`)
			<-v.ctx.Done()
			return 0
		}, caisson.RunAgentError, "is malformed"},
		{"half a line", func(v *turn) int {
			fmt.Fprint(v.Stdout(), `{"type":"text_del`)
			return 0
		}, caisson.RunAgentError, "exited with 0"},
		{"control characters", func(v *turn) int {
			fmt.Fprintln(v.Stdout(), `{"type":"text_delta","delta":"\u001b[2J"}`)
			<-v.ctx.Done()
			return 0
		}, caisson.RunAgentError, "is malformed"},
		{"no end of a line", func(v *turn) int {
			for b := []byte(strings.Repeat("x", 64<<10)); ; {
				if _, err := v.Stdout().Write(b); err != nil {
					return 1
				}
			}
		}, caisson.RunAgentError, "is malformed"},
		{"too much output", func(v *turn) int {
			for b := strings.Repeat("x", 32<<10); v.text(b); {
			}
			return 1
		}, caisson.RunAgentError, "is malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.on("fail", c.voice)
			r := w.do(caisson.RunRequest{Prompt: "fail", Limits: caisson.AgentLimits{Output: 1 << 20}})
			wantFailed(t, r, c.code, c.words)
			w.empty()
			if size := len(r.Result.Answer); size > 1<<20+64<<10 {
				t.Errorf("%d bytes of answer were kept", size)
			}
		})
	}
}

// TestNoAnswer: a program that is granted no models may succeed without output; an agent may not.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.models.set(nil, "small")
	w.put(caisson.Agent{ID: "thinks", Models: []string{"small"}})
	w.on("silent", func(v *turn) int { return v.end(nil) })
	if r := w.do(caisson.RunRequest{Prompt: "silent"}); r.State != caisson.RunSucceeded || r.Result.Answer != "" {
		t.Errorf("a program: %s, %+v", r.State, r.Result)
	}
	wantFailed(t, w.do(caisson.RunRequest{Agent: "thinks", Prompt: "silent"}), caisson.RunAgentError, "without an answer")
	w.empty()
}

// TestOutputCut: output beyond the limit is not kept, and the result reports it.
func TestOutputCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.on("talk", func(v *turn) int {
		for range 200 {
			v.text(strings.Repeat("y", 1<<10))
			v.handleLine(task.Line{RunEvent: caisson.RunEvent{Type: task.LineLog}, Stream: caisson.LogStdout, Data: []byte(strings.Repeat("z", 1<<10))})
		}
		return v.end(nil)
	})
	r := w.do(caisson.RunRequest{Prompt: "talk", Limits: caisson.AgentLimits{Output: 64 << 10}})
	if res := r.Result; r.State != caisson.RunSucceeded || !res.Cut || len(res.Answer) < 64<<10 || len(res.Answer) > 128<<10 || res.Stdout != 64<<10 {
		t.Errorf("%s, cut: %v, %d bytes of answer, %d of log", r.State, res.Cut, len(res.Answer), res.Stdout)
	}
	if n := len(w.log(r.ID, caisson.LogStdout)); n != 64<<10 {
		t.Errorf("the log has %d bytes", n)
	}
}

func TestSandboxDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began, _ := w.hangs("wait")
	r := w.start(caisson.RunRequest{Prompt: "wait"})
	receive(t, began)
	must(t, w.rt.Kill(w.stored(r.ID).Sandbox))
	wantFailed(t, w.ended(r.ID), caisson.RunAgentError, "the agent's sandbox ended")
	w.empty()
}

// TestSteps: each step before the agent's start can fail, and the result contains the reason.
func TestSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, op := range []string{"get template", "create", "exec"} {
		t.Run(op, func(t *testing.T) {
			w.boxes.fail(op, 1, errInjected)
			wantFailed(t, w.do(caisson.RunRequest{Prompt: "x"}), caisson.RunInternal, "")
			w.boxes.fail(op, 1, caisson.Errorf(caisson.Invalid, "cannot be"))
			wantFailed(t, w.do(caisson.RunRequest{Prompt: "x"}), caisson.RunInvalid, "cannot be")
			w.empty()
			wantAnswer(t, w.do(caisson.RunRequest{Prompt: "x"}), "you said x")
		})
	}
}

// TestTidyingFails: resources that cannot be removed or released at once are removed a moment later.
func TestTidyingFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for op, nth := range map[string]int64{"remove": 1, "store: delete budget": 2, "store: update session": 2} {
		t.Run(op, func(t *testing.T) {
			var n atomic.Int64
			w.steps.on(func(_ context.Context, did string) error {
				if did == op && n.Add(1) == nth {
					return caisson.Wrap(errInjected, caisson.Unavailable, "not now")
				}
				return nil
			})
			defer w.steps.on(nil)
			req := caisson.RunRequest{Prompt: "x", Limits: caisson.AgentLimits{Calls: new(int64(3))}}
			if op != "store: update session" {
				wantAnswer(t, w.do(req), "you said x")
				w.empty()
				return
			}
			req.Session = "s"
			r := w.do(req)
			wantAnswer(t, r, "you said x")
			if s := w.session("s"); s.Run != "" || s.Sandbox != r.Sandbox {
				t.Errorf("the session is %+v", s)
			}
			must(t, w.Runs().RemoveSession(w.ctx(), r.Session))
		})
	}
}

// TestServiceFails: a run does not wait for a failed service, and the log contains the service's output.
func TestServiceFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.on("wait", func(v *turn) int { <-v.ctx.Done(); return 1 })
	w.on("idle", func(v *turn) int {
		w.eventually(func() bool {
			r := got(w.life.Services().ServiceLogs(w.ctx(), string(w.sandboxes()[0].ID), caisson.AgentService, false))(t)
			defer r.Close()
			return len(got(io.ReadAll(r))(t)) > 0
		})
		return v.end(&caisson.RunError{Code: caisson.RunAgentError, Message: "not ready"})
	})
	const never = "http://127.0.0.1:9/ready"
	fails := []string{guest.Path, "test", "exit", "x"}
	for _, c := range []struct {
		name, ready, prompt string
		service             []string
		want, log           string
	}{
		{"exits", never, "wait", fails, `the agent's service exited with 125: caisson-guestd: "x" is not a number`, "not a number"},
		{"exits without a word", never, "wait", []string{guest.Path, "test", "exit", "3"}, "service exited with 3: it wrote nothing", ""},
		{"is missing", never, "wait", []string{"/no/such/service"}, "service exited with 127: [caisson: it cannot be started: /no/such/service", "/no/such/service"},
		{"nothing asks whether it is ready", "", "x", fails, "service exited with 125: ", "not a number"},
		{"is not ready in time", never, "idle", []string{guest.Path, "test", "serve", "tcp", "80", "echo"}, "not ready", "ready\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.put(caisson.Agent{ID: "served", Service: c.service, Ready: c.ready})
			if c.ready == "" { // it is asked once
				w.boxes.on(func(ctx context.Context, op string) error {
					if op == "list services" {
						w.eventually(func() bool { return w.serving(w.ctx(), w.sandboxes()[0].ID) == 0 })
					}
					return nil
				})
				defer w.boxes.on(nil)
			}
			r := w.do(caisson.RunRequest{Agent: "served", Prompt: c.prompt})
			wantFailed(t, r, caisson.RunAgentError, c.want)
			if log := w.log(r.ID, caisson.LogStderr); !strings.Contains(log, c.log) || c.log == "" && log != "" {
				t.Errorf("the log is %q, want %q", log, c.log)
			}
			w.empty()
		})
	}
}
