package test_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

const (
	// callingShell is an agent that may call models.
	callingShell = "image: host\ndriver: exec\ncommand: [/bin/sh, -c, '{prompt}']\nmemory: true\nmodels: [m]\nbackground: [keeper]\n"
	// lookForOthers prints the running processes.
	lookForOthers = "cat /proc/[0-9]*/comm | sort | uniq -c; true"
)

// TestPromise5NobodyPaysWithoutARun tests that a kept sandbox has access to models only while it has a run, and that
// its calls are charged to that run.
func TestPromise5NobodyPaysWithoutARun(t *testing.T) {
	t.Parallel()
	h, u := newShellHost(t, echoScript, map[string]string{
		"sh": callingShell, "forgets": "image: host\ndriver: exec\ncommand: [/bin/sh, -c, 'ls -A; cat /root/.caisson/conversation.md', '{prompt}']\nmodels: [m]\n",
	})
	dir := filepath.Join(h.dir, "tools")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(h.caller, filepath.Join(dir, "caller")); err != nil {
		t.Fatal(err)
	}
	ask := fmt.Sprintf("echo '{\"id\":\"1\",\"url\":%q,\"body\":%q}' | ./caller", chatURL, `{"model":"m","messages":[{"role":"user","content":"Hello."}]}`)
	kept := h.succeeds("-C", dir, "--keep", "sh", ask+"; (while :; do sleep 0.1; "+ask+" > /tmp/late; done) > /dev/null 2>&1 & :")
	if calls, _ := u.billed(kept.ID); len(calls) == 0 || !strings.Contains(kept.Result.Answer, "You said Hello.") {
		t.Fatalf("the run is %+v", kept.Result)
	}
	before := len(u.Calls())
	box := string(kept.Result.Sandbox)
	h.ok("cp", h.caller, box+":/caller")
	if list := h.ok("exec", box, "--", "sh", "-c", lookForOthers); strings.Contains(list, "caller") {
		t.Errorf("what the run has left goes on: %s", list)
	}
	if a := h.call(box, chat("after", "m", "Hello.")); a.Status != http.StatusForbidden && !strings.Contains(a.Error, "no such host") {
		t.Errorf("after the run: %+v", a)
	}
	// The gateway's address is of no use either, should the guest have stored it.
	anyway := request{ID: "anyway", Address: "caisson.internal:80", Raw: "GET /v1/models HTTP/1.1\r\nHost: llm.caisson.internal\r\n\r\n"}
	if a := h.call(box, anyway); a.Status != http.StatusForbidden && a.Status != http.StatusNotFound {
		t.Errorf("after the run, by address: %+v", a)
	}
	if got := len(u.Calls()); got != before {
		t.Errorf("%d calls arrived after the run", got-before)
	}

	// In a session each call is charged to the run in which it was made.
	for i := range 2 {
		r := h.succeeds("-C", dir, "--session", "s", "sh", fmt.Sprintf("[ -e caller ] && %s; : %d", ask, i))
		if calls, _ := u.billed(r.ID); len(calls) != 1 || r.Result.Usage.Calls != 1 || r.Result.Usage.Cost == 0 {
			t.Errorf("run %d of the session: %d calls, %+v", i+1, len(calls), r.Result.Usage)
		}
		for _, row := range h.ledger("--run", string(r.ID)) {
			if row.Session != string(r.Session) || row.Agent != "sh" {
				t.Errorf("the ledger has %+v", row)
			}
		}
	}
	h.balance()

	// An agent without memory receives the earlier conversation, but not in its workspace.
	h.does("-C", dir, "--session", "f", "forgets", "the first prompt")
	r := h.succeeds("-C", dir, "--session", "f", "forgets", "the second prompt")
	if !strings.HasPrefix(r.Result.Answer, "caller\n## user\n\nthe first prompt\n\n") || len(r.Result.Changes) > 0 {
		t.Errorf("the second run of the session sees %q and has changed %+v", r.Result.Answer, r.Result.Changes)
	}
}

// TestSessionsLeaveNothingRunning tests that processes left by a run of a session are killed unless the agent declares
// them as background processes.
func TestSessionsLeaveNothingRunning(t *testing.T) {
	t.Parallel()
	h, _ := newShellHost(t, echoScript, map[string]string{"sh": callingShell})
	const leave = `cp /bin/sleep /tmp/keeper; cp /bin/sleep /tmp/stray; setsid /tmp/keeper 3000 > /dev/null 2>&1 &
setsid /tmp/stray 3000 > /dev/null 2>&1 & (trap '' TERM HUP; exec setsid sh -c 'while :; do /tmp/stray 1; done') > /dev/null 2>&1 &
nohup /tmp/stray 2999 > /dev/null 2>&1 &
sleep 0.5; echo kept > file; echo kept > /tmp/file; `
	first := h.succeeds("--session", "s", "sh", leave+lookForOthers)
	if !strings.Contains(first.Result.Answer, "stray") || !strings.Contains(first.Result.Answer, "1 keeper") {
		t.Fatalf("what it starts is %s", first.Result.Answer)
	}
	second := h.succeeds("--session", "s", "sh", "cat file /tmp/file; "+lookForOthers)
	if strings.Contains(second.Result.Answer, "stray") || !strings.Contains(second.Result.Answer, "1 keeper") || !strings.HasPrefix(second.Result.Answer, "kept\nkept\n") {
		t.Errorf("the next run finds %s", second.Result.Answer)
	}
	if first.Result.Sandbox != second.Result.Sandbox {
		t.Error("the session's sandbox is another one")
	}
}

