package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

func addTestRun(t *testing.T, s *Store) caisson.ID {
	t.Helper()
	r := &caisson.Run{ID: caisson.NewID(caisson.RunPrefix), Account: "local", State: caisson.RunRunning}
	must(t, s.Runs().Insert(t.Context(), r, 0))
	return r.ID
}

// TestPromise7AppendsWhileClosing closes the store during concurrent appends, and tests that exactly the acknowledged
// events are stored.
func TestPromise7AppendsWhileClosing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	s := openTest(t, path)
	last := map[caisson.ID]int64{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	begun := make(chan struct{}, 1000)
	for range 12 {
		id := addTestRun(t, s)
		wg.Go(func() {
			for seq := int64(1); ; seq += 2 {
				err := s.Runs().Append(context.Background(), id, []caisson.RunEvent{{Seq: seq}, {Seq: seq + 1}})
				if err != nil {
					if caisson.KindOf(err) != caisson.Unavailable {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				last[id] = seq + 1
				mu.Unlock()
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 100 {
		<-begun
	}
	must(t, s.Close())
	wg.Wait()
	s = openTest(t, path)
	for id, want := range last {
		if got, err := s.Runs().LastEvent(t.Context(), id); err != nil || got != want {
			t.Errorf("run %s has %d events, %d were acknowledged, %v", id, got, want, err)
		}
	}
}

// TestAppendTogether blocks the writer during several appends, and tests that all are committed except cancelled and
// rejected ones.
func TestAppendTogether(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "caisson.db"))
	first, other := addTestRun(t, s), addTestRun(t, s)
	queued := func(n int) {
		t.Helper()
		q := &s.runs.appender
		poll.Until(t, time.Minute, func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.queue) == n
		})
	}
	conn, err := s.db.writer.Conn(t.Context())
	must(t, err)
	type outcome struct {
		name string
		err  error
	}
	outcomes := make(chan outcome, 8)
	add := func(name string, ctx context.Context, run caisson.ID, seq int64) {
		go func() { outcomes <- outcome{name, s.Runs().Append(ctx, run, []caisson.RunEvent{{Seq: seq}})} }()
	}
	add("first", t.Context(), first, 1)
	poll.Until(t, time.Minute, func() bool { // The append waits for the writer.
		s.runs.appender.mu.Lock()
		defer s.runs.appender.mu.Unlock()
		return s.runs.appender.running && len(s.runs.appender.queue) == 0
	})
	ctx, cancel := context.WithCancel(t.Context())
	add("gives up", ctx, other, 1)
	queued(1)
	cancel()
	if o := <-outcomes; o.name != "gives up" || !errors.Is(o.err, context.Canceled) {
		t.Errorf("%+v", o)
	}
	add("follows", t.Context(), first, 2)
	queued(1)
	add("other", t.Context(), other, 1)
	queued(2)
	add("refused", t.Context(), other, 7)
	queued(3)
	add("unknown", t.Context(), "rn-x", 1)
	queued(4)
	add("after refused", t.Context(), other, 2)
	queued(5)
	must(t, conn.Close())
	want := map[string]caisson.Kind{"refused": caisson.Conflict, "unknown": caisson.NotFound}
	for range 6 {
		o := <-outcomes
		if kind, refused := want[o.name]; refused != (o.err != nil) || refused && caisson.KindOf(o.err) != kind {
			t.Errorf("%+v", o)
		}
	}
	for _, id := range []caisson.ID{first, other} {
		if last, err := s.Runs().LastEvent(t.Context(), id); err != nil || last != 2 {
			t.Errorf("%s: %d events, %v", id, last, err)
		}
	}
}

// TestLeftEvents tests that the next trim removes the events of a removed run that a killed daemon left, and the record
// of the removal.
func TestLeftEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	s := openTest(t, path)
	id := addTestRun(t, s)
	events := make([]caisson.RunEvent, 3*removeEventsBatch)
	for i := range events {
		events[i].Seq = int64(i) + 1
	}
	must(t, s.Runs().Append(t.Context(), id, events))
	must(t, s.Close())
	db := raw(t, path)
	run(t, db, `INSERT INTO run_gone (id, account, seq, cleared) SELECT id, account, seq, 0 FROM run; DELETE FROM run`)
	must(t, db.Close())
	s = openTest(t, path)
	if ids, err := s.Runs().Trim(t.Context(), time.Now(), 10); err != nil || len(ids) != 0 {
		t.Errorf("trimmed %v, %v", ids, err)
	}
	var left, notes int
	must(t, s.db.reader.QueryRow(`SELECT (SELECT count(*) FROM run_event), (SELECT count(*) FROM run_gone WHERE cleared = 0)`).Scan(&left, &notes))
	if left != 0 || notes != 0 {
		t.Errorf("%d events and %d notes are left", left, notes)
	}
}
