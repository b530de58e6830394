package wire

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

// rotateInterval is the minimum time between two replacements of a wire process's journal.
const rotateInterval = time.Second

// rotate passes the wire process a new journal for each value that it receives from asked, at most one per rotateInterval, until
// done is closed.
func (s *processState) rotate(ctx context.Context, asked, done <-chan struct{}) {
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

// maxJournals bounds the journals of one wire process: the current one, and older ones with unfinished calls.
const maxJournals = 16

// newJournal creates a journal and passes its file to the wire process.
func (s *processState) newJournal(ctx context.Context) error {
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

// finishJournal tells the ledger that no process writes to a journal any more.
func (s *processState) finishJournal(ctx context.Context, journal caisson.ID) {
	if err := s.m.cfg.Ledger.Finish(context.WithoutCancel(ctx), journal); err != nil {
		s.m.log.ErrorContext(ctx, "a journal of the ledger could not be finished; the next start of the daemon tries again", "journal", journal, "err", err)
	}
}

// journals is the set of journals to which a wire process writes. Safe for concurrent use.
type journals struct {
	mu  sync.Mutex
	ids map[caisson.ID]bool // ids of the journals; guarded by mu
}

func (j *journals) add(id caisson.ID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ids == nil {
		j.ids = map[caisson.ID]bool{}
	}
	j.ids[id] = true
}

// has reports whether the wire process writes to the journal with this id.
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

// remove removes id and reports whether the set contained it.
func (j *journals) remove(id caisson.ID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.ids[id]
	delete(j.ids, id)
	return was
}

// removeAll removes and returns all journals.
func (j *journals) removeAll() (ids []caisson.ID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ids = slices.Sorted(maps.Keys(j.ids))
	j.ids = nil
	return ids
}
