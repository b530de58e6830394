package test_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

// hangingScript answers, or starts to answer and then hangs. Sent tokens are billed.
const hangingScript = `
chunk: 8
turns:
- when: {last: hang}
  text: "This answer has a beginning, and it never comes to an end."
  tokens: {input: 60, output: 30}
  break: {how: hang, after: 16}
- when: {last: drip}
  text: "This answer goes on for some time, whether somebody listens or not."
  tokens: {input: 60, output: 30}
  delay: {chunk: 20ms}
- when: {last: silent}
  text: "Nothing of this is ever sent."
  delay: {first: 10m}
fallback: {text: "Done.", tokens: {input: 60, output: 30}}
`

// TestPromise5EveryCallOnce tests that calls that are in progress when their sandbox is removed or stopped, their
// client disconnects, the wire process dies, or the daemon dies or ends are in the ledger once, like completed calls,
// and none for less than the provider bills.
func TestPromise5EveryCallOnce(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, caisson.ProviderLiteLLM, hangingScript, false, nil)
	h := newModelHost(t, []*upstream{u}, priced("m", "litellm", "proxied-1"))
	h.endDaemon()
	d := h.serve()
	defer func() { d.kill() }()
	budget := []string{"--model", "m", "--budget", "200"}
	h.client("a", budget...)
	h.client("b", budget...)
	h.works("b")

	end := h.hold(u, "a", append(many(4, streamed("", "m", "hang")), many(2, chat("", "m", "silent"))...))
	h.ok("sandbox", "rm", "a")
	h.wantBroken(end())
	h.lasts(7)

	gone := streamed("gone", "m", "drip Answer.") // The provider bills this answer although the client disconnects.
	gone.Leave = 1
	if a := h.call("b", gone); a.Status != http.StatusOK || a.Error != "" {
		t.Errorf("a client that went away saw %+v", a)
	}
	h.lasts(8)
	if last := h.ledger()[7]; last.Error != "aborted" || last.Estimated {
		t.Errorf("of a client that went away the ledger has %+v", last)
	}

	end = h.hold(u, "b", append(many(4, streamed("", "m", "hang")), many(2, chat("", "m", "silent"))...))
	kill(t, wireOf(t, d))
	h.wantBroken(end())
	h.works("b")
	h.lasts(15)

	end = h.hold(u, "b", append(many(4, streamed("", "m", "hang")), many(2, chat("", "m", "silent"))...))
	wire := wireOf(t, d)
	d.kill()
	poll.Until(t, settle, func() bool { return errors.Is(syscall.Kill(wire, 0), syscall.ESRCH) })
	d = h.serve()
	h.wantBroken(end())
	h.works("b")
	h.lasts(22)

	end = h.hold(u, "b", many(3, streamed("", "m", "hang")))
	d.end()
	d = h.serve()
	h.wantBroken(end())
	h.works("b")
	h.lasts(26)

	end = h.hold(u, "b", many(3, streamed("", "m", "hang")))
	h.ok("sandbox", "stop", "--grace", "0s", "b")
	h.wantBroken(end())
	h.lasts(29)

	h.onceEach(u)
	h.balance()
	h.ok("audit", "verify")
}

// TestPromise5CrashesMakeNoRoom tests that calls never exceed the budget, however often the processes that account for
// them die during many calls: a call with an unknown result counts as its worst case.
func TestPromise5CrashesMakeNoRoom(t *testing.T) {
	t.Parallel()
	const limit = 25 * caisson.Dollar // Pays for 50 calls.
	u := newUpstream(t, caisson.ProviderLiteLLM, "delay: {first: 20ms}"+billedScript, false, nil)
	h := newModelHost(t, []*upstream{u}, priced("m", "litellm", "proxied-1"))
	h.endDaemon()
	d := h.serve()
	defer func() { d.kill() }()
	id := h.client("a", "--model", "m", "--budget", limit.String())
	for round := 0; h.affords(); round++ {
		before := len(u.Calls())
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.calls("a", many(100, chat("", "m", "Pay for this."))...)
		}()
		poll.Until(t, settle, func() bool {
			select {
			case <-done: // The budget is used up.
				return true
			default:
				return len(u.Calls()) > before+3
			}
		})
		wire := wireOf(t, d)
		if round%2 == 0 {
			kill(t, wire)
		} else {
			d.kill()
			poll.Until(t, settle, func() bool { return errors.Is(syscall.Kill(wire, 0), syscall.ESRCH) })
			d = h.serve()
		}
		<-done
		if round == 20 {
			t.Fatal("the budget does not come to an end")
		}
	}
	rows := map[caisson.ID]caisson.USD{}
	for _, c := range h.ledger() {
		rows[c.ID] = c.Cost
	}
	for _, c := range u.Calls() {
		if cost, ok := rows[callID(t, c)]; !ok || cost < price.Cost(c.Billed) {
			t.Errorf("a call that was billed %s is in the ledger for %s (%v)", price.Cost(c.Billed), cost, ok)
		}
	}
	if sum := h.total("--sandbox", string(id)); u.Cost(price) > limit || sum.Cost > limit || sum.Calls < int64(len(u.Calls())) {
		t.Errorf("the provider billed %s for %d calls, the ledger has %+v, and the limit is %s", u.Cost(price), len(u.Calls()), sum, limit)
	}
	h.balance()
}

