package test_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestPromise9Terminals tests that terminals whose programs write without end, to viewers that do not read, neither fill the daemon's
// memory nor stop what others do.
func TestPromise9Terminals(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve()
	h.ok("sandbox", "create", "host", "--name", "loud")
	h.ok("sandbox", "create", "host", "--name", "other")
	rss := func() (pages int) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", h.daemonPID()))
		if err == nil {
			var size int
			_, err = fmt.Sscan(string(b), &size, &pages)
		}
		if err != nil {
			t.Fatal(err)
		}
		return pages
	}
	before := rss()
	for range 4 {
		d := h.sit("exec", "-it", "--detach-keys", "ctrl-p,ctrl-q", "loud", "--", "sh", "-c", "echo begun; read go; exec yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
		d.sees("begun")
		d.types("go\n")
		d.kill()
	}
	ids := strings.Fields(h.ok("terminal", "ls", "-q", "loud"))
	if len(ids) != 4 {
		t.Fatalf("the terminals are %q", ids)
	}
	for i := range 12 {
		cmd := h.command(context.Background(), "attach", "loud", ids[i%len(ids)])
		cmd.Env = append(cmd.Env, "TERM=xterm")
		master, err := pty.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { master.Close(); cmd.Process.Kill(); cmd.Wait() })
	}
	poll.Until(t, settle, func() bool {
		viewers := 0
		for _, term := range shows[[]caisson.Terminal](h, "terminal", "ls", "loud") {
			viewers += term.Viewers
		}
		return viewers == 12
	})
	for range 5 {
		h.ok("exec", "other", "--", "true")
	}
	if grown := (rss() - before) * os.Getpagesize(); grown > 64<<20 {
		t.Errorf("the daemon's memory has grown by %d bytes", grown)
	}
	h.ok("exec", "loud", "--", "true")
}
