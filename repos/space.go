package repos

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// space is what the directories of accounts were found to take.
type space struct {
	mu   sync.Mutex
	have map[string]taken // by account; guarded by mu
}

// taken is what an account's repositories take.
type taken struct {
	all, most caisson.Size
	largest   string // of which most is
	at        time.Time
}

// freshSpace is for how long a measurement is good enough for pushes, of which there may be many.
const freshSpace = 10 * time.Second

func (s *space) of(account string) (taken, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.have[account]
	return t, ok && time.Since(t.at) < freshSpace
}

func (s *space) know(account string, t taken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have == nil {
		s.have = map[string]taken{}
	}
	s.have[account] = t
}

func (s *space) forget(account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.have, account)
}

// room refuses what would take more room when an account has all that it may have. It looks before something is done: what is under way at the
// same time has limits of its own.
func (c keeper) room(ctx context.Context, account string) error {
	t, err := c.measure(account)
	if err != nil || t.all < c.Limits.Space {
		return err
	}
	list, err := names(filepath.Join(c.Dir, topDir, account))
	for _, repo := range list {
		c.sweep(ctx, account, repo)
	}
	if err == nil {
		t, err = c.measure(account)
	}
	if err != nil {
		return err
	}
	return c.full(t)
}

// roomToPush is room for pushes.
func (c keeper) roomToPush(ctx context.Context, account string) error {
	release, err := c.locks.Acquire(ctx, "space//"+account)
	if err != nil {
		return err
	}
	defer release()
	if t, ok := c.space.of(account); ok {
		return c.full(t)
	}
	return c.room(ctx, account)
}

// full is the error for an account that has no room left.
func (c keeper) full(t taken) error {
	if t.all < c.Limits.Space {
		return nil
	}
	return caisson.Errorf(caisson.Exhausted, "the account's repositories take %v of the %v that they may (relay.space), %s alone %v; make room with caisson repo rm, caisson relay drop, or by removing sandboxes that have clones",
		t.all, c.Limits.Space, t.largest, t.most)
}

// measure adds up what an account's repositories take on disk: mirrors, views and stores.
func (c keeper) measure(account string) (t taken, err error) {
	list, err := names(filepath.Join(c.Dir, topDir, account))
	for _, repo := range list {
		n, e := sizeOf(c.dir(account, repo))
		err = errors.Join(err, e)
		if t.all += n; n > t.most {
			t.most, t.largest = n, repo
		}
	}
	if err != nil {
		return t, caisson.Wrap(err, caisson.Internal, "what the account's repositories take could not be measured")
	}
	t.at = time.Now()
	c.space.know(account, t)
	return t, nil
}

// sizeOf adds up the files below a directory. What goes meanwhile does not count.
func sizeOf(dir string) (total caisson.Size, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				total += caisson.Size(info.Size())
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return total, err
}
