package test_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestPromise7ChurnLeavesNothing tests that many cycles of creating, using, forking and removing leave the host
// unchanged.
func TestPromise7ChurnLeavesNothing(t *testing.T) {
	t.Parallel()
	cycles := 20
	if testneed.All() {
		cycles = 200
	}
	h := newHost(t)
	d := h.serve()
	cycle := func(int) {
		id := h.run("sandbox", "create", "host")
		box := strings.TrimSpace(id.stdout)
		if r := h.run("exec", box, "--", "sh", "-c", "echo x > /root/f; cat /root/f"); r.stdout != "x\n" {
			t.Errorf("%v after %v", r, id)
		}
		fork := h.run("sandbox", "fork", box)
		if r := h.run("exec", strings.TrimSpace(fork.stdout), "--", "cat", "/root/f"); r.stdout != "x\n" {
			t.Errorf("%v after %v", r, fork)
		}
		if r := h.run("sandbox", "rm", box, strings.TrimSpace(fork.stdout)); r.code != 0 {
			t.Errorf("%v", r)
		}
	}
	// The first cycles create things that are kept, such as the image and connections.
	each(4, 2, cycle)
	h.wantRemains(nil)
	files, descriptors := h.files(), len(openFiles(t, d.cmd.Process.Pid))
	wires := children(d.cmd.Process.Pid)

	each(cycles, 2, cycle)
	if t.Failed() {
		return
	}
	h.wantRemains(nil)
	if got := h.files(); !slices.Equal(got, files) {
		t.Errorf("the data directory holds\n%s\nand held before\n%s", strings.Join(got, "\n"), strings.Join(files, "\n"))
	}
	// Idle connections of the store and of clients come and go; a leak in each cycle would be hundreds of files.
	poll.Until(t, settle, func() bool { return len(openFiles(t, d.cmd.Process.Pid)) < descriptors+10 })
	for pid := range children(d.cmd.Process.Pid) {
		if wires[pid] == "" {
			t.Errorf("the daemon has a new child %d", pid)
		}
	}
	t.Logf("after %d cycles the daemon has %s", cycles, memory(d.cmd.Process.Pid))
}
