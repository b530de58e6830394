package test_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// Agents whose program is the prompt: the answer of badShell is its output, badSpeech prints JSON lines, and neverUp
// waits for a service that never starts.
const (
	badShell   = "image: host\ndriver: exec\ncommand: [/bin/sh, -c, '{prompt}']\nmemory: true\nmodels: ['-']\nlimits: {time: 1m, memory: 512M, disk: 64M, pids: 40, output: 64K}\n"
	badSpeech  = "image: host\ndriver: jsonl\nevents: {dialect: caisson}\ncommand: [/bin/sh, -c, '{prompt}']\nmodels: ['-']\nlimits: {time: 1m, output: 64K}\n"
	diesAtOnce = badShell + "service: [/bin/sh, -c, 'echo boom >&2; exit 3']\nready: http://127.0.0.1:9999/ready\n"
	neverUp    = badShell + "service: [/bin/sleep, '3000']\nready: http://127.0.0.1:9999/ready\n"
)

// newShellHost returns a host with agents given as YAML by ID, whose model is "m".
func newShellHost(t *testing.T, script string, list map[string]string) (*modelHost, *upstream) {
	t.Helper()
	u := newUpstream(t, caisson.ProviderLiteLLM, script, false, nil)
	h := newModelHost(t, []*upstream{u}, priced("m", "litellm", "proxied-1"))
	h.agentsDir(list)
	return h, u
}

// TestAgentsThatFail tests that the run of a misbehaving agent ends with the right error in time, leaves nothing behind
// and does not affect other runs.
func TestAgentsThatFail(t *testing.T) {
	t.Parallel()
	h, _ := newShellHost(t, echoScript, map[string]string{"sh": badShell, "json": badSpeech, "never": neverUp, "dies": diesAtOnce})
	const soon = "--timeout=4s"
	for _, c := range []struct {
		name        string
		args        []string
		code, words string // "": it succeeds, and the words are in its answer
	}{
		{"crashes", []string{"sh", "echo half; kill -SEGV $$"}, caisson.RunAgentError, ""},
		{"exits", []string{"sh", "echo why >&2; exit 3"}, caisson.RunAgentError, "3"},
		{"hangs", []string{soon, "sh", "echo begun; exec sleep 3000"}, caisson.RunTimeout, "was not done within the run's time of "},
		{"ignores signals", []string{soon, "sh", "trap '' TERM INT HUP; while :; do sleep 1; done"}, caisson.RunTimeout, ""},
		{"leaves others that do", []string{"sh", "(trap '' TERM HUP; while :; do sleep 1; done) & echo left"}, "", "left"},
		{"holds its output", []string{soon, "sh", "setsid sleep 3000 & echo held"}, "", "held"},
		{"prints too much", []string{"sh", "head -c 200000000 /dev/zero | tr '\\0' x"}, "", "xxxx"},
		{"complains too much", []string{"sh", "head -c 200000000 /dev/zero >&2; echo said"}, "", "said"},
		{"is a fork bomb", []string{soon, "sh", "b() { b | b & b; }; b"}, "any", ""},
		{"fills the disk", []string{"sh", "dd if=/dev/zero of=big bs=1M 2>/dev/null; echo full"}, "", "full"},
		{"fills the memory", []string{"sh", "tail /dev/zero; echo survived"}, "any", ""},
		{"says nothing", []string{"sh", "true"}, "", ""},
		{"says nothing in JSON", []string{"json", "true"}, caisson.RunAgentError, "without a line"},
		{"says no JSON", []string{"json", `echo hello; echo '{"type": "final'; printf '\000\377\n'`}, caisson.RunAgentError, "JSON"},
		{"says too much JSON", []string{"json", `printf '{"a": "'; head -c 50000000 /dev/zero | tr '\0' x; echo '"}'`}, caisson.RunAgentError, ""},
		{"is never ready", []string{soon, "never", "echo here"}, caisson.RunTimeout, "was not ready"},
		{"has a service that dies", []string{"--timeout=5m", "dies", "echo here"}, caisson.RunAgentError, "service exited with 3: boom"},
		{"is not there", []string{"--image", "host", "no-such-agent", "x"}, "none", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := h.host.as(t)
			if c.code == "none" {
				own.fails(3, c.args[2], append([]string{"run"}, c.args...)...)
				return
			}
			begin := time.Now()
			r := own.does(c.args...)
			switch {
			case c.code == "any" && r.Result.Error != nil && !strings.Contains(r.Result.Error.Message, c.words):
				t.Errorf("it is %v, want %q", r.Result.Error, c.words)
			case c.code == "any":
			case c.code != "":
				own.wantError(r, c.code, c.words)
			case r.State != caisson.RunSucceeded || !strings.Contains(r.Result.Answer, c.words):
				t.Errorf("the run is %s: %v: %.100q", r.State, r.Result.Error, r.Result.Answer)
			}
			if took := time.Since(begin); took > 5*time.Minute {
				t.Errorf("it took %v", took)
			}
			const bound = 64 << 10
			if len(r.Result.Answer) > bound || r.Result.Stdout > bound || r.Result.Stderr > bound {
				t.Errorf("%d bytes of answer, %s and %s of logs were kept", len(r.Result.Answer), r.Result.Stdout, r.Result.Stderr)
			}
			if much := strings.Contains(c.name, "too much"); much != r.Result.Cut {
				t.Errorf("the record says cut: %v", r.Result.Cut)
			}
			own.vanished(r.Result.Sandbox)
			if r := own.succeeds("sh", "echo fine"); r.Result.Answer != "fine" && r.Result.Answer != "fine\n" {
				t.Errorf("the next run answers %q", r.Result.Answer)
			}
		})
	}
	for _, file := range h.filesBelow(filepath.Join(h.data, "runs")) {
		if info, err := os.Stat(file); err == nil && info.Size() > 1<<20 {
			t.Errorf("%s has %d bytes", file, info.Size())
		}
	}
}

