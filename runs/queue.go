package runs

import (
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
)

// maxDepth is how deep runs may be within runs.
const maxDepth = 4

// A queue decides which run is next. Accounts take turns, however many runs each has waiting, and within an account runs come in order.
//
// Runs within others have lanes of their own, one for each depth: a run waits for those that it has started, so that they must never wait
// for its place.
type queue struct {
	concurrent, perAccount int

	mu    sync.Mutex
	lanes [maxDepth + 1]lane // by depth; guarded by mu
}

// A lane holds what waits and what is under way at one depth.
type lane struct {
	waiting map[string][]*ticket // by account
	turn    []string             // accounts with somebody waiting; the first is next
	running map[string]int       // by account
	total   int
}

// A ticket is a place in the queue.
type ticket struct {
	run     caisson.ID
	account string
	depth   int
	ready   chan struct{} // closed when it is the run's turn
}

func newQueue(concurrent, perAccount int) *queue {
	q := &queue{concurrent: concurrent, perAccount: perAccount}
	for i := range q.lanes {
		q.lanes[i] = lane{waiting: map[string][]*ticket{}, running: map[string]int{}}
	}
	return q
}

// enter takes a place at the end of the account's queue. Whoever enters must leave.
func (q *queue) enter(run caisson.ID, account string, depth int) *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := &ticket{run: run, account: account, depth: min(depth, maxDepth), ready: make(chan struct{})}
	l := &q.lanes[t.depth]
	if len(l.waiting[account]) == 0 {
		l.turn = append(l.turn, account)
	}
	l.waiting[account] = append(l.waiting[account], t)
	q.admit(l)
	return t
}

// leave gives the place up, whether it was the run's turn or not.
func (q *queue) leave(t *ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := &q.lanes[t.depth]
	select {
	case <-t.ready:
		l.total--
		if l.running[t.account]--; l.running[t.account] == 0 {
			delete(l.running, t.account)
		}
	default:
		rest := slices.DeleteFunc(l.waiting[t.account], func(o *ticket) bool { return o == t })
		l.set(t.account, rest)
	}
	q.admit(l)
}

// set replaces what waits of an account.
func (l *lane) set(account string, rest []*ticket) {
	if len(rest) > 0 {
		l.waiting[account] = rest
		return
	}
	delete(l.waiting, account)
	l.turn = slices.DeleteFunc(l.turn, func(a string) bool { return a == account })
}

// admit lets run what may. It needs mu.
func (q *queue) admit(l *lane) {
	for l.total < q.concurrent {
		i := slices.IndexFunc(l.turn, func(a string) bool { return l.running[a] < q.perAccount })
		if i < 0 {
			return
		}
		account := l.turn[i]
		// To the end of the turn: others are first the next time.
		l.turn = append(slices.Delete(l.turn, i, i+1), account)
		t := l.waiting[account][0]
		l.set(account, l.waiting[account][1:])
		l.running[account]++
		l.total++
		close(t.ready)
	}
}

// ahead returns how many runs of the same account wait before t, and whether the host is full for now.
func (q *queue) ahead(t *ticket) (n int, full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := &q.lanes[t.depth]
	n = slices.Index(l.waiting[t.account], t)
	return max(0, n), n >= 0 && l.total >= q.concurrent
}

// running returns how many runs have their turn.
func (q *queue) running() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.lanes {
		n += q.lanes[i].total
	}
	return n
}
