package repos

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/notify"
	"github.com/caisson-dev/caisson/job/forge"
)

const (
	maxWait               = time.Hour        // maximum time between two attempts of a delivery
	attemptTimeout        = 30 * time.Minute // time limit of one attempt
	dropTimeout           = 15 * time.Second // how long a call that drops a delivery waits for the end of its attempt
	maxConcurrentAttempts = 8                // concurrent attempts; one account may have half of them, one repository a quarter
)

// queue schedules the attempts of deliveries and stores their outcomes.
type queue struct {
	deliveries deliveries                                     // deliveries in the store
	sender     *sender                                        // makes one attempt to send a delivery
	notifier   notify.Notifier[caisson.ID]                    // wakes calls of await, by id of the delivery
	settled    func(ctx context.Context, d *caisson.Delivery) // called after an attempt has ended, or after a drop
	background *background.Group                              // runs the goroutines of attempts
	events     caisson.Publisher
	settings   Settings // delays and time limit of retries
	log        *slog.Logger
	wakeup     chan struct{} // makes run look for deliveries that are due

	mu       sync.Mutex
	sending  map[string]int          // numbers of attempts: by account, by account/repository, and of all under ""; guarded by mu
	attempts map[caisson.ID]*attempt // attempts under way, by id of the delivery; guarded by mu
}

// An attempt is one try to send a delivery. It is under way until its outcome is stored.
type attempt struct {
	cancel context.CancelCauseFunc // cancels the attempt
	ended  chan struct{}           // closed when its outcome is stored
}

var (
	errChanged = errors.New("it has changed meanwhile") // returned by an update of a delivery that is no longer waiting
	errDropped = errors.New("the delivery was dropped") // the cause with which interrupt cancels an attempt
)

