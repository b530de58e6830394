package repos

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// space measures the size on disk of the repositories of accounts: their mirrors, views and stores (the bare repositories that
// sandboxes push to).
type space struct {
	dirs  *directories // directories of repositories
	limit caisson.Size // maximum total size of the mirrors, views and stores of one account

	mu       sync.Mutex
	measured map[string]usage // last measurements, by account; guarded by mu
}

// usage is the size of an account's repositories.
type usage struct {
	total, largestSize caisson.Size // sizes of all repositories together, and of the largest one
	largest            string       // name of the largest repository
	measuredAt         time.Time    // when the repositories were measured
}

// maxUsageAge is for how long a measurement is used for pushes, which are frequent.
const maxUsageAge = 10 * time.Second

// recent returns the last measurement of an account, and true if it may be used: it is not older than maxUsageAge.
func (s *space) recent(account string) (usage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.measured[account]
	return u, ok && time.Since(u.measuredAt) < maxUsageAge
}

// forget discards the measurement of an account. It is called when the account's repositories have become smaller.
func (s *space) forget(account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.measured, account)
}

// check returns Exhausted if u has reached the limit.
func (s *space) check(u usage) error {
	if u.total < s.limit {
		return nil
	}
	return caisson.Errorf(caisson.Exhausted, "the account's repositories take %v of the %v that they may (relay.space), %s alone %v; make room with caisson repo rm, caisson relay drop, or by removing sandboxes that have clones",
		u.total, s.limit, u.largest, u.largestSize)
}

// measure adds up the sizes of the files of an account's repositories, and records the result.
func (s *space) measure(account string) (u usage, err error) {
	list, err := names(s.dirs.path(account, ""))
	for _, repo := range list {
		n, e := sizeOf(s.dirs.path(account, repo))
		err = errors.Join(err, e)
		if u.total += n; n > u.largestSize {
			u.largestSize, u.largest = n, repo
		}
	}
	if err != nil {
		return u, caisson.Wrap(err, caisson.Internal, "the size of the account's repositories could not be measured")
	}
	u.measuredAt = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.measured[account] = u
	return u, nil
}

// sizeOf returns the sum of the sizes of the files below a directory. Files that are removed meanwhile are not counted.
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
