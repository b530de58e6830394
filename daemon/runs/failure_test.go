package runs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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
		}, caisson.RunAgentError, "makes no sense"},
		{"half a line", func(v *turn) int {
			fmt.Fprint(v.Stdout(), `{"type":"text_del`)
			return 0
		}, caisson.RunAgentError, "exited with 0"},
		{"control characters", func(v *turn) int {
			fmt.Fprintln(v.Stdout(), `{"type":"text_delta","delta":"\u001b[2J"}`)
			<-v.ctx.Done()
			return 0
		}, caisson.RunAgentError, "makes no sense"},
		{"no end of a line", func(v *turn) int {
			for b := []byte(strings.Repeat("x", 64<<10)); ; {
				if _, err := v.Stdout().Write(b); err != nil {
					return 1
				}
			}
		}, caisson.RunAgentError, "makes no sense"},
		{"too much output", func(v *turn) int {
			for b := strings.Repeat("x", 32<<10); v.text(b); {
			}
			return 1
		}, caisson.RunAgentError, "makes no sense"},
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

// TestTimeout: an agent that does not stop by itself is killed at the run's time limit; the agent's own limit is a
// tenth less.
func TestTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limits := caisson.AgentLimits{Time: caisson.Duration(4 * time.Second)} // the start takes some of it, more on a busy machine
	began, _ := w.hangs("wait")
	r := w.start(caisson.RunRequest{Prompt: "wait", Limits: limits})
	v := receive(t, began)
	if d := time.Duration(v.task.Time); d > 3600*time.Millisecond || d < 100*time.Millisecond {
		t.Errorf("the agent is given %v of %v", d, limits.Time)
	}
	r = w.ended(r.ID)
	wantFailed(t, r, caisson.RunTimeout, "4s")
	if r.Result.Answer != "begun " {
		t.Errorf("the answer is %q", r.Result.Answer)
	}
	w.empty()
}

// TestTimeoutNotReady: the error of a run whose agent never got its prompt names the service, whichever component
// detects the timeout first.
func TestTimeoutNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(caisson.Agent{ID: "served", Service: sleeps, Ready: "http://127.0.0.1:9/ready"})
	w.on("wait", func(v *turn) int { <-v.ctx.Done(); return 1 })
	r := w.start(caisson.RunRequest{Agent: "served", Prompt: "wait", Limits: caisson.AgentLimits{Time: caisson.Duration(3 * time.Second)}})
	wantFailed(t, w.ended(r.ID), caisson.RunTimeout, "service was not ready within the run's time of 3s")
	w.empty()
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

// TestIgnoresTerm: the exec session of a program that ignores SIGTERM is closed.
func TestIgnoresTerm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began := make(chan bool, 1)
	w.on("stay", func(v *turn) int {
		term := v.Catch(syscall.SIGTERM)
		began <- true
		<-term
		began <- true
		<-v.ctx.Done()
		return 0
	})
	r := w.start(caisson.RunRequest{Prompt: "stay"})
	receive(t, began)
	done := make(chan error, 1)
	go func() { done <- second(w.Runs().CancelRun(w.ctx(), r.ID)) }()
	receive(t, began)
	must(t, receive(t, done))
	wantFailed(t, w.ended(r.ID), caisson.RunAborted, "cancelled")
	w.empty()
}