// affords makes one call and reports whether the budget permitted it.
func (h *modelHost) affords() bool {
	h.t.Helper()
	var a reply
	poll.Until(h.t, settle, func() bool {
		a = h.call("a", chat("affords", "m", "Pay for this."))
		return a.Status == http.StatusOK || a.Status == http.StatusPaymentRequired
	})
	return a.Status == http.StatusOK
}

// works checks that calls of a sandbox are answered once it has its wire again.
func (h *modelHost) works(sandbox string) {
	h.t.Helper()
	var a reply
	poll.Until(h.t, settle, func() bool {
		a = h.call(sandbox, chat("works", "m", "Answer."))
		return a.Status != 0
	})
	if a.Status != http.StatusOK {
		h.t.Errorf("%s cannot make calls: %d %s", sandbox, a.Status, a.Body)
	}
}

// lasts waits until the ledger has n calls.
func (h *modelHost) lasts(n int64) {
	h.t.Helper()
	var sum caisson.UsageRow
	poll.Until(h.t, settle, func() bool {
		sum = h.total()
		return sum.Calls >= n
	})
	if sum.Calls != n {
		h.t.Errorf("the ledger has %d calls, want %d", sum.Calls, n)
	}
}

// hold makes calls, and returns when the provider has received all of them. end waits until they have ended.
func (h *modelHost) hold(u *upstream, sandbox string, list []request) (end func() []reply) {
	h.t.Helper()
	before := len(u.Calls())
	done := make(chan []reply, 1)
	go func() { done <- h.calls(sandbox, list...) }()
	poll.Until(h.t, settle, func() bool { return len(u.Calls()) >= before+len(list) })
	return func() []reply { return <-done }
}

// wantBroken checks that no answer looks complete.
func (h *modelHost) wantBroken(replies []reply) {
	h.t.Helper()
	for _, a := range replies {
		if a.Error == "" && a.Status == http.StatusOK {
			h.t.Errorf("a call that was never answered looks complete: %+v", a)
		}
	}
}

// onceEach compares the calls that LiteLLM received with the ledger, call by call.
func (h *modelHost) onceEach(u *upstream) {
	h.t.Helper()
	rows := map[caisson.ID][]caisson.Call{}
	for _, c := range h.ledger() {
		rows[c.ID] = append(rows[c.ID], c)
	}
	arrived := u.Calls()
	for _, call := range arrived {
		id := callID(h.t, call)
		row := rows[id]
		if len(row) != 1 {
			h.t.Errorf("call %s arrived, and the ledger has it %d times", id, len(row))
			continue
		}
		bill, broken := price.Cost(call.Billed), !bytes.Contains(call.Body, []byte("Answer."))
		switch {
		case row[0].Estimated != broken, row[0].Cost < bill, !broken && row[0].Cost != bill:
			h.t.Errorf("call %s was billed %s and is in the ledger as %+v", id, bill, row[0])
		case broken && row[0].Error == "":
			h.t.Errorf("call %s broke, of which the ledger says nothing: %+v", id, row[0])
		}
		delete(rows, id)
	}
	if len(rows) > 0 {
		h.t.Errorf("the ledger has calls that never arrived: %+v", rows)
	}
}

// callID returns the ID of a call that the gateway sent to LiteLLM.
func callID(t testing.TB, c scriptedtest.Call) caisson.ID {
	t.Helper()
	var meta struct {
		ID caisson.ID `json:"caisson_call_id"`
	}
	if err := json.Unmarshal([]byte(c.Header.Get("X-Litellm-Spend-Logs-Metadata")), &meta); err != nil || meta.ID == "" {
		t.Errorf("a call arrived without an id: %v, %v", c.Header, err)
	}
	return meta.ID
}

// endDaemon stops the daemon that commands have started.
func (h *host) endDaemon() {
	h.t.Helper()
	if err := syscall.Kill(h.daemonPID(), syscall.SIGTERM); err != nil {
		h.t.Fatal(err)
	}
	poll.Until(h.t, settle, func() bool { return h.daemonPID() == 0 })
}

// wireOf returns the process ID of a daemon's wire process.
func wireOf(t testing.TB, d *daemon) (pid int) {
	t.Helper()
	poll.Until(t, settle, func() bool {
		for child, args := range children(d.cmd.Process.Pid) {
			if strings.HasPrefix(args, "caisson-wire") {
				pid = child
			}
		}
		return pid != 0
	})
	return pid
}

// kill kills a process to simulate a crash.
func kill(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
