package apply

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxSyncs is the maximum number of concurrent fsync calls: file systems sync several files in little more time than one.
const maxSyncs = 16

// A syncer syncs files to disk in the background while other files are being written. The zero value is ready for use.
type syncer struct {
	wg    sync.WaitGroup // the syncs that run in the background
	slots chan struct{}  // contains one value for each file that is being synced

	mu  sync.Mutex
	err error // the errors of syncs since the last wait; guarded by mu
}

// sync starts to sync f to disk in the background, and to close it after that. Errors are returned by wait. It blocks while
// maxSyncs files are being synced.
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

// wait waits until all files are on disk and returns the errors since the last call.
func (s *syncer) wait() error {
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err = nil
	return err
}

// syncDir syncs a directory to disk. It returns nil on file systems that do not support it.
func syncDir(dir *os.File) error {
	err := dir.Sync()
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
