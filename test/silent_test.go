package test_test

import (
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestPromise7SilentSandbox tests that a sandbox whose main process does not respond blocks neither its own removal nor
// the daemon's next start.
func TestPromise7SilentSandbox(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve()
	h.ok("sandbox", "create", "--name", "other")
	for _, verb := range []string{"stop", "pause", "snapshot"} {
		id := h.ok("sandbox", "create")
		for pid, args := range h.sandboxProcesses() {
			if strings.HasPrefix(args, "runsc-sandbox") && strings.Contains(args, id) {
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() { h.run("sandbox", verb, id) }) // Fails when the sandbox is removed, or the daemon is killed.
		h.waitBusy(id, verb)
		if verb == "pause" {
			d.kill()
			d = h.serve()
		}
		start := time.Now()
		h.ok("sandbox", "rm", id)
		if took := time.Since(start); took > settle {
			t.Errorf("after %s the removal took %v", verb, took)
		}
		wg.Wait()
	}
	h.ok("exec", "other", "--", "true")
}

// waitBusy waits until a change of the sandbox is in progress. A snapshot is not visible.
func (h *host) waitBusy(id, verb string) {
	switch verb {
	case "stop":
		h.waitState(id, "stopping")
	case "pause":
		h.waitState(id, "pausing")
	}
}
