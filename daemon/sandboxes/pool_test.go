package sandboxes_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
)

// pooled returns the ids of the running pooled sandboxes.
func (w *world) pooled() (ids []caisson.ID) {
	w.t.Helper()
	boxes, _, err := w.store.Store.Sandboxes().List(w.t.Context(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	for _, b := range boxes {
		if b.Pooled && b.State == caisson.Running {
			ids = append(ids, b.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// filled waits until the pool has n sandboxes, and no others are being created.
func (w *world) filled(n int) []caisson.ID {
	w.t.Helper()
	waitFor(w.t, func() bool {
		boxes, _, err := w.store.Store.Sandboxes().List(w.t.Context(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
		must(w.t, err)
		all := 0
		for _, b := range boxes {
			if b.Pooled {
				all++
			}
		}
		return all == n && len(w.pooled()) == n
	})
	return w.pooled()
}

func TestPool(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	tpl := caisson.Template{Name: "tpl", Image: "debian:12", Pool: 2, TTL: caisson.Duration(time.Hour), Env: map[string]string{"A": "tpl"}}
	got(w.Templates().PutTemplate(w.ctx(), tpl))(t)
	ready := w.filled(2)
	before := time.Now()
	sb := w.create(caisson.CreateRequest{
		Template: "tpl", Name: "mine", Labels: map[string]string{"a": "b"}, Env: map[string]string{"A": "mine"}, HardTTL: ptr(caisson.Duration(2 * time.Hour)),
	})
	if !slices.Contains(ready, sb.ID) || sb.Pooled || sb.Name != "mine" || sb.Labels["a"] != "b" || sb.CreatedAt.Before(before) ||
		sb.PauseAt == nil || sb.PauseAt.Before(before.Add(time.Hour)) || sb.RemoveAt == nil {
		t.Errorf("claimed %+v, ready were %v", sb, ready)
	}
	if out, _ := w.run("mine", caisson.ExecRequest{Command: command("env")}); !slices.Contains(splitLines(out), "A=mine") {
		t.Errorf("environment of a claimed sandbox: %q", out)
	}
	ready = w.filled(2)
	if slices.Contains(ready, sb.ID) {
		t.Error("what was claimed is in the pool")
	}
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Template: "tpl", Name: "mine"})
	wantKind(t, err, caisson.Conflict)
	w.filled(2)

	for name, req := range map[string]caisson.CreateRequest{
		"command":   {Command: command("sleep", "1h")},
		"resources": {Resources: caisson.Resources{PIDs: 99}},
		"image":     {Image: "alpine:3"},
		"no start":  {NoStart: true},
		"no pool":   {NoPool: true},
	} {
		req.Template = "tpl"
		ready := w.filled(2)
		if sb := w.create(req); slices.Contains(ready, sb.ID) {
			t.Errorf("%s: came from the pool", name)
		}
	}

	ready = w.filled(2)
	w.restart()
	if now := w.filled(2); !slices.Equal(now, ready) {
		t.Errorf("after a restart the pool has %v, had %v", now, ready)
	}
	// A pooled sandbox that dies is replaced, and nothing of it remains.
	must(t, w.runtime.Kill(ready[0]))
	waitFor(t, func() bool { // the pool may already have removed it after the restart
		s := w.state(ready[0])
		return s == caisson.Failed || s == ""
	})
	w.create(caisson.CreateRequest{Template: "tpl"})
	w.filled(2)
	w.wantState(ready[0], "")

	// A change of the template changes the pool.
	for name, change := range map[string]func(){
		"resources": func() { tpl.Resources.PIDs = 77 },
		"command":   func() { tpl.Command = command("sleep", "1h") },
	} {
		ready = w.filled(2)
		change()
		got(w.Templates().PutTemplate(w.ctx(), tpl))(t)
		waitFor(t, func() bool {
			return !slices.ContainsFunc(w.pooled(), func(id caisson.ID) bool { return slices.Contains(ready, id) })
		})
		ready = w.filled(2)
		sb := w.create(caisson.CreateRequest{Template: "tpl"})
		if !slices.Contains(ready, sb.ID) || sb.Spec.Resources.PIDs != tpl.Resources.PIDs && tpl.Resources.PIDs != 0 || !slices.Equal(sb.Spec.Command, tpl.Command) {
			t.Errorf("%s: claimed %+v", name, sb.Spec)
		}
	}
	// A command that runs already has its environment.
	if tpl.Command != nil {
		ready = w.filled(2)
		if sb := w.create(caisson.CreateRequest{Template: "tpl", Env: map[string]string{"B": "c"}}); slices.Contains(ready, sb.ID) {
			t.Error("a sandbox whose command does not have the environment asked for was handed out")
		}
	}
	tpl.Pool = 1
	got(w.Templates().PutTemplate(w.ctx(), tpl))(t)
	w.filled(1)
	must(t, w.Templates().RemoveTemplate(w.ctx(), "tpl"))
	w.filled(0)
}

func TestPoolClaimsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host", Pool: 4}))(t)
	w.filled(4)
	var mu sync.Mutex
	seen := map[caisson.ID]bool{}
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			sb, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Template: "tpl"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[sb.ID] || sb.Pooled {
				t.Errorf("claimed %+v, %v", sb, err)
				return
			}
			seen[sb.ID] = true
		})
	}
	wg.Wait()
	ready := w.filled(4)
	if len(seen) != 12 {
		t.Errorf("%d sandboxes for 12 claims", len(seen))
	}
	for _, id := range ready {
		if seen[id] {
			t.Errorf("%s is claimed and pooled", id)
		}
	}
}

// TestTemplatePoolIsEvicted: the sandboxes in the pool of a template make room for a sandbox that a user requests.
func TestTemplatePoolIsEvicted(t *testing.T) {
	t.Parallel()
	w := plan{limits: sandboxes.Limits{MemoryReserve: reserve}}.world(t)
	must(t, w.Close())
	var full atomic.Bool // whether a sandbox takes all memory
	w.config.Host.Available = func() (caisson.Size, error) {
		list, err := w.runtime.Runtime.List(context.Background())
		if full.Load() && len(list) > 0 {
			return reserve - 1, err
		}
		return 1 << 40, err
	}
	w.boot()
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host", Pool: 1}))(t)
	w.filled(1)
	full.Store(true)
	w.create(caisson.CreateRequest{})
	w.filled(0)
}

// TestPoolIsAccounts: a pool serves only its account.
func TestPoolIsAccounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, account := range []string{"a", "b"} {
		got(w.Templates().PutTemplate(w.as(account), caisson.Template{Name: "tpl", Image: "host", Pool: 1}))(t)
	}
	w.filled(2)
	sb := got(w.Sandboxes().Create(w.as("a"), caisson.CreateRequest{Template: "tpl"}))(t)
	if sb.Account != "a" {
		t.Errorf("claimed one of %s", sb.Account)
	}
	w.filled(2)
}

// TestTemplateRemovedWhileItsPoolFills: a sandbox that is being created for the pool at that time is removed.
func TestTemplateRemovedWhileItsPoolFills(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	w.store.call("insert", func() {
		if err := w.Templates().RemoveTemplate(w.ctx(), "tpl"); err != nil {
			t.Error(err)
		}
	})
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "debian:12", Pool: 1}))(t)
	waitFor(t, func() bool { return slices.Contains(w.events(""), "sandbox.removed") })
	w.settles()
}
