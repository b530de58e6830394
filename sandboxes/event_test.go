package sandboxes_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	live := got(w.Events().Watch(ctx, "", 0))(t)
	sb := w.create(caisson.CreateRequest{})
	id := string(sb.ID)
	got(w.Sandboxes().Pause(w.ctx(), id))(t)
	got(w.Sandboxes().Create(w.as("other"), caisson.CreateRequest{}))(t)
	got(w.Sandboxes().Stop(w.ctx(), id, 0))(t)
	must(t, w.Sandboxes().Remove(w.ctx(), id))
	want := []string{"sandbox.running", "sandbox.paused", "sandbox.stopped", "sandbox.removed"}
	var seen []caisson.Event
	var types []string
	for e := range live {
		seen = append(seen, e)
		types = append(types, e.Type)
		if n := len(seen); e.Account != caisson.LocalAccount || e.Subject != id || e.At.IsZero() || n > 1 && e.Seq <= seen[n-2].Seq {
			t.Errorf("event %+v", e)
		}
		if len(seen) == len(want) {
			break
		}
	}
	if !slices.Equal(types, want) {
		t.Errorf("followed %v, want %v", types, want)
	}
	replay := got(w.Events().Watch(ctx, id, seen[1].Seq))(t)
	for _, e := range seen[2:] {
		if r := <-replay; r.Seq != e.Seq || r.Type != e.Type {
			t.Errorf("replayed %+v, want %+v", r, e)
		}
	}
	cancel()
	for range replay { // ends
	}
	for range live {
	}
	// Closing the core ends those who still follow.
	rest := got(w.Events().Watch(w.ctx(), "", 0))(t)
	w.restart()
	for range rest {
	}
}

// TestSlowFollower misses nothing.
func TestSlowFollower(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	live := got(w.Events().Watch(w.ctx(), "", 0))(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				if _, err := w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host"}); err != nil && caisson.KindOf(err) != caisson.Conflict {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n := len(w.record("tpl"))
	var seq int64
	for range n {
		e := <-live
		if e.Seq <= seq {
			t.Fatalf("%d after %d", e.Seq, seq)
		}
		seq = e.Seq
	}
	if last := w.record("tpl")[n-1].Seq; seq != last {
		t.Errorf("the last one seen is %d, the last one stored %d", seq, last)
	}
}
