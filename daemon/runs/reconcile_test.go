package runs_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/runs"
)

// edit changes a stored run as the previous daemon would have.
func (w *world) edit(id caisson.ID, change func(*caisson.Run)) {
	w.t.Helper()
	_, err := w.store.Store.Runs().Update(context.Background(), caisson.AllAccounts(), id, func(r *caisson.Run) error {
		change(r)
		return nil
	})
	must(w.t, err)
}

// TestRestart: queued runs are queued again in their order; runs in progress have failed, with their output so far and
// their cost.
func TestRestart(t *testing.T) {
	t.Parallel()
	w := plan{limits: limitsOf(1, 1)}.world(t)
	began, _ := w.hangs("wait")
	under := w.start(caisson.RunRequest{Prompt: "wait"})
	receive(t, began)
	w.eventually(func() bool {
		return len(got(w.store.Runs().Events(w.ctx(), caisson.In("local"), under.ID, 0, 100))(t)) > 3
	})
	w.calls.add(under.ID, 1, 900)
	var waiting []caisson.ID
	for range 3 {
		waiting = append(waiting, w.start(caisson.RunRequest{Prompt: "x"}).ID)
	}
	w.down()
	if s := w.stored(under.ID).State; s != caisson.RunRunning {
		t.Fatalf("the end of the daemon leaves the run %s", s)
	}
	w.up()
	r := w.ended(under.ID)
	wantFailed(t, r, caisson.RunInternal, "daemon ended")
	if r.Result.Usage.Cost != 900 || r.Result.Answer != "begun " {
		t.Errorf("the result is %+v", r.Result)
	}
	if v, ok := r.Result.Versions["caisson"]; ok {
		t.Errorf("the daemon that ends the run is said to have run it: %s", v)
	}
	var ends []time.Time
	for _, id := range waiting {
		r := w.ended(id)
		wantAnswer(t, r, "you said x")
		ends = append(ends, r.EndedAt)
	}
	if !slices.IsSortedFunc(ends, time.Time.Compare) {
		t.Errorf("they ended in the order %v", ends)
	}
	w.empty()
}

// TestRestartAtTheEnd: the last events of a run whose result is stored are stored once, whichever step the daemon
// reached.
func TestRestartAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	blocked := make(chan bool, 1)
	w.store.on(func(op string, r *caisson.Run) error {
		if op == "append" && w.stored(r.ID).State.Ended() {
			select {
			case blocked <- true:
			default:
			}
			return errInjected
		}
		return nil
	})
	r := w.start(caisson.RunRequest{Prompt: "x", Session: "s"})
	receive(t, blocked)
	w.down()
	w.store.on(nil)
	// The daemon stored only the result.
	_, err := w.store.Sessions().Update(w.ctx(), caisson.In("local"), string(w.stored(r.ID).Session), func(s *caisson.Session) error {
		s.Run, s.Sandbox, s.Runs = r.ID, "", 0
		return nil
	})
	must(t, err)
	w.up()
	results := make(chan *caisson.Run, 4)
	for range cap(results) {
		go func() {
			ctx, cancel := context.WithTimeout(w.ctx(), patience)
			defer cancel()
			ch, err := w.Runs().WatchRun(ctx, r.ID, 0)
			if err == nil {
				for range ch {
				}
			}
			results <- r
		}()
	}
	for range cap(results) {
		receive(t, results)
	}
	wantAnswer(t, w.ended(r.ID), "you said x")
	if s := w.session("s"); s.Run != "" || s.Sandbox != w.stored(r.ID).Sandbox || s.Sandbox == "" {
		t.Errorf("the session is %+v", s)
	}
	again := w.turn("y")
	wantAnswer(t, again, "you said y")
	if again.Sandbox != w.stored(r.ID).Sandbox {
		t.Error("the session has lost its sandbox")
	}
}

// TestRestartVolume: a session that a daemon releases for the previous one continues in its volume, even if its sandbox
// is lost later.
func TestRestartVolume(t *testing.T) {
	t.Parallel()
	w, v := withVolumes(t)
	r := w.do(caisson.RunRequest{Prompt: "keep", Session: "s", Kind: caisson.WorkspaceVolume, Source: "data"})
	wantAnswer(t, r, "kept")
	w.down()
	// The daemon stored only the result.
	_, err := w.store.Sessions().Update(w.ctx(), caisson.In("local"), string(r.Session), func(s *caisson.Session) error {
		s.Run, s.Sandbox, s.Volume, s.Runs = r.ID, "", "", 0
		return nil
	})
	must(t, err)
	w.up()
	if s := w.session("s"); s.Run != "" || s.Sandbox != r.Sandbox || s.Volume != got(v.GetVolume(w.ctx(), "data"))(t).ID {
		t.Errorf("the session is %+v", s)
	}
	must(t, w.life.Sandboxes().Remove(w.ctx(), string(r.Sandbox)))
	wantAnswer(t, w.turn("look"), "it")
}

