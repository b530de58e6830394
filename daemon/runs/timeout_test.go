package runs_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

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
