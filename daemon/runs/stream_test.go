package runs_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestWatch: every watcher, from any start and at any speed, gets every event once and in order, and then the end.
func TestWatch(t *testing.T) {
	t.Parallel()
	const deltas = 600
	w := newWorld(t)
	begin := make(chan bool)
	w.on("talk", func(v *turn) int {
		<-begin
		for i := range deltas {
			v.text(strconv.Itoa(i) + " ")
		}
		return v.end(nil)
	})
	r := w.start(caisson.RunRequest{Prompt: "talk"})
	heard := make([][]int64, 10)
	slow := make(chan bool)
	var wg sync.WaitGroup
	for i := range heard {
		ch := got(w.Runs().WatchRun(w.ctx(), r.ID, int64(i)))(t)
		wg.Go(func() {
			if i == 0 {
				<-slow // until the run has ended
			}
			for e := range ch {
				heard[i] = append(heard[i], e.Seq)
			}
		})
	}
	ctx, cancel := contextWithCancel(w.ctx())
	left := got(w.Runs().WatchRun(ctx, r.ID, 0))(t)
	receive(t, left)
	cancel()
	lastOf(t, left)
	close(begin)
	list := w.events(r.ID)
	close(slow)
	wg.Wait()
	if n := len(list); n < deltas {
		t.Fatalf("there are %d events", n)
	}
	for after, seqs := range heard {
		if want := int64(len(list) - after); int64(len(seqs)) != want || !slices.IsSorted(seqs) || seqs[0] != int64(after)+1 {
			t.Errorf("after %d there were %d events, want %d", after, len(seqs), want)
		}
	}
	for _, after := range []int64{0, 5, int64(len(list)) - 1, int64(len(list)), int64(len(list)) + 10} {
		n := int64(0)
		for range got(w.Runs().WatchRun(w.ctx(), r.ID, after))(t) {
			n++
		}
		if want := max(0, int64(len(list))-after); n != want {
			t.Errorf("after the end, %d events follow %d, want %d", n, after, want)
		}
	}
	w.eventually(func() bool { return w.Watched() == 0 })
}

// TestWatchClosing: the end of the daemon, and the removal of the run, end all watchers.
func TestWatchClosing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began, _ := w.hangs("wait")
	r := w.start(caisson.RunRequest{Prompt: "wait"})
	receive(t, began)
	ch := got(w.Runs().WatchRun(w.ctx(), r.ID, 0))(t)
	receive(t, ch)
	w.down()
	lastOf(t, ch)
	w.up()
	w.ended(r.ID)
}