// replay returns the events of a run after the event after, as the API streams them, until the stream ends or leave
// returns true.
func (h *host) replay(client *http.Client, id caisson.ID, after int64, header bool, leave func(caisson.RunEvent) bool) (list []caisson.RunEvent) {
	h.t.Helper()
	url := fmt.Sprintf("http://caisson/api/v1/runs/%s/events", id)
	if !header {
		url += fmt.Sprintf("?after=%d", after)
	}
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	if header {
		req.Header.Set("Last-Event-ID", fmt.Sprint(after))
	}
	resp, err := client.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		data, ok := strings.CutPrefix(in.Text(), "data:")
		if !ok {
			continue
		}
		var e caisson.RunEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			h.t.Fatalf("%v: %s", err, data)
		}
		if list = append(list, e); leave != nil && leave(e) {
			break
		}
	}
	return list
}

// TestRunsGoOnWithoutTheirClients tests that a run continues if its client disconnects, and that its events can be read
// from any number on.
func TestRunsGoOnWithoutTheirClients(t *testing.T) {
	t.Parallel()
	h, _ := newShellHost(t, echoScript, map[string]string{"sh": badShell})
	const waits = "echo one; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo two"
	client := h.http()

	// One run's client stops in the middle of the stream; the other run's command on the terminal is killed.
	id := h.begin("sh", waits)
	isText := func(e caisson.RunEvent) bool { return e.Type == caisson.EventTextDelta }
	if part := h.replay(client, id, 0, false, isText); len(part) == 0 || part[len(part)-1].Delta != "one\n" && part[len(part)-1].Delta != "one" {
		t.Fatalf("the stream begins %+v", part)
	}
	cmd := h.command(context.Background(), "run", "sh", waits)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var other caisson.ID
	poll.Until(t, hang, func() bool {
		list := shows[[]caisson.Run](h.host, "runs", "ls", "--state", "running")
		i := slices.IndexFunc(list, func(r caisson.Run) bool { return r.ID != id })
		if i >= 0 {
			other = list[i].ID
		}
		return i >= 0
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // The command was killed.
	for _, id := range []caisson.ID{id, other} {
		h.sh(string(h.record(id).Sandbox), "touch /tmp/go")
		r := h.ended(id)
		if h.once(r); r.State != caisson.RunSucceeded || strings.TrimSpace(r.Result.Answer) != "one\ntwo" {
			t.Errorf("the run that nobody watched is %s: %+v", r.State, r.Result)
		}
	}
	all := h.replay(client, id, 0, false, nil)
	if len(all) < 5 || all[len(all)-1].Type != caisson.EventDone {
		t.Fatalf("there are %d events", len(all))
	}
	for after := range int64(len(all)) + 2 {
		for _, header := range []bool{false, true} {
			got := h.replay(client, id, after, header, nil)
			want := all[min(int(after), len(all)):]
			if !slices.EqualFunc(got, want, func(a, b caisson.RunEvent) bool { return a.Seq == b.Seq && a.Type == b.Type && a.Delta == b.Delta }) {
				t.Errorf("after %d there are %+v, want %+v", after, got, want)
			}
		}
	}
}

// slowScript is a model for runs that are in progress when the daemon ends: in a tool, or in a call of a model.
const slowScript = `
turns:
- when: {last: Use a tool}
  text: "I begin."
  calls: [{name: shell, arguments: '{"command": "touch /tmp/waits; sleep 3000"}'}]
  tokens: {input: 30, output: 20}
- when: {last: Answer late}
  text: "Late."
  delay: {first: 9m}
fallback: {text: "You said {{last}}.", tokens: {input: 20, output: 10}}
`

// TestPromise7DaemonKilledDuringRuns tests that after the daemon was killed the next one ends the runs in progress:
// each with one result, all of its calls in the ledger, and nothing left behind.
func TestPromise7DaemonKilledDuringRuns(t *testing.T) {
	t.Parallel()
	h, u := newShellHost(t, slowScript, nil)
	d := h.serve()
	dir := h.project("work")
	tool, late := h.begin("-C", dir, "--max-cost", "50", "caisson", "Use a tool."), h.begin("--max-cost", "50", "caisson", "Answer late.")
	session := h.begin("--session", "s", "caisson", "Use a tool.")
	var boxes []caisson.ID
	for _, id := range []caisson.ID{tool, session} {
		boxes = append(boxes, h.midway(id).Sandbox)
	}
	poll.Until(t, hang, func() bool { return len(u.Calls()) == 3 })
	wires := children(d.cmd.Process.Pid)
	d.kill()
	h.gone(wires)
	h.serve()
	for _, id := range []caisson.ID{tool, late, session} {
		r := h.ended(id)
		h.wantError(r, caisson.RunInternal, "daemon")
		h.once(r)
		rows := h.ledger("--run", string(id))
		_, tokens := u.billed(id)
		switch {
		case len(rows) != 1:
			t.Errorf("run %s: the ledger has %+v", id, rows)
		case id == late && (!rows[0].Estimated || rows[0].Cost == 0):
			t.Errorf("the call that was under way is %+v", rows[0])
		case id != late && (rows[0].Tokens != tokens || rows[0].Estimated):
			t.Errorf("run %s: the model counted %+v, the ledger has %+v", id, tokens, rows[0])
		}
		if u := r.Result.Usage; len(rows) == 1 && (u.Calls != 1 || u.Cost != rows[0].Cost || u.Tokens != rows[0].Tokens) {
			t.Errorf("run %s says %+v, the ledger %+v", id, u, rows[0])
		}
		if id == tool && strings.TrimSpace(r.Result.Answer) != "I begin." {
			t.Errorf("what it had said is %q", r.Result.Answer)
		}
	}
	h.vanished(boxes[0])
	if r := h.record(session); r.Result.Sandbox != boxes[1] {
		t.Errorf("the session has lost its sandbox: %+v", r.Result)
	}
	for _, b := range shows[[]caisson.Budget](h.host, "budget", "ls") {
		if strings.HasPrefix(b.Key, "run/") {
			t.Errorf("a budget is left: %+v", b)
		}
	}
	// The session can be continued, and a run can be retried.
	if r := h.succeeds("--session", "s", "caisson", "Say it again."); r.Result.Answer != "You said Say it again.." {
		t.Errorf("the session goes on with %q", r.Result.Answer)
	}
	h.ok("session", "rm", string(h.record(session).Session))
	h.noSandboxes()
	h.wantRemains(nil)
	h.balance()
}

// TestPromise7DaemonStoppedWhileRunsWait tests that runs that are queued when the daemon stops are started by the next
// one.
func TestPromise7DaemonStoppedWhileRunsWait(t *testing.T) {
	t.Parallel()
	h, _ := newShellHost(t, slowScript, map[string]string{"sh": badShell})
	h.configLine("runs: {concurrent: 1, perAccount: 1, waiting: 4}")
	d := h.serve()
	dir := h.project("work")
	first := h.begin("sh", "touch /tmp/waits; sleep 3000")
	h.midway(first)
	second := h.begin("-C", dir, "--workspace-kind", "copy", "sh", "cat given.txt")
	third := h.begin("--session", "s", "sh", "echo third")
	h.fails(4, "this session", "run", "--session", "s", "sh", "echo another")
	fourth := h.begin("sh", "echo fourth")
	if r := h.run("run", "sh", "echo too many"); r.code != 6 && r.code != 7 || !strings.Contains(r.stderr, "wait") {
		t.Errorf("the one too many: %v", r)
	}
	h.ok("cancel", string(fourth))
	h.wantError(h.ended(fourth), caisson.RunAborted, "")
	// The directory to copy changes while its run is queued; the run must use its content at the time of the request.
	h.write("work/given.txt", "changed\n")
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait() // The exit status is not tested here.
	d = h.serve()
	h.wantError(h.ended(first), caisson.RunInternal, "daemon")
	for id, want := range map[caisson.ID]string{second: "given by the host", third: "third"} {
		r := h.ended(id)
		if h.once(r); r.State != caisson.RunSucceeded || strings.TrimSpace(r.Result.Answer) != want || r.Attempt != 1 {
			t.Errorf("the run that waited is %s: %+v", r.State, r.Result)
		}
	}
	h.ok("session", "rm", string(h.record(third).Session))
	h.noSandboxes()
	d.end()
	h.serve()
	h.wantRemains(nil)
}
