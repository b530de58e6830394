package osthread

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestDo tests that the namespaces of the process do not change, on any thread of the caller.
func TestDo(t *testing.T) {
	testneed.Root(t)
	const self = "/proc/self/ns/net"
	before, err := os.Readlink(self)
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("from f")
	for range 200 {
		err := Do(func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("f runs on the main thread")
			}
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			inside, err := os.Readlink("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			if inside == before {
				t.Error("the thread is in the namespace of the process")
			}
			return gone
		})
		if !errors.Is(err, gone) {
			t.Fatal(err)
		}
		runtime.Gosched()
		if after, err := os.Readlink(self); after != before || err != nil {
			t.Fatalf("the process is in %s, was in %s: %v", after, before, err)
		}
	}
}
