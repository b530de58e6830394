package runs_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// failing makes prompts that begin with word fail until mend is called.
func (w *world) failing(word string) (mend func()) {
	var mu sync.Mutex
	fails := true
	w.on(word, func(v *turn) int {
		v.handleLine(task.Line{RunEvent: caisson.RunEvent{Type: task.LineLog}, Stream: caisson.LogStdout, Data: []byte("attempt " + env(v.task.Env, "TRACEPARENT"))})
		mu.Lock()
		defer mu.Unlock()
		if fails {
			v.text("half")
			return v.end(&caisson.RunError{Code: caisson.RunAgentError, Message: "no luck"})
		}
		v.text("whole")
		return v.end(nil)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		fails = false
	}
}

// TestZeroBudget: limits of 0 result in a budget of 0.
func TestZeroBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	budget := make(chan *caisson.Budget, 1)
	w.boxes.on(func(_ context.Context, op string) error {
		if op == "create" {
			list, err := w.store.Ledger().ListBudgets(w.ctx(), caisson.In("local"))
			if err != nil || len(list) != 1 {
				t.Errorf("budgets %v, %v", list, err)
				close(budget)
			} else {
				budget <- list[0]
			}
		}
		return nil
	})
	w.do(caisson.RunRequest{Prompt: "x", Limits: caisson.AgentLimits{Cost: new(caisson.USD(0)), Calls: new(int64(0))}})
	if b := <-budget; b == nil || b.Limits.USD == nil || *b.Limits.USD != 0 || b.Limits.Calls == nil || *b.Limits.Calls != 0 || b.Limits.Tokens != nil {
		t.Errorf("the budget is %+v", b)
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mend := w.failing("try")
	r := w.start(caisson.RunRequest{Prompt: "try", Limits: caisson.AgentLimits{Calls: new(int64(3))}})
	w.calls.add(r.ID, 1, 500)
	r = w.ended(r.ID)
	wantFailed(t, r, caisson.RunAgentError, "no luck")
	mend()
	// While the second attempt starts, it has a budget, although that of the first one is being removed at the same
	// time.
	budget := make(chan error, 1)
	w.boxes.on(func(_ context.Context, op string) error {
		if op == "create" {
			budget <- second(w.store.Ledger().GetBudget(w.ctx(), caisson.In("local"), "run/"+string(r.ID)))
		}
		return nil
	})
	again := got(w.Runs().RetryRun(w.ctx(), r.ID))(t)
	if again.Attempt != 2 || again.Trace == r.Trace || again.Result != nil || len(again.Previous) != 1 {
		t.Errorf("the second attempt begins as %+v", again)
	}
	must(t, receive(t, budget))
	w.boxes.on(nil)
	w.calls.add(r.ID, 2, 70)
	again = w.ended(r.ID)
	wantAnswer(t, again, "whole")
	if p := again.Previous[0]; p.Error == nil || p.Answer != "half" || p.Usage.Cost != 500 || p.Attempt != 1 || p.Trace != r.Trace {
		t.Errorf("of the first attempt is kept %+v", p)
	}
	if u := again.Usage; again.Result.Usage.Cost != 70 || u.Cost != 570 || u.Calls != 2 || u.Tokens.Total() != 30 {
		t.Errorf("the attempts took %+v, the last of them %+v", u, again.Result.Usage)
	}
	if have := w.log(r.ID, caisson.LogStdout); !strings.Contains(have, again.Trace) || strings.Contains(have, r.Trace) {
		t.Errorf("the log is %q", have)
	}
	w.empty()
	_, err := w.Runs().RetryRun(w.ctx(), r.ID)
	wantKind(t, err, caisson.Conflict)
}

// TestRetryAtOnce: many concurrent retries, as soon as a run is seen to have failed, start one attempt, which the
// cleanup of the first one does not affect.
func TestRetryAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mend := w.failing("try")
	r := w.start(caisson.RunRequest{Prompt: "try", Session: "s"})
	w.waitState(r.ID, caisson.RunFailed)
	mend()
	began, goOn := make(chan bool), make(chan bool)
	w.boxes.on(func(_ context.Context, op string) error {
		if op == "assign" {
			select {
			case began <- true:
				<-goOn
			case <-goOn:
			}
		}
		return nil
	})
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() { errs <- second(w.Runs().RetryRun(w.ctx(), r.ID)) }()
	}
	receive(t, began)
	ok := 0
	for range cap(errs) {
		if err := receive(t, errs); err == nil {
			ok++
		} else {
			wantKind(t, err, caisson.Conflict)
		}
	}
	if s := w.session("s"); ok != 1 || s.Run != r.ID {
		t.Errorf("%d retries were taken, the session has run %q", ok, s.Run)
	}
	if !w.Live() {
		t.Error("the attempt is not known")
	}
	close(goOn)
	wantAnswer(t, w.ended(r.ID), "whole")
	if r := w.stored(r.ID); r.Attempt != 2 {
		t.Errorf("there were %d attempts", r.Attempt)
	}
}

// TestRetryUnderWay: only a failed run can be retried.
func TestRetryUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began, goOn := w.hangs("wait")
	r := w.start(caisson.RunRequest{Prompt: "wait"})
	receive(t, began)
	_, err := w.Runs().RetryRun(w.ctx(), r.ID)
	wantKind(t, err, caisson.Conflict)
	goOn()
	wantAnswer(t, w.ended(r.ID), "begun done")
}

// TestRetryOverToken: a run that was started over the unix socket has rights that a token does not have.
func TestRetryOverToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.failing("try")
	r := w.do(caisson.RunRequest{Prompt: "try"})
	_, err := w.Runs().RetryRun(w.as("local"), r.ID)
	wantKind(t, err, caisson.Denied)
}

// TestRetryWorkspace: the copy of the workspace is kept for further attempts, also after a restart, until one succeeds.
func TestRetryWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mend := w.failing("try")
	r := w.do(caisson.RunRequest{Prompt: "try", Source: "/project", Directory: w.project(map[string]string{"file": "content"})})
	wantFailed(t, r, caisson.RunAgentError, "no luck")
	w.restart()
	if !w.has(r.ID, "workspace.tar") {
		t.Fatal("the copy is gone")
	}
	mend()
	w.on("try", func(v *turn) int {
		v.text(read(v, "/workspace/file"))
		return v.end(nil)
	})
	got(w.Runs().RetryRun(w.ctx(), r.ID))(t)
	wantAnswer(t, w.ended(r.ID), "content")
	w.empty()
	w.eventually(func() bool { return !w.has(r.ID, "workspace.tar") })
}
