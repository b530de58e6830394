package test_test

import (
	"net/http"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestAutoPause tests that a sandbox with a server is suspended and paused while nobody uses it, not while a request is in progress, and
// that a request, and a time, wake it with its memory.
func TestAutoPause(t *testing.T) {
	t.Parallel()
	h := newRoutedHost(t)
	state := func(name string, want caisson.State) {
		t.Helper()
		poll.Until(t, hang, func() bool { return h.show(name).State == want })
	}
	h.ok("route", "add", "web", "web", "3000", "--at", "web.localhost", "--auth", "none", "--resume")
	count := h.reach(h.at("web.localhost", "/")).Count
	next := func() {
		t.Helper()
		if s := h.reach(h.at("web.localhost", "/")); s.Count != count+1 {
			t.Errorf("the server counts %d requests, want %d", s.Count, count+1)
		}
		count++
	}

	// An answer that has begun is a use, though nothing is sent any more: another sandbox with longer times is paused meanwhile.
	res, err := h.client.Get(h.at("web.localhost", "/hold"))
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res, err)
	}
	h.ok("sandbox", "extend", "--auto-pause", "suspend=1s,pause=2s", "web")
	h.ok("sandbox", "create", "--name", "other", "--auto-pause", "suspend=3s,pause=4s")
	state("other", caisson.Paused)
	if s := h.show("web").State; s != caisson.Running {
		t.Errorf("the sandbox is %s while it answers", s)
	}
	res.Body.Close()
	state("web", caisson.Paused)
	next()

	state("web", caisson.Paused)
	h.ok("sandbox", "extend", "--auto-pause", "suspend=1s", "--wake-at", "0s", "web")
	poll.Until(t, hang, func() bool { return h.show("web").WakeAt == nil })
	state("web", caisson.Suspended)
	next()
}
