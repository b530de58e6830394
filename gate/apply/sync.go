package apply

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxSyncs is how many files are brought to disk at a time: file systems do several for little more than the time of one.
const maxSyncs = 16

// A syncer brings files to disk while others are being written. The zero value is ready.
type syncer struct {
	wg    sync.WaitGroup
	slots chan struct{}

	mu  sync.Mutex
	err error
}

// sync brings f to disk and closes it, some time before wait returns.
func (s *syncer) sync(f *os.File) {
	if s.slots == nil {
		s.slots = make(chan struct{}, maxSyncs)
	}
	s.slots <- struct{}{}
	s.wg.Go(func() {
		err := errors.Join(f.Sync(), f.Close())
		<-s.slots
		s.mu.Lock()
		s.err = errors.Join(s.err, err)
		s.mu.Unlock()
	})
}

// wait returns when all files are on disk, or with what went wrong since it was called last.
func (s *syncer) wait() error {
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err = nil
	return err
}

// syncDir brings the names in a directory to disk, on file systems that know what that is.
func syncDir(dir *os.File) error {
	err := dir.Sync()
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
