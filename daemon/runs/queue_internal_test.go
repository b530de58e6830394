package runs

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
)

func ready(t *ticket) bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

// order ends one run after another and returns the order in which the runs were started.
func order(q *queue, all []*ticket) string {
	var names []string
	for {
		i := slices.IndexFunc(all, ready)
		if i < 0 {
			return strings.Join(names, " ")
		}
		names = append(names, string(all[i].run))
		q.leave(all[i])
		all = slices.Delete(all, i, i+1)
	}
}

func TestQueueOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		enter string // account and number of each run
		want  string
	}{
		{"in order within an account", "a1 a2 a3", "a1 a2 a3"},
		{"accounts take turns", "a1 a2 a3 a4 b1 b2", "a1 a2 b1 a3 b2 a4"},
		{"a newcomer need not wait for all", "a1 a2 a3 b1 c1", "a1 a2 b1 c1 a3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQueue(1, 5)
			var all []*ticket
			for name := range strings.FieldsSeq(c.enter) {
				all = append(all, q.enter(caisson.ID(name), name[:1], 0))
			}
			if have := order(q, all); have != c.want {
				t.Errorf("order is %s, want %s", have, c.want)
			}
			empty(t, q)
		})
	}
}

func empty(t *testing.T, q *queue) {
	t.Helper()
	for d := range q.lanes {
		if l := &q.lanes[d]; len(l.waiting)+len(l.turn)+len(l.running)+l.total != 0 {
			t.Errorf("depth %d: the queue has %+v left", d, l)
		}
	}
}

func TestQueueLimits(t *testing.T) {
	t.Parallel()
	q := newQueue(3, 2)
	a1, a2, a3 := q.enter("a1", "a", 0), q.enter("a2", "a", 0), q.enter("a3", "a", 0)
	b1, b2 := q.enter("b1", "b", 0), q.enter("b2", "b", 0)
	if !ready(a1) || !ready(a2) || ready(a3) || !ready(b1) || ready(b2) {
		t.Error("the account's or the host's limit does not hold")
	}
	if n, full := q.ahead(a1); n != 0 || full {
		t.Errorf("one that has its turn is told of %d before it, %v", n, full)
	}
	if n, full := q.ahead(b2); n != 0 || !full {
		t.Errorf("one that waits for the host is told of %d before it, %v", n, full)
	}
	child := q.enter("c1", "a", 1)
	if !ready(child) || q.running() != 4 {
		t.Error("a run within another waits for the place of its parent")
	}
	q.leave(b1)
	if ready(a3) || !ready(b2) {
		t.Error("the wrong one is next")
	}
	q.leave(a3) // while it is queued
	q.leave(a1)
	q.leave(a2)
	q.leave(b2)
	q.leave(child)
	empty(t, q)
	if deep := q.enter("d", "a", 100); !ready(deep) || deep.depth != maxDepth {
		t.Error("runs at great depth have no lane")
	}
}

// TestQueueCrowd calls enter and leave concurrently: the limits are never exceeded, every run is started, and nothing
// remains.
func TestQueueCrowd(t *testing.T) {
	t.Parallel()
	const concurrent, perAccount = 4, 2
	q := newQueue(concurrent, perAccount)
	var mu sync.Mutex
	total, by := map[int]int{}, map[string]int{}
	var wg sync.WaitGroup
	for n := range 400 {
		account, depth := string(rune('a'+n%5)), n%3
		wg.Go(func() {
			p := q.enter("r", account, depth)
			defer q.leave(p)
			if rand.IntN(4) == 0 {
				return // it leaves the queue early
			}
			<-p.ready
			key := account + string(rune('0'+depth))
			mu.Lock()
			total[depth]++
			by[key]++
			if total[depth] > concurrent || by[key] > perAccount {
				t.Errorf("%d runs at depth %d, %d of account %s", total[depth], depth, by[key], account)
			}
			mu.Unlock()
			mu.Lock()
			total[depth]--
			by[key]--
			mu.Unlock()
		})
	}
	wg.Wait()
	empty(t, q)
}
