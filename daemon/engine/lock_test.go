package engine

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// TestLockWait: a daemon waits for another one that is stopping, if configured, and not forever.
func TestLockWait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock := func(wait time.Duration) (func() error, error) { return lockDir(t.Context(), dir, wait) }
	unlock, err := lock(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
		if _, err := lock(wait); caisson.KindOf(err) != caisson.Conflict || !strings.Contains(caisson.MessageOf(err), fmt.Sprintf("with pid %d uses %s; run \"caisson daemon stop\"", os.Getpid(), dir)) {
			t.Errorf("after %v: %v, want a conflict with this process", wait, err)
		}
	}
	got := make(chan error)
	go func() {
		second, err := lock(time.Minute)
		if err == nil {
			err = second()
		}
		got <- err
	}()
	if err := unlock(); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}
