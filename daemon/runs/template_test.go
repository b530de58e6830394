package runs_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
)

// TestSharedSetup: agents with the same image, set-up and environment share one build, also if it is requested concurrently, and the
// removal of one agent leaves it to the others.
func TestSharedSetup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	setup := []caisson.SetupStep{{
		Run: []string{guest.Path, "test", "fill", "/srv/big", "3"}, Files: []caisson.SeedFile{{Path: "/srv/package-lock.json", Data: "{}"}},
	}}
	ids := []string{"one", "two", "three"}
	for _, id := range ids {
		w.put(caisson.Agent{ID: id, Setup: setup, Command: []string{"/bin/" + id}, Files: []caisson.SeedFile{{Path: "/srv/settings", Data: id}}})
	}
	var ran atomic.Int32
	build := func(id string) (*caisson.Agent, error) {
		return w.Agents().BuildAgent(w.ctx(), id, func(p caisson.Progress) {
			if strings.HasPrefix(p.Stage, "setup ") && p.Message == "" {
				ran.Add(1)
			}
		})
	}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			if a, err := build(id); err != nil || !a.Status.Built {
				t.Errorf("%s: %+v, %v", id, a, err)
			}
		})
	}
	wg.Wait()
	if n := ran.Load(); n != 1 {
		t.Errorf("%d steps ran for %d agents", n, len(ids))
	}
	must(t, w.Agents().RemoveAgent(w.ctx(), "one"))
	must(t, w.Agents().RemoveAgent(w.ctx(), "two"))
	got(w.life.ImageService().PruneImages(w.ctx()))(t)
	if r := w.do(caisson.RunRequest{Agent: "three", Prompt: "hello"}); r.State != caisson.RunSucceeded {
		t.Errorf("the run is %s: %+v", r.State, r.Result)
	}
	w.put(caisson.Agent{ID: "one", Setup: setup})
	got(build("one"))(t)
	if n := ran.Load(); n != 1 {
		t.Errorf("%d steps ran, also for an agent that was added again", n)
	}
	setup[0].Files = []caisson.SeedFile{{Path: "/srv/package-lock.json", Data: "{ }"}}
	w.put(caisson.Agent{ID: "one", Setup: setup})
	got(build("one"))(t)
	if n := ran.Load(); n != 2 {
		t.Errorf("with another lock file %d steps ran", n)
	}
}
