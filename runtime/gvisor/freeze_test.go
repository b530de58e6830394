package gvisor

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// lossyMain simulates the main process of a sandbox that counts pauses and does not reply to the first one.
type lossyMain struct {
	mu     sync.Mutex
	paused int // pauses minus resumes; guarded by mu
	asked  int // guarded by mu
}

// listen serves the control protocol until the test ends.
func (f *lossyMain) listen(t *testing.T) *controlClient {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for f.answer(c) {
				}
			}()
		}
	}()
	c := &controlClient{socket: socket}
	t.Cleanup(c.close)
	return c
}

// answer handles one call, and reports false if the connection must be closed after it.
func (f *lossyMain) answer(c *net.UnixConn) bool {
	b, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	var req struct{ Method string }
	if err != nil || json.Unmarshal(b[:n], &req) != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch req.Method {
	case protocol.MethodPause:
		f.paused++
		if f.asked++; f.asked == 1 {
			return false
		}
	case protocol.MethodResume:
		f.paused--
	case protocol.MethodRead:
		state := 'S'
		if f.paused > 0 {
			state = 'D'
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(msgs) != 1 {
			return false
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			return false
		}
		w := os.NewFile(uintptr(fds[0]), "w")
		fmt.Fprintf(w, "1 (init) %c 0 1 1", state)
		w.Close()
	}
	_, err = c.Write([]byte(`{"success":true,"result":null}`))
	return err == nil
}

func (f *lossyMain) pauses() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.paused
}

// TestPauseThatFailsDoesNotLast checks that whileFrozen resumes the sandbox if it was paused but the call returned an error.
func TestPauseThatFailsDoesNotLast(t *testing.T) {
	t.Parallel()
	f := &lossyMain{}
	s := &sandbox{freezer: newFreezer(), control: f.listen(t)}
	did := 0
	do := func() error { did++; return nil }
	if err := s.whileFrozen(t.Context(), false, do); err == nil || did != 0 {
		t.Errorf("a pause without an answer: %v, and %d things were done", err, did)
	}
	if n := f.pauses(); n != 0 {
		t.Errorf("the sandbox was paused %d times more than it was let go on", n)
	}
	if err := s.whileFrozen(t.Context(), false, do); err != nil || did != 1 || f.pauses() != 0 {
		t.Errorf("the next one: %v, %d things were done, paused %d times", err, did, f.pauses())
	}
}