// TestRestartSession: a session keeps its files if the daemon stops during a run.
func TestRestartSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(caisson.Agent{ID: "echo", Service: sleeps})
	box := w.turn("one").Sandbox
	began, _ := w.hangs("wait")
	r := w.start(caisson.RunRequest{Prompt: "wait", Session: "s"})
	receive(t, began)
	w.restart()
	wantFailed(t, w.ended(r.ID), caisson.RunInternal, "daemon ended")
	if s := w.session("s"); s.Run != "" || s.Sandbox != box {
		t.Errorf("the session is %+v", s)
	}
	if sb := w.box(box); sb.State != caisson.Stopped || sb.Assigned != nil {
		t.Errorf("its sandbox is %s", sb.State)
	}
	got(w.Runs().RetryRun(w.ctx(), r.ID))(t)
	receive(t, began)
	// Also if the daemon stops before the run has woken the sandbox.
	w.edit(r.ID, func(r *caisson.Run) { r.State, r.Sandbox = caisson.RunStarting, "" })
	w.restart()
	wantFailed(t, w.ended(r.ID), caisson.RunInternal, "daemon ended")
	if sb := w.box(box); sb.State != caisson.Stopped || sb.Assigned != nil {
		t.Errorf("its sandbox is %s", sb.State)
	}
	again := w.turn("two")
	wantAnswer(t, again, "you said two")
	if again.Sandbox != box {
		t.Error("the session is in another sandbox")
	}
}

// TestRestartRemains: objects that belong to no run are removed, and kept objects stay.
func TestRestartRemains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept := w.do(caisson.RunRequest{Prompt: "x", Keep: true})
	began, _ := w.hangs("wait")
	midway := w.start(caisson.RunRequest{Prompt: "wait", Keep: true})
	receive(t, began)
	done := w.do(caisson.RunRequest{Prompt: "x"})
	w.eventually(func() bool { return len(w.sandboxes()) == 2 })
	mine := got(w.life.Sandboxes().Create(w.ctx(), caisson.CreateRequest{}))(t)
	for _, labels := range []map[string]string{
		{"caisson/run": string(done.ID), "caisson/agent": "echo"},
		{"caisson/run": string(done.ID), "caisson/session": "ss-gone"},
		{"caisson/agent": "echo", "caisson/warm": "key"},
	} {
		got(w.life.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Labels: labels}))(t)
	}
	zero := int64(5)
	for _, key := range []string{"run/" + string(done.ID), "run/elsewhere"} {
		got(w.store.Ledger().PutBudget(w.ctx(), caisson.In("local"), &caisson.Budget{Key: key, Account: "local", Limits: caisson.Limits{Calls: &zero}}))(t)
	}
	for _, dir := range []string{"rn-gone", string(done.ID)} {
		must(t, os.MkdirAll(filepath.Join(w.lconf.Dir, "runs", dir), 0o700))
		must(t, os.WriteFile(filepath.Join(w.lconf.Dir, "runs", dir, "workspace.tar"), nil, 0o600))
	}
	w.restart()
	wantFailed(t, w.ended(midway.ID), caisson.RunInternal, "daemon ended")
	var ids []caisson.ID
	for _, sb := range w.sandboxes() {
		ids = append(ids, sb.ID)
	}
	want := []caisson.ID{kept.Sandbox, w.stored(midway.ID).Sandbox, mine.ID}
	if !slices.Equal(ids, want) {
		t.Errorf("sandboxes are %v, want %v", ids, want)
	}
	w.eventually(func() bool {
		return len(got(w.store.Ledger().ListBudgets(w.ctx(), caisson.AllAccounts()))(t)) == 1
	})
	if b := got(w.store.Ledger().ListBudgets(w.ctx(), caisson.AllAccounts()))(t); b[0].Key != "run/elsewhere" {
		t.Errorf("the budget %s is left", b[0].Key)
	}
	if w.has("rn-gone", ".") || w.has(done.ID, "workspace.tar") || !w.has(done.ID, ".") {
		t.Error("the wrong directories are left")
	}
}

// TestRestartRemainsFail: leftovers of an earlier daemon that cannot be removed do not affect others.
func TestRestartRemainsFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ids []caisson.ID
	for range 3 {
		ids = append(ids, got(w.life.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Labels: map[string]string{"caisson/warm": "key"}}))(t).ID)
	}
	must(t, w.Close())
	w.boxes.fail("remove", 1, errInjected)
	w.Core = runs.New(w.config)
	must(t, w.Reconcile(w.t.Context()))
	w.empty(ids[0])
	w.restart()
	w.empty()
}

// TestRestartStoreFails: a daemon that cannot end the runs of an earlier one works nevertheless, and the next one can
// end them.
func TestRestartStoreFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began, _ := w.hangs("wait")
	r := w.start(caisson.RunRequest{Prompt: "wait"})
	receive(t, began)
	w.down()
	w.store.on(func(op string, r *caisson.Run) error {
		if op == "update" {
			return errInjected
		}
		return nil
	})
	core := runs.New(w.config)
	if err := core.Reconcile(w.t.Context()); err != nil {
		t.Errorf("it does not start: %v", err)
	}
	must(t, core.Close())
	w.store.on(nil)
	w.up()
	wantFailed(t, w.ended(r.ID), caisson.RunInternal, "daemon ended")
	w.empty()
}

// TestTrim: runs that ended long ago are removed, with their files.
func TestTrim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.do(caisson.RunRequest{Prompt: "x"})
	must(t, w.Trim(w.ctx(), r.EndedAt))
	if !w.has(r.ID, ".") {
		t.Error("it is forgotten too early")
	}
	w.empty()
	must(t, w.Trim(w.ctx(), r.EndedAt.Add(time.Second)))
	if _, err := w.Runs().GetRun(w.ctx(), r.ID); caisson.KindOf(err) != caisson.NotFound || w.has(r.ID, ".") {
		t.Errorf("it is there: %v", err)
	}
}
