package test_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// wirePID returns the process ID of a daemon's wire process, or 0 if there is none at the moment.
func (d *daemon) wirePID() int {
	for pid, args := range children(d.cmd.Process.Pid) {
		if strings.HasPrefix(args, "caisson-wire") {
			return pid
		}
	}
	return 0
}

// A latency is the probe's result of fetching a page repeatedly; times are in milliseconds.
type latency struct{ Fetches, Failed, Median, Longest int64 }

// TestPromise1LimitsHold tests that the limits hold when one sandbox floods its wire in every possible way: the wire
// process stays alive, and other sandboxes' requests, and later its own, are answered.
func TestPromise1LimitsHold(t *testing.T) {
	testneed.Full(t, "the limits of a flow are flooded in wire/flow")
	const (
		length  = "3s"
		longest = 5000 // In milliseconds, on a fully loaded host.
		memory  = 1 << 30
		held    = 1024 // Maximum number of connections of one sandbox.
	)
	w := newWorld(t)
	d := w.serve()
	w.ok("sandbox", "create", "--name", "flood", "--allow", goodName, "--allow", goodAddr4+"/udp", "host")
	w.ok("sandbox", "create", "--name", "calm", "--allow", goodName, "host")
	probe := buildProbe(t)
	w.probe(probe, "flood")
	w.probe(probe, "calm")
	wire := d.wirePID()

	for _, f := range []struct {
		kind, to string
		other    string // The URL that another sandbox fetches meanwhile.
		holds    func(out string) error
	}{
		{"syn", badAddr4 + ":443", "https://" + goodName, nil},
		{"dns", "10.87.0.1:53", "https://" + goodName, nil},
		{"udp", goodAddr4, "https://" + goodName, nil},
		{"connections", goodName + ":443", "https://" + goodName, atMost(held)},
		{"connections", "10.87.0.1:80", "http://caisson.internal", atMost(held)},
	} {
		var calm latency
		var wg sync.WaitGroup
		wg.Go(func() {
			r := w.run("exec", "calm", "--", "/probe", "latency", f.other, length)
			if err := json.Unmarshal([]byte(r.stdout), &calm); err != nil {
				t.Errorf("%v: %v", err, r)
			}
		})
		out := w.ok("exec", "flood", "--", "/probe", f.kind, f.to, length)
		wg.Wait()
		t.Logf("%s: %s; the other sandbox: %+v; the wire has had at most %s", f.kind, out, calm, caisson.Size(peak(t, wire)))
		if f.holds != nil {
			if err := f.holds(out); err != nil {
				t.Errorf("%s: %q: %v", f.kind, out, err)
			}
		}
		if calm.Failed > 0 || calm.Longest > longest {
			t.Errorf("during %s another sandbox's requests took or failed: %+v", f.kind, calm)
		}
		if got := d.wirePID(); got != wire {
			t.Fatalf("after %s the wire process is %d; it was %d", f.kind, got, wire)
		}
		// The sandbox that caused the flood also works again.
		w.attempts("flood", numbered("after "+f.kind, []attempt{
			{Do: "wait", Name: goodName, open: true}, {Do: "get", To: "https://" + goodName + "/", open: true},
		}))
	}
	if got := peak(t, wire); got > memory {
		t.Errorf("the wire process has had %s, more than %s", caisson.Size(got), caisson.Size(memory))
	}
	if got := w.resolver.questions(goodName+" A", goodName+" AAAA"); len(got) > 0 {
		t.Errorf("the name server was asked for %q", got)
	}
	w.boundedEvents("flood")
}

// atMost checks that a sandbox holds no more connections than its limit.
func atMost(held int) func(string) error {
	return func(out string) error {
		var open, failed, alive int
		if _, err := fmt.Sscanf(out, "open %d failed %d alive %d", &open, &failed, &alive); err != nil {
			return err
		}
		if open == 0 || alive > held || open+failed != 10_000 {
			return fmt.Errorf("want all to be tried, and at most %d to be held", held)
		}
		return nil
	}
}

// boundedEvents checks that hundreds of thousands of refusals are combined into a few events whose counts are complete.
func (h *host) boundedEvents(sandbox string) {
	h.t.Helper()
	const most = 1000
	id := string(h.show(sandbox).ID)
	events, refused := 0, 0
	poll.Until(h.t, settle, func() bool {
		events, refused = 0, 0
		for _, e := range h.events(id, "1s") {
			n, _ := strconv.Atoi(e.Data["count"]) // Other events have no count.
			if e.Type == "egress.denied" {
				refused += n
			}
			events++
		}
		return refused >= 10*most
	})
	h.t.Logf("%d events are about %d refusals", events, refused)
	if events > most {
		h.t.Errorf("%d events are about %d refusals", events, refused)
	}
}