// TestServicesOutliveRuns tests that a service which starts during a run, and what it has started, keep running at the run's end,
// at which the agent's own processes are killed.
func TestServicesOutliveRuns(t *testing.T) {
	t.Parallel()
	h, _ := newShellHost(t, echoScript, map[string]string{"sh": callingShell})
	first := h.succeeds("--session", "s", "sh", "cp /bin/sleep /tmp/stray; cp /bin/sleep /tmp/child; echo made")
	box := string(first.Result.Sandbox)
	id := h.begin("--session", "s", "sh", "setsid /tmp/stray 3000 > /dev/null 2>&1 & while ! test -e /tmp/end; do sleep 0.1; done; "+lookForOthers)
	h.waitFor(func() bool {
		return strings.Contains(h.run("exec", box, "--", "sh", "-c", lookForOthers).stdout, "stray")
	})
	h.ok("service", "apply", box, "--id", "dev", "--", "sh", "-c", "/tmp/child 3000 & wait")
	dev := h.service(box, "dev", isReady)
	h.sh(box, "touch /tmp/end")
	if r := h.ended(id); r.State != caisson.RunSucceeded || !strings.Contains(r.Result.Answer, "1 stray") || !strings.Contains(r.Result.Answer, "1 child") {
		t.Fatalf("the run is %+v", r.Result)
	}
	h.ok("sandbox", "wake", box)
	if s := h.service(box, "dev", isReady); s.PID != dev.PID || s.Restarts != 0 {
		t.Errorf("after the run the service is %+v, not %+v", s, dev)
	}
	if list := h.sh(box, lookForOthers); strings.Contains(list, "stray") || !strings.Contains(list, "1 child") {
		t.Errorf("after the run the processes are %s", list)
	}
}

// TestPromise9Sessions tests that a session belongs to one user of one account with one agent: sessions with the same
// name share nothing.
func TestPromise9Sessions(t *testing.T) {
	t.Parallel()
	h, _ := newShellHost(t, echoScript, map[string]string{"sh": callingShell, "other": callingShell})
	const mark = "for d in . /tmp /root /dev/shm /var/tmp; do echo my-secret > $d/my-secret; done; cp /bin/sleep /tmp/keeper; setsid /tmp/keeper 3000 my-secret > /dev/null 2>&1 & echo my-secret"
	const look = "grep -rsl my-secret . /tmp /root /dev/shm /var/tmp; grep -l my-secr[e]t /proc/[0-9]*/cmdline; cat /etc/machine-id; ls -A . /tmp /dev/shm; echo looked"
	h.ok("token", "create", "-q", "ci", "--account", "team-b") // makes the account
	people := [][]string{{"--user", "ada", "sh"}, {"--user", "bob", "sh"}, {"sh"}, {"--user", "ada", "--account", "team-b", "sh"}, {"--user", "ada", "other"}}
	first := h.succeeds("--session", "s", "--user", "ada", "sh", mark)
	boxes, sessions := map[caisson.ID]bool{first.Result.Sandbox: true}, map[caisson.ID]bool{first.Session: true}
	for i, flags := range people {
		r := h.succeeds(append(append([]string{"--session", "s"}, flags...), look)...)
		found := strings.Contains(strings.ReplaceAll(r.Result.Answer, "my-secr[e]t", ""), "my-secret")
		if same := i == 0; found != same || boxes[r.Result.Sandbox] != same || sessions[r.Session] != same {
			t.Errorf("%v finds %s", flags, r.Result.Answer)
		}
		boxes[r.Result.Sandbox], sessions[r.Session] = true, true
	}
	// Another account's session cannot be accessed by its ID either.
	h.fails(3, "", "session", "rm", "--account", "team-b", string(first.Session))
	h.fails(3, "", "runs", "show", "--account", "team-b", string(first.ID))
	h.fails(3, "", "attach", "--account", "team-b", string(first.ID))
	h.fails(3, "", "cancel", "--account", "team-b", string(first.ID))
	h.fails(3, "", "sandbox", "show", "--account", "team-b", string(first.Result.Sandbox))
	h.fails(3, "", "exec", "--account", "team-b", string(first.Result.Sandbox), "--", "true")
	for s := range sessions {
		for _, account := range []string{caisson.LocalAccount, "team-b"} {
			h.run("session", "rm", "--account", account, string(s))
		}
	}
	h.waitFor(func() bool {
		return h.ok("sandbox", "ls", "-q")+h.ok("sandbox", "ls", "-q", "--account", "team-b") == ""
	})
}