// TestCancel cancels a run in each state, twice concurrently.
func TestCancel(t *testing.T) {
	t.Parallel()
	cancel := func(w *world, id caisson.ID) {
		w.t.Helper()
		errs := make(chan error, 2)
		for range 2 {
			go func() { errs <- second(w.Runs().CancelRun(w.ctx(), id)) }()
		}
		for range 2 {
			must(w.t, receive(w.t, errs))
		}
		if !w.stored(id).State.Ended() {
			w.t.Error("CancelRun has returned before the run has ended")
		}
	}
	t.Run("queued", func(t *testing.T) {
		w := plan{limits: limitsOf(1, 1)}.world(t)
		began, goOn := w.hangs("wait")
		first := w.start(caisson.RunRequest{Prompt: "wait"})
		receive(t, began)
		second := w.start(caisson.RunRequest{Prompt: "wait"})
		cancel(w, second.ID)
		wantFailed(t, w.ended(second.ID), caisson.RunAborted, "cancelled")
		goOn()
		wantAnswer(t, w.ended(first.ID), "begun done")
	})
	t.Run("starting", func(t *testing.T) {
		w := newWorld(t)
		reached := make(chan bool, 1)
		w.boxes.on(func(ctx context.Context, op string) error {
			if op == "create" {
				reached <- true
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		r := w.start(caisson.RunRequest{Prompt: "x"})
		receive(t, reached)
		cancel(w, r.ID)
		wantFailed(t, w.ended(r.ID), caisson.RunAborted, "cancelled")
		w.boxes.on(nil)
		w.empty()
	})
	t.Run("running", func(t *testing.T) {
		w := newWorld(t)
		began, _ := w.hangs("wait")
		r := w.start(caisson.RunRequest{Prompt: "wait"})
		receive(t, began)
		cancel(w, r.ID)
		wantFailed(t, w.ended(r.ID), caisson.RunAborted, "cancelled")
		w.empty()
	})
	t.Run("ending", func(t *testing.T) {
		w := newWorld(t)
		reached, goOn := make(chan bool, 1), make(chan bool)
		w.store.on(func(op string, r *caisson.Run) error {
			if op == "update" && r.State.Ended() {
				reached <- true
				<-goOn
			}
			return nil
		})
		r := w.start(caisson.RunRequest{Prompt: "x"})
		receive(t, reached)
		w.store.on(nil)
		close(goOn)
		cancel(w, r.ID)
		wantAnswer(t, w.ended(r.ID), "you said x")
	})
	t.Run("ended", func(t *testing.T) {
		w := newWorld(t)
		r := w.do(caisson.RunRequest{Prompt: "x"})
		cancel(w, r.ID)
		wantAnswer(t, w.ended(r.ID), "you said x")
	})
}

// TestStoreFails: whichever write of a run fails for a while, the run ends once, and an incomplete answer is not
// reported as complete.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		name string
		op   string
		when func(*caisson.Run) bool
		n    int32
		want string // code of the run's error; "" if it succeeds
	}{
		{"first events", "append", nil, 1, caisson.RunInternal},
		{"all events for a while", "append", nil, 4, caisson.RunInternal},
		{"looking for the last event", "last event", nil, 1, caisson.RunInternal},
		{"the start", "update", func(r *caisson.Run) bool { return r.State == caisson.RunStarting }, 1, caisson.RunInternal},
		{"the sandbox", "update", func(r *caisson.Run) bool { return r.State == caisson.RunRunning }, 1, caisson.RunInternal},
		{"the result", "update", func(r *caisson.Run) bool { return r.State.Ended() }, 3, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var left atomic.Int32
			left.Store(c.n)
			w.store.on(func(op string, r *caisson.Run) error {
				if op == c.op && (c.when == nil || c.when(r)) && left.Add(-1) >= 0 {
					return errInjected
				}
				return nil
			})
			r := w.start(caisson.RunRequest{Prompt: "x"})
			w.eventually(func() bool { return w.stored(r.ID).State.Ended() && !w.Live() })
			r = w.ended(r.ID)
			if c.want != "" {
				wantFailed(t, r, c.want, "")
			} else {
				wantAnswer(t, r, "you said x")
			}
			w.empty()
		})
	}
}

// TestEventsFailLate: the store rejects events from the middle of an answer on. The run fails, but its last events are
// stored.
func TestEventsFailLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var broken atomic.Bool
	w.store.on(func(op string, r *caisson.Run) error {
		if op == "append" && broken.Load() {
			return errInjected
		}
		return nil
	})
	seen := make(chan bool)
	w.on("talk", func(v *turn) int {
		v.text("first ")
		<-seen
		for range 5000 {
			v.text("more ")
		}
		return v.end(nil)
	})
	r := w.start(caisson.RunRequest{Prompt: "talk"})
	ch := got(w.Runs().WatchRun(w.ctx(), r.ID, 0))(t)
	for e := range ch {
		if e.Type == caisson.EventTextDelta {
			break
		}
	}
	broken.Store(true)
	close(seen)
	w.waitState(r.ID, caisson.RunFailed)
	broken.Store(false)
	wantFailed(t, w.ended(r.ID), caisson.RunInternal, "could not be recorded")
	if e := lastOf(t, ch); e.Type != caisson.EventDone {
		t.Errorf("who has watched all along hears %s last", e.Type)
	}
}

// lastOf returns the last value of a channel.
func lastOf[T any](t testing.TB, ch <-chan T) (v T) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case next, ok := <-ch:
			if !ok {
				return v
			}
			v = next
		case <-timeout:
			t.Fatal("it does not end")
		}
	}
}

// TestLedgerFails: usage that cannot be read is reported as an estimate.
func TestLedgerFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.calls.mu.Lock()
	w.calls.err = errInjected
	w.calls.mu.Unlock()
	if r := w.do(caisson.RunRequest{Prompt: "x"}); !r.Result.Usage.Estimated {
		t.Errorf("usage is %+v", r.Result.Usage)
	}
}

