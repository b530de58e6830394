package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
)

// maxAppendBatch is the maximum number of groups of events that one transaction stores.
const maxAppendBatch = 256

// appender queues the groups of events that are appended during a commit, and then commits them in one transaction: each
// transaction costs a sync, and many agents produce events concurrently.
type appender struct {
	commit func([]*appendRequest) error // Stores a batch of groups in one transaction; runs.appendAll.

	mu      sync.Mutex
	queue   []*appendRequest // Groups that wait to be committed. Guarded by mu.
	running bool             // Guarded by mu; whether a goroutine commits the queue.
}

// appendRequest is a group of events of one run that is stored atomically.
type appendRequest struct {
	ctx  context.Context // The caller's context. If it ends while the group is in the queue, the group is removed.
	run  caisson.ID      // ID of the run.
	seqs []int64         // Seq of each event.
	docs []string        // JSON of each event.
	err  error           // The result; nil if the events were committed.
	done chan struct{}   // Closed after err has been set.
}

// add puts the group a into the queue and waits until it has been committed or rejected. If the caller's context ends while a is
// in the queue, a is removed from the queue and add returns the context's error.
func (q *appender) add(a *appendRequest) error {
	q.mu.Lock()
	q.queue = append(q.queue, a)
	if !q.running {
		q.running = true
		go q.run()
	}
	q.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-a.ctx.Done():
	}
	q.mu.Lock()
	i := slices.Index(q.queue, a)
	if i >= 0 {
		q.queue = slices.Delete(q.queue, i, i+1)
	}
	q.mu.Unlock()
	if i >= 0 {
		return a.ctx.Err()
	}
	<-a.done // The group is being committed; wait for the result.
	return a.err
}

// run commits the groups in the queue, in batches, until the queue is empty.
func (q *appender) run() {
	for {
		q.mu.Lock()
		n := min(len(q.queue), maxAppendBatch)
		batch := slices.Clone(q.queue[:n])
		q.queue = slices.Delete(q.queue, 0, n)
		q.running = n > 0
		q.mu.Unlock()
		if n == 0 {
			return
		}
		err := q.commit(batch)
		for _, a := range batch {
			if err != nil {
				a.err = err
			}
			close(a.done)
		}
	}
}

// Append implements [caisson.RunStore]. It returns Conflict if the Seq of an event does not follow the Seq of the event before
// it: another caller has appended events.
func (s *runs) Append(ctx context.Context, run caisson.ID, events []caisson.RunEvent) error {
	if len(events) == 0 {
		return nil
	}
	a := &appendRequest{ctx: ctx, run: run, done: make(chan struct{})}
	for i := range events {
		doc, err := json.Marshal(&events[i])
		if err != nil {
			return fmt.Errorf("encode event %d of run %s: %w", events[i].Seq, run, err)
		}
		a.seqs, a.docs = append(a.seqs, events[i].Seq), append(a.docs, string(doc))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.appender.add(a)
}

// appendAll stores several groups of events in one transaction. A group that is rejected changes nothing and does not affect the
// other groups.
func (s *runs) appendAll(batch []*appendRequest) error {
	return s.db.write(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		newest, insert := tx.StmtContext(ctx, s.events.newest), tx.StmtContext(ctx, s.events.insert)
		for _, a := range batch {
			var key, last int64
			err := newest.QueryRowContext(ctx, string(a.run)).Scan(&key, &last)
			switch {
			case errors.Is(err, sql.ErrNoRows):
				a.err = s.missing(string(a.run))
				continue
			case err != nil:
				return err
			}
			if a.err = a.checkSequence(last); a.err != nil {
				continue
			}
			for i, doc := range a.docs {
				if _, err := insert.ExecContext(ctx, key, a.seqs[i], doc); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// checkSequence returns Conflict unless the numbers of the events continue after last, the number of the last stored event.
func (a *appendRequest) checkSequence(last int64) error {
	for i, seq := range a.seqs {
		if want := last + 1 + int64(i); seq != want {
			return caisson.Errorf(caisson.Conflict, "event %d of run %s does not follow: the next one is %d", seq, a.run, want)
		}
	}
	return nil
}
