package gvisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/poll"
)

// TestWatcherClosesItsOwn makes processes exit while others are being forked, which have copies of the watcher's descriptors
// until they exec. It checks that the watcher closes no other descriptors and reports each exit once.
func TestWatcherClosesItsOwn(t *testing.T) {
	t.Parallel()
	w, err := newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	var mu sync.Mutex
	ends := map[int]int{}
	var wg sync.WaitGroup
	const forkers, each = 4, 60
	dir := t.TempDir()
	for range forkers {
		wg.Go(func() {
			for range each {
				cmd := exec.Command("sleep", "0.01")
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				pid := cmd.Process.Pid
				if err := w.add(pid, func() { mu.Lock(); ends[pid]++; mu.Unlock() }); err != nil {
					t.Error(err)
				}
				// The file may get the number of a descriptor that was just closed.
				f, err := os.Create(filepath.Join(dir, "sentinel"))
				if err != nil {
					t.Error(err)
					return
				}
				cmd.Wait() // fails if the watcher has reaped the process
				if _, err := f.Stat(); err != nil {
					t.Errorf("somebody closed a file: %v", err)
				}
				if err := f.Close(); err != nil {
					t.Errorf("somebody closed a file: %v", err)
				}
			}
		})
	}
	wg.Wait()
	poll.Until(t, time.Minute, func() bool { mu.Lock(); defer mu.Unlock(); return len(ends) == forkers*each })
	mu.Lock()
	defer mu.Unlock()
	for pid, n := range ends {
		if n != 1 {
			t.Errorf("the end of process %d was seen %d times", pid, n)
		}
	}
}