// TestProviderFails: a run that ends because of its provider's failure reports it, whatever error its agent returns.
func TestProviderFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const why = `the provider refused the credential K of model "m" (401): run "caisson credential rotate K"`
	bad := caisson.Call{Status: 400, Error: "upstream", Detail: why}
	good := caisson.Call{Status: 200}
	cut := caisson.Call{Status: 0, Error: "aborted", Estimated: true}
	says := func(code string) func(*turn) int {
		return func(v *turn) int { return v.end(&caisson.RunError{Code: code, Message: "the model does not answer"}) }
	}
	w.models.set(nil, "small")
	w.put(caisson.Agent{ID: "thinks", Models: []string{"small"}}) // one without models could succeed without an answer
	for _, c := range []struct {
		name  string
		calls []caisson.Call
		voice func(*turn) int
		code  string // "" means success
	}{
		{"an agent that knows nothing", []caisson.Call{bad}, says(caisson.RunAgentError), caisson.RunProvider},
		{"one that takes it for the gateway's", []caisson.Call{good, bad}, says(caisson.RunInternal), caisson.RunProvider},
		{"one that gives up in time", []caisson.Call{bad, bad}, says(caisson.RunTimeout), caisson.RunProvider},
		{"no answer", []caisson.Call{bad}, func(v *turn) int { return v.end(nil) }, caisson.RunProvider},
		{"the last call was cut", []caisson.Call{bad, cut}, says(caisson.RunTimeout), caisson.RunProvider},
		{"a later call succeeded", []caisson.Call{bad, good}, says(caisson.RunAgentError), caisson.RunAgentError},
		{"only a cut", []caisson.Call{cut}, says(caisson.RunTimeout), caisson.RunTimeout},
		{"too many calls", []caisson.Call{bad}, says(caisson.RunRateLimit), caisson.RunRateLimit},
		{"over budget", []caisson.Call{bad}, says(caisson.RunNoCredits), caisson.RunNoCredits},
		{"the sandbox ends", []caisson.Call{bad}, func(*turn) int { return 3 }, caisson.RunAgentError},
		{"success in spite of it", []caisson.Call{bad}, func(v *turn) int { v.text("done"); return v.end(nil) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			begun, goOn := make(chan bool), make(chan bool)
			w.on("provider", func(v *turn) int {
				close(begun)
				<-goOn
				return c.voice(v)
			})
			r := w.start(caisson.RunRequest{Agent: "thinks", Prompt: "provider"})
			receive(t, begun)
			for _, row := range c.calls {
				w.calls.put(r.ID, 1, row)
			}
			close(goOn)
			r = w.ended(r.ID)
			if c.code == "" {
				wantAnswer(t, r, "done")
			} else {
				wantFailed(t, r, c.code, map[bool]string{true: why}[c.code == caisson.RunProvider])
			}
			if want := map[bool]string{true: why}[c.name != "only a cut"]; r.Result.Provider != want {
				t.Errorf("of the provider it says %q", r.Result.Provider)
			}
		})
	}
}

// TestCostIsSettled: the end of a run is reported with the cost of its last call, which ends with the sandbox. If the
// call does not end, the upper bound is reported, and the cost is stored when it has ended.
func TestCostIsSettled(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprint("ends with the sandbox ", ends), func(t *testing.T) {
			limits := limitsOf(4, 4)
			if !ends {
				limits.Settle = time.Millisecond
			}
			w := plan{limits: limits}.world(t)
			began, _ := w.hangs("wait")
			r := w.start(caisson.RunRequest{Prompt: "wait"})
			receive(t, began)
			w.calls.add(r.ID, 1, 1000)
			settle := w.calls.begin(r.ID, 5_000_000, 700)
			if ends {
				w.boxes.on(func(_ context.Context, op string) error {
					if op == "remove" {
						settle()
					}
					return nil
				})
			}
			got(w.Runs().CancelRun(w.ctx(), r.ID))(t)
			var told caisson.RunUsage
			for e := range got(w.Runs().WatchRun(w.ctx(), r.ID, 0))(t) {
				if e.Type == caisson.EventUsage {
					told = *e.Usage
				}
			}
			want := caisson.RunUsage{Calls: 1, Cost: 1000, MaxCost: 5_001_000, Tokens: caisson.TokenCount{Input: 10, Output: 5}}
			if ends {
				want.Calls, want.Failed, want.Cost, want.MaxCost, want.Estimated = 2, 1, 1700, 0, true
			}
			if told != want || ends && w.stored(r.ID).Usage != want {
				t.Errorf("at the end is told %+v, stored %+v; want %+v", told, w.stored(r.ID).Usage, want)
			}
			w.boxes.on(nil)
			settle()
			w.eventually(func() bool { return w.stored(r.ID).Usage.Cost == 1700 })
			if r := w.stored(r.ID); r.Usage.MaxCost != 0 || r.Result.Usage != r.Usage {
				t.Errorf("later it says %+v and %+v", r.Usage, r.Result.Usage)
			}
			w.empty()
		})
	}
}
