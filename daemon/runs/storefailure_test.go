package runs_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

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
