package runs

import (
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
)

// maxDepth is the maximum depth of nested sub-runs.
const maxDepth = 4

// A queue decides which run starts next. Accounts are served in turn, regardless of how many runs of each are waiting, and the
// runs of an account start in order.
//
// Sub-runs have separate lanes, one for each depth: a run waits for its sub-runs, so they must never wait until the run leaves
// its lane.
type queue struct {
	concurrent, perAccount int // maximum of running attempts in one lane: of all accounts, and of one account

	mu    sync.Mutex
	lanes [maxDepth + 1]lane // lanes by depth; guarded by mu
}

// A lane contains the waiting and the running attempts of one depth.
type lane struct {
	waiting map[string][]*ticket // waiting tickets by account, oldest first
	turn    []string             // accounts with waiting runs; the first one is next
	running map[string]int       // number of running attempts by account
	total   int                  // number of running attempts of all accounts
}

// A ticket is a place in the queue.
type ticket struct {
	run     caisson.ID    // id of the run
	account string        // account of the run
	depth   int           // number of runs above the run, at most maxDepth
	ready   chan struct{} // closed when the run is admitted
}

// newQueue returns a queue with these maximum numbers of running attempts in each lane.
func newQueue(concurrent, perAccount int) *queue {
	q := &queue{concurrent: concurrent, perAccount: perAccount}
	for i := range q.lanes {
		q.lanes[i] = lane{waiting: map[string][]*ticket{}, running: map[string]int{}}
	}
	return q
}

// enter adds a ticket at the end of the account's queue. The caller must call leave.
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

// leave removes a ticket, whether or not its run was admitted.
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
		l.setWaiting(t.account, rest)
	}
	q.admit(l)
}

// setWaiting replaces the waiting tickets of an account in the lane.
func (l *lane) setWaiting(account string, rest []*ticket) {
	if len(rest) > 0 {
		l.waiting[account] = rest
		return
	}
	delete(l.waiting, account)
	l.turn = slices.DeleteFunc(l.turn, func(a string) bool { return a == account })
}

// admit admits waiting runs of the lane l as long as its limits allow, by closing the channel ready of their tickets. The
// caller must hold q.mu.
func (q *queue) admit(l *lane) {
	for l.total < q.concurrent {
		i := slices.IndexFunc(l.turn, func(a string) bool { return l.running[a] < q.perAccount })
		if i < 0 {
			return
		}
		account := l.turn[i]
		// The account moves to the end, so that the other accounts are served first.
		l.turn = append(slices.Delete(l.turn, i, i+1), account)
		t := l.waiting[account][0]
		l.setWaiting(account, l.waiting[account][1:])
		l.running[account]++
		l.total++
		close(t.ready)
	}
}

// ahead returns how many runs of the same account wait before t, and whether t waits because the maximum number of attempts is
// running in its lane.
func (q *queue) ahead(t *ticket) (n int, full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := &q.lanes[t.depth]
	n = slices.Index(l.waiting[t.account], t)
	return max(0, n), n >= 0 && l.total >= q.concurrent
}

// running returns how many admitted runs have not left the queue.
func (q *queue) running() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.lanes {
		n += q.lanes[i].total
	}
	return n
}