// reconcile changes the state of deliveries from sending, which an earlier daemon has set, to waiting. The next attempt detects
// whether the branch of a delivery was pushed and its pull request opened.
func (q *queue) reconcile(ctx context.Context) error {
	sending, err := q.list(ctx, caisson.DeliverySending)
	if err != nil {
		return err
	}
	for _, d := range sending {
		if _, err := q.deliveries.Update(ctx, caisson.AllAccounts(), d.ID, func(d *caisson.Delivery) error {
			d.State = caisson.DeliveryWaiting
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// add stores a new delivery and publishes an event. If the state of the delivery is waiting, it is sent soon.
func (q *queue) add(ctx context.Context, d *caisson.Delivery) error {
	if err := q.deliveries.Insert(ctx, d); err != nil {
		return err
	}
	q.events.Publish(asAccount(ctx, d.Account), d.Account, "delivery."+string(d.State), string(d.ID), map[string]string{
		"repo": d.Repo, "run": string(d.Run), "branch": d.Branch, "commit": d.Commit,
	})
	q.wake()
	return nil
}

// wake makes run look for deliveries that are due now.
func (q *queue) wake() {
	select {
	case q.wakeup <- struct{}{}:
	default:
	}
}

// run sends deliveries when they are due, until ctx ends.
func (q *queue) run(ctx context.Context) {
	for {
		select {
		case <-time.After(max(q.sendDue(ctx), 10*time.Millisecond)):
		case <-q.wakeup:
		case <-ctx.Done():
			return
		}
	}
}

// sendDue starts attempts of the deliveries that are due, and returns the time until the next delivery is due, at most maxWait.
func (q *queue) sendDue(ctx context.Context) time.Duration {
	next := maxWait
	list, err := q.list(ctx, caisson.DeliveryWaiting)
	if err != nil {
		if ctx.Err() == nil {
			q.log.ErrorContext(ctx, "the deliveries that wait could not be read; trying again", "err", err)
		}
		return 5 * time.Second
	}
	for _, d := range list {
		if wait := time.Until(d.NextAt); wait > 0 {
			next = min(next, wait)
			continue
		}
		actx, release, ok := q.reserve(d)
		if !ok {
			continue // the attempt that ends next wakes the queue
		}
		d, err := q.beginAttempt(ctx, d.ID)
		if err != nil && !errors.Is(err, errChanged) && caisson.KindOf(err) != caisson.NotFound && ctx.Err() == nil {
			q.log.ErrorContext(ctx, "an attempt to send a delivery could not be stored; trying again", "err", err)
			next = min(next, time.Duration(q.settings.FirstRetry)) // no attempt has begun, so none will wake the queue at its end
		}
		if err != nil || !q.background.Start(func(ctx context.Context) {
			defer func() { release(); q.wake() }()
			q.attempt(ctx, actx, d)
		}) {
			release()
		}
	}
	return next
}

// reserve adds an attempt to send d, and returns false if too many attempts are under way. An account and a repository may each
// have only a part of all attempts, so that a slow remote delays only its own deliveries. ctx is for the attempt; interrupt
// cancels it.
func (q *queue) reserve(d *caisson.Delivery) (ctx context.Context, release func(), ok bool) {
	limits := map[string]int{"": maxConcurrentAttempts, d.Account: maxConcurrentAttempts / 2, d.Account + "/" + d.Repo: maxConcurrentAttempts / 4}
	q.mu.Lock()
	defer q.mu.Unlock()
	for of, most := range limits {
		if q.sending[of] >= most {
			return nil, nil, false
		}
	}
	for of := range limits {
		q.sending[of]++
	}
	ctx, cancel := context.WithCancelCause(q.background.Context())
	a := &attempt{cancel: cancel, ended: make(chan struct{})}
	q.attempts[d.ID] = a
	return ctx, func() {
		cancel(nil)
		close(a.ended)
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.attempts[d.ID] == a { // if not, the next attempt to send the delivery has begun
			delete(q.attempts, d.ID)
		}
		for of := range limits {
			if q.sending[of]--; q.sending[of] == 0 {
				delete(q.sending, of)
			}
		}
	}, true
}

// list returns the deliveries in a state, the oldest first.
func (q *queue) list(ctx context.Context, state caisson.DeliveryState) (list []*caisson.Delivery, err error) {
	f := caisson.DeliveryFilter{States: []caisson.DeliveryState{state}}
	for d, err := range q.deliveries.each(ctx, caisson.AllAccounts(), f) {
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	slices.Reverse(list)
	return list, nil
}

// beginAttempt stores that an attempt begins. It returns errChanged if the delivery is no longer waiting.
func (q *queue) beginAttempt(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	return q.deliveries.Update(ctx, caisson.AllAccounts(), id, func(d *caisson.Delivery) error {
		if d.State != caisson.DeliveryWaiting {
			return errChanged
		}
		d.State, d.NextAt = caisson.DeliverySending, time.Time{}
		d.Attempts++
		return nil
	})
}

// attempt makes one attempt to send a delivery, and stores and publishes the outcome. The attempt is cancelled when actx ends;
// ctx ends when the core is closed.
func (q *queue) attempt(ctx, actx context.Context, d *caisson.Delivery) {
	timed, cancel := context.WithTimeout(actx, attemptTimeout)
	defer cancel()
	out, err := q.sender.send(timed, d)
	if err != nil && ctx.Err() != nil {
		return // after its next start the daemon repeats the attempt
	}
	wasDropped := err != nil && errors.Is(context.Cause(actx), errDropped)
	clean := context.WithoutCancel(ctx)
	stored := q.persist(ctx, d.ID, func(d *caisson.Delivery) error {
		d.Sent, d.URL, d.Number = out.Sent, out.URL, out.Number
		if wasDropped {
			setDropped(d, true)
		} else {
			q.setOutcome(d, err)
		}
		return nil
	})
	if stored == nil {
		return
	}
	data := map[string]string{"repo": d.Repo, "run": string(d.Run), "branch": d.Branch, "commit": d.Commit, "url": stored.URL}
	if err != nil && !wasDropped {
		data["error"] = stored.Error
		q.log.WarnContext(ctx, "a delivery failed", "delivery", d.ID, "repo", d.Repo, "branch", d.Branch, "attempt", stored.Attempts, "err", err)
	}
	q.events.Publish(asAccount(clean, d.Account), d.Account, "delivery."+string(stored.State), string(d.ID), data)
	q.notify(clean, stored)
}

// persist updates a delivery, and retries until the update succeeds: otherwise, after an error such as a full disk, the delivery
// would stay in state sending. It returns nil if the delivery does not exist, or if ctx ends; in the latter case the daemon
// repeats the attempt after its next start.
func (q *queue) persist(ctx context.Context, id caisson.ID, change func(*caisson.Delivery) error) *caisson.Delivery {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		d, err := q.deliveries.Update(context.WithoutCancel(ctx), caisson.AllAccounts(), id, change)
		if err == nil {
			return d
		}
		q.log.ErrorContext(ctx, "the outcome of a delivery could not be stored; trying again", "delivery", id, "err", err)
		if caisson.KindOf(err) == caisson.NotFound {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// setOutcome sets the state of d after an attempt that has returned err: errors that may be temporary are retried.
func (q *queue) setOutcome(d *caisson.Delivery, err error) {
	d.Error = ""
	if err == nil {
		d.State, d.EndedAt = caisson.DeliveryDelivered, now()
		return
	}
	d.Error = plainLine(caisson.MessageOf(err), 1000)
	retry := false
	switch caisson.KindOf(err) {
	case caisson.Unavailable, caisson.Exhausted, caisson.Internal:
		retry = now().Sub(requestedAt(d)) < time.Duration(q.settings.Tries)
	}
	if !retry {
		d.State, d.EndedAt = caisson.DeliveryFailed, now()
		return
	}
	wait := time.Duration(q.settings.FirstRetry)
	for range min(d.Attempts-1, 20) {
		wait = min(3*wait, maxWait)
	}
	d.State, d.NextAt = caisson.DeliveryWaiting, now().Add(max(wait, forge.RetryAfter(err)))
}

// interrupt cancels an attempt because its delivery is dropped, and waits until the outcome is stored.
func (q *queue) interrupt(ctx context.Context, id caisson.ID) error {
	q.mu.Lock()
	a := q.attempts[id]
	q.mu.Unlock()
	if a == nil {
		return nil // the attempt has ended meanwhile
	}
	a.cancel(errDropped)
	select {
	case <-a.ended:
		return nil
	case <-time.After(dropTimeout):
		return errBusy(id)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// notify wakes the calls of await for a delivery whose attempt has ended or that was dropped, and calls the function settled.
func (q *queue) notify(ctx context.Context, d *caisson.Delivery) {
	q.notifier.Notify(d.ID)
	if q.settled != nil {
		q.settled(ctx, d)
	}
}

// await implements [caisson.Relay.Await].
func (q *queue) await(ctx context.Context, id caisson.ID, most time.Duration) (*caisson.Delivery, error) {
	timeout := time.After(most)
	next, stop := q.notifier.Watch(id)
	defer stop()
	for {
		changed := next()
		d, err := q.deliveries.Get(ctx, caisson.AllAccounts(), string(id))
		if err != nil || d.State.Ended() {
			return d, err
		}
		select {
		case <-changed:
		case <-timeout:
			return d, nil
		case <-ctx.Done():
			return d, nil
		case <-q.background.Context().Done():
			return d, nil
		}
	}
}
