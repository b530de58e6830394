package wire

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

// rotateInterval is how long a journal lasts at least.
const rotateInterval = time.Second

// rotate gives the process another journal each time that asked says so, one after the other, until done is closed.
func (s *session) rotate(ctx context.Context, asked, done <-chan struct{}) {
	for {
		select {
		case <-asked:
		case <-done:
			return
		}
		if err := s.newJournal(ctx); err != nil && ctx.Err() == nil {
			s.m.log.ErrorContext(ctx, "the wire process could not be given another journal; calls of models will be refused when the present one is full", "err", err)
		}
		select {
		case <-time.After(rotateInterval):
		case <-done:
			return
		}
	}
}

// maxJournals bounds the journals of one wire process: one that calls begin on, and those on which some have not ended.
const maxJournals = 16

// newJournal gives the process a journal.
func (s *session) newJournal(ctx context.Context) error {
	id, f, err := s.m.cfg.Ledger.Begin(ctx)
	if err != nil {
		return err
	}
	defer f.Close()
	s.link.journals.add(id)
	r, err := s.link.call(ctx, request{op: opJournal}, journalBody{id}, f)
	if err == nil {
		err = r.err()
	}
	return err
}

// finish ends a journal that nobody writes to any more.
func (s *session) finish(ctx context.Context, journal caisson.ID) {
	if err := s.m.cfg.Ledger.Finish(context.WithoutCancel(ctx), journal); err != nil {
		s.m.log.ErrorContext(ctx, "a journal of the ledger could not be finished; the next start of the daemon tries again", "journal", journal, "err", err)
	}
}

// journals are those that a wire process writes to.
type journals struct {
	mu  sync.Mutex
	ids map[caisson.ID]bool // guarded by mu
}

func (j *journals) add(id caisson.ID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ids == nil {
		j.ids = map[caisson.ID]bool{}
	}
	j.ids[id] = true
}

func (j *journals) has(id caisson.ID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ids[id]
}

func (j *journals) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.ids)
}

// remove reports whether id was there.
func (j *journals) remove(id caisson.ID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.ids[id]
	delete(j.ids, id)
	return was
}

// take returns all and removes them.
func (j *journals) take() (ids []caisson.ID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ids = slices.Sorted(maps.Keys(j.ids))
	j.ids = nil
	return ids
}
