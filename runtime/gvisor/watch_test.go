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

// TestWatcherClosesItsOwn: processes end while others are being forked, which hold copies of the watcher's descriptors for
// a moment; no descriptor of anybody else is closed, and every end is seen once.
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
				// Takes the numbers of descriptors that were just closed.
				f, err := os.Create(filepath.Join(dir, "sentinel"))
				if err != nil {
					t.Error(err)
					return
				}
				cmd.Wait() // or the watcher did
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