// peak returns the maximum memory of a process so far.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var kb int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kb); err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// TestWireSurvivesItsProcess tests that when the wire process dies, connections are closed, and new ones work under the
// same policy.
func TestWireSurvivesItsProcess(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	w.ok("sandbox", "create", "--name", "a", "--allow", goodName, "host")
	w.probe(buildProbe(t), "a")
	w.siege("a", badAddr4+":443", hostAddr4+":7070", goodName+":443")
	for range 3 {
		b := w.begin("exec", "a", "--", "/probe", "download", "https://"+goodName+"/stream")
		if got := b.line(hang); got != "begun" {
			t.Fatalf("the download said %q", got)
		}
		wire := d.wirePID()
		endAtOnce(t, wire)
		if got := b.line(settle); !strings.HasPrefix(got, "ended after ") || strings.HasSuffix(got, "<nil>") {
			t.Errorf("after the death of the wire process the download said %q", got)
		}
		w.attempts("a", numbered("after", []attempt{
			{Do: "wait", Name: goodName, open: true}, {Do: "get", To: "https://" + goodName + "/", open: true}, tcpTo(badAddr4+":443", noRule),
			{Do: "dns", Name: badName, why: "name " + badName + ": " + noRule}, {Do: "tls", To: goodAddr4 + ":443", Name: badName, why: badName + " is the name in the connection"},
		}))
		if got := d.wirePID(); got == wire || got == 0 {
			t.Errorf("the wire process is %d; it was %d", got, wire)
		}
	}
	w.besieged("a", goodName)
	w.left(good()...)
}

// TestWireSurvivesTheDaemon tests that when the daemon and its wire process die, nothing is allowed until the next
// daemon starts, which applies the last policy, not an earlier one.
func TestWireSurvivesTheDaemon(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	w.ok("sandbox", "create", "--name", "a", "--allow", badAddr4+":443", "--allow", goodName, "host")
	w.probe(buildProbe(t), "a")
	w.attempts("a", []attempt{{ID: "before", Do: "tcp", To: badAddr4 + ":443", open: true}})
	n := 0
	poll.Until(t, settle, func() bool { // Packets are recorded after they were sent.
		n = w.out[0].count("tcp " + badAddr4 + ":443")
		return n > 0
	})
	w.ok("policy", "set", "a", "--allow", goodName)
	w.siege("a", badAddr4+":443", hostAddr4+":7070", goodName+":443")
	for range 3 {
		wires := children(d.cmd.Process.Pid)
		d.kill()
		w.gone(wires)
		d = w.serve()
		w.attempts("a", numbered("after", []attempt{
			{Do: "wait", Name: goodName, open: true}, {Do: "get", To: "https://" + goodName + "/", open: true}, tcpTo(badAddr4+":443", noRule),
		}))
	}
	if got := shows[caisson.Policy](w.host, "policy", "show", "a"); len(got.Rules) != 1 || got.Rules[0].Host != goodName {
		t.Errorf("the policy is %+v", got)
	}
	w.besieged("a", goodName)
	w.left(append(good(), "tcp "+badAddr4+":443")...) // Everything until now is recorded.
	if got := w.out[0].count("tcp " + badAddr4 + ":443"); got != n {
		t.Errorf("%d connections were made to an address that is not allowed any more", got-n)
	}
}

// siege lets a sandbox connect to targets repeatedly until the end of the test.
func (h *host) siege(sandbox string, targets ...string) {
	h.t.Helper()
	h.ok(append([]string{"exec", "-d", sandbox, "--", "/probe", "siege"}, targets...)...)
}

// besieged checks that only the allowed target of a siege was reached, and that it still can be.
func (h *host) besieged(sandbox, allowed string) {
	h.t.Helper()
	last, before := "", ""
	for deadline := time.Now().Add(settle); last == before && time.Now().Before(deadline); {
		before = last
		for line := range strings.Lines(h.sh(sandbox, "cat /siege")) {
			if last = line; !strings.Contains(line, allowed) {
				h.t.Errorf("reached in a siege: %s", line)
			}
		}
		if before == "" {
			before = last
		}
	}
	if last == before {
		h.t.Error("the siege has come to a standstill")
	}
}

func endAtOnce(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}
