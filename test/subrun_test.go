package test_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

const toolsURL = "http://tools.caisson.internal"

// teamScript is a model for agents that start runs of each other. Every call uses 500 tokens: half a dollar at [price].
const teamScript = `
turns:
- when: {last: Ask the worker}
  calls: [{name: run_agent, arguments: '{"agent": "worker", "prompt": "Say it."}'}]
  tokens: {input: 460, output: 40}
- when: {last: Ask the worker, tool: run_agent, result: forty-two}
  text: "The worker says forty-two."
  tokens: {input: 460, output: 40}
- when: {last: Say it}
  text: "It is forty-two."
  tokens: {input: 460, output: 40}
- when: {last: Wait for the sleeper}
  calls: [{name: run_agent, arguments: '{"agent": "worker", "prompt": "Sleep."}'}]
  tokens: {input: 460, output: 40}
- when: {last: Sleep}
  calls: [{name: shell, arguments: '{"command": "sleep 300"}'}]
  tokens: {input: 460, output: 40}
- when: {last: Let the worker spend}
  calls: [{name: run_agent, arguments: '{"agent": "worker", "prompt": "Spend."}'}]
  tokens: {input: 460, output: 40}
- when: {last: Spend}
  repeat: true
  calls: [{name: list, arguments: '{}'}]
  tokens: {input: 460, output: 40}
- when: {last: Go deeper}
  calls: [{name: run_agent, arguments: '{"agent": "lead", "prompt": "Go deeper."}'}]
  tokens: {input: 460, output: 40}
fallback: {text: "This is the bottom.", tokens: {input: 460, output: 40}}
`

// A teamHost is a host with agents that start sub-runs: lead and worker are the built-in agent, of which lead may start
// runs; starter and clerk are shells, of which starter may start all agents and clerk only shells.
type teamHost struct {
	*modelHost
	dir string // The workspace of starters, which contains the caller.
}

func newTeamHost(t *testing.T) *teamHost {
	t.Helper()
	u := newUpstream(t, caisson.ProviderLiteLLM, teamScript, false, nil)
	h := &teamHost{modelHost: newModelHost(t, []*upstream{u}, priced("m", "litellm", "proxied-1"))}
	coder := "image: host\ndriver: jsonl\nevents: {dialect: caisson}\nprompt: stdin\ncommand: [/.caisson/agent, code, --model, '{model}', --steps, '100']\nmodels: [m]\n"
	shell := "image: host\ndriver: exec\ncommand: [/bin/sh, -c, '{prompt}']\nmodels: [m]\n"
	for id, rest := range map[string]string{
		"lead": coder + "subAgents: ['*']\nlimits: {cost: 50}\n", "worker": coder, "starter": shell + "subAgents: ['*']\nlimits: {runs: 3}\n", "clerk": shell + "subAgents: [shell]\n",
	} {
		h.write("agents/"+id+".yaml", "id: "+id+"\nname: "+id+"\n"+rest)
	}
	config, err := os.ReadFile(h.configFile())
	if err != nil {
		t.Fatal(err)
	}
	h.configure(strings.TrimSpace(string(config)), fmt.Sprintf("agentsDir: %q", filepath.Join(h.host.dir, "agents")))
	h.endDaemon()
	h.dir = filepath.Join(h.host.dir, "team")
	if err := errors.Join(os.Mkdir(h.dir, 0o755), os.Link(h.caller, filepath.Join(h.dir, "caller"))); err != nil {
		t.Fatal(err)
	}
	return h
}

// begin starts a run and returns its ID.
func (h *modelHost) begin(args ...string) caisson.ID {
	h.t.Helper()
	return caisson.ID(h.ok(append([]string{"run", "-d"}, args...)...))
}

func (h *host) record(id caisson.ID) caisson.Run {
	h.t.Helper()
	return shows[caisson.Run](h, "runs", "show", string(id))
}

// ended waits until a run has ended.
func (h *host) ended(id caisson.ID) caisson.Run {
	h.t.Helper()
	var r caisson.Run
	poll.Until(h.t, hang, func() bool {
		r = h.record(id)
		return r.State.Ended()
	})
	return r
}

// under returns a run and its descendants, outermost first.
func (h *host) under(id caisson.ID) []caisson.Run {
	h.t.Helper()
	list := shows[[]caisson.Run](h, "runs", "ls", "--under", string(id), "-n", "100")
	slices.SortFunc(list, func(a, b caisson.Run) int { return len(a.Lineage) - len(b.Lineage) })
	return list
}

// child waits until a run has started a sub-run with a sandbox, and returns the sub-run.
func (h *teamHost) child(parent caisson.ID) (r caisson.Run) {
	h.t.Helper()
	poll.Until(h.t, hang, func() bool {
		if p := h.record(parent); p.State.Ended() {
			h.t.Fatalf("the run has ended: %+v", p.Result)
		}
		list := h.under(parent)
		if len(list) == 2 {
			r = list[1]
		}
		return r.State == caisson.RunRunning
	})
	return r
}

// asks returns the prompt of a shell that makes requests of the sub-runs API: the requests of a list concurrently, the
// lists sequentially.
func (h *teamHost) asks(lists ...[]request) string {
	h.t.Helper()
	var script strings.Builder
	for _, list := range lists {
		script.WriteString("./caller <<'END' || exit\n")
		for _, r := range list {
			b, err := json.Marshal(r)
			if err != nil {
				h.t.Fatal(err)
			}
			fmt.Fprintf(&script, "%s\n", b)
		}
		script.WriteString("END\n")
	}
	return script.String()
}

// replies decodes the answer of such a shell, by ID.
func (h *teamHost) replies(answer string) map[string]reply {
	h.t.Helper()
	all := map[string]reply{}
	for in := bufio.NewScanner(strings.NewReader(answer)); in.Scan(); {
		var a reply
		if err := json.Unmarshal(in.Bytes(), &a); err != nil {
			h.t.Fatalf("the caller wrote %.300q: %v", in.Text(), err)
		}
		all[a.ID] = a
	}
	return all
}

// from makes requests in a new run of an agent, and returns the run's ID and the replies.
func (h *teamHost) from(agent string, flags []string, lists ...[]request) (caisson.ID, map[string]reply) {
	h.t.Helper()
	r := shows[caisson.Run](h.host, append(slices.Clone(flags), "run", "-C", h.dir, agent, h.asks(lists...))...)
	if r.State != caisson.RunSucceeded {
		h.t.Fatalf("the run that asks is %s: %+v", r.State, r.Result)
	}
	return r.ID, h.replies(r.Result.Answer)
}

// asked is from for callers that do not need the ID of the run.
func (h *teamHost) asked(agent string, list ...request) map[string]reply {
	h.t.Helper()
	_, replies := h.from(agent, nil, list)
	return replies
}

func startOf(id, agent, prompt string) request {
	return request{ID: id, URL: toolsURL + "/v1/runs", Body: fmt.Sprintf(`{"agent":%q,"prompt":%q}`, agent, prompt)}
}

// noSandboxes waits until the sandboxes of the runs have been removed.
func (h *host) noSandboxes() {
	h.t.Helper()
	poll.Until(h.t, settle, func() bool { return h.ok("sandbox", "ls", "-q") == "" })
}

// TestPromise5SubRuns tests that the usage of sub-runs is taken from the budget of each ancestor, is in the ledger
// under their own ID, and never exceeds the limits of cost, calls, time, count or depth.
func TestPromise5SubRuns(t *testing.T) {
	t.Parallel()
	h := newTeamHost(t)
	h.ledgerOfTree()
	h.spendWithin("--max-cost", "9")
	h.spendWithin("--max-calls", "5")
	h.nothingLeft()
	h.countHolds()
	h.depthHolds()
	h.cancelTree()
	h.balance()
}

// ledgerOfTree tests a run with a sub-run, and which of them made which calls.
func (h *teamHost) ledgerOfTree() {
	t := h.t
	r := shows[caisson.Run](h.host, "run", "lead", "Ask the worker.")
	if r.State != caisson.RunSucceeded || r.Result.Answer != "The worker says forty-two." || r.Children != 1 || r.Result.Usage.Calls != 2 {
		t.Fatalf("the run is %+v: %+v", r, r.Result)
	}
	list := h.under(r.ID)
	if len(list) != 2 || list[1].Parent != r.ID || !slices.Equal(list[1].Lineage, []caisson.ID{r.ID}) || list[1].Result.Usage.Calls != 1 {
		t.Fatalf("the tree is %+v", list)
	}
	for _, call := range h.ledger("--under", string(r.ID)) {
		lineage := ""
		if call.Run == string(list[1].ID) {
			lineage = string(r.ID)
		}
		if call.Lineage != lineage || call.Run != string(list[0].ID) && lineage == "" || call.Cost != caisson.Dollar/2 {
			t.Errorf("the ledger has %+v", call)
		}
	}
	for flag, want := range map[string]int64{"--under": 3, "--run": 2} {
		if sum := h.total(flag, string(r.ID)); sum.Calls != want || sum.Cost != caisson.USD(want)*caisson.Dollar/2 {
			t.Errorf("%s: %+v, want %d calls", flag, sum, want)
		}
	}
}

// spendWithin tests a sub-run that spends without end, in a run with a limit.
func (h *teamHost) spendWithin(flag, limit string) {
	t := h.t
	id := h.begin(flag, limit, "lead", "Let the worker spend.")
	h.ended(id)
	list := h.under(id)
	// The worker's own limit is larger: the limit of its parent ends it.
	if len(list) != 2 || list[1].Result.Error == nil || list[1].Result.Error.Code != caisson.RunNoCredits || !strings.Contains(list[1].Result.Error.Message, string(id)) {
		t.Fatalf("%s: %d runs, the last of which has %+v", flag, len(list), list[len(list)-1].Result)
	}
	sum := h.total("--under", string(id))
	paid := sum.Calls - sum.Failed
	if sum.Cost != caisson.USD(paid)*caisson.Dollar/2 || paid < 2 {
		t.Errorf("%s: %+v", flag, sum)
	}
	if flag == "--max-calls" && paid != 5 || flag == "--max-cost" && sum.Cost > 9*caisson.Dollar {
		t.Errorf("within %s %s there were %d calls for %s", flag, limit, paid, sum.Cost)
	}
}

// nothingLeft tests that a sub-run is not started if nothing is left of the budget.
func (h *teamHost) nothingLeft() {
	r := shows[caisson.Run](h.host, "run", "-C", h.dir, "--max-calls", "1", "starter",
		h.asks([]request{chat("call", "m", "Hello.")}, []request{startOf("start", "shell", "true")}))
	a := h.replies(r.Result.Answer)
	if a["call"].Status != http.StatusOK || a["start"].Status != http.StatusPaymentRequired || !strings.Contains(a["start"].Body, `"code":"insufficient_credits"`) {
		h.t.Errorf("the run says %+v", a)
	}
}

// countHolds tests that of many concurrently started sub-runs as many start as the limit permits.
func (h *teamHost) countHolds() {
	t := h.t
	var list []request
	for i := range 24 {
		list = append(list, startOf(fmt.Sprint(i), "shell", "true"))
	}
	id, replies := h.from("starter", nil, list)
	count := map[int]int{}
	for _, a := range replies {
		count[a.Status]++
		if a.Status != http.StatusCreated && !strings.Contains(a.Body, `"code":"exhausted"`) {
			t.Errorf("%d %s %s", a.Status, a.Body, a.Error)
		}
	}
	if count[http.StatusCreated] != 3 || count[http.StatusTooManyRequests] != 21 {
		t.Errorf("of 24 runs at once, where 3 may be: %v", count)
	}
	// The run that started them has ended, and so have they.
	tree := h.under(id)
	if r := h.record(id); r.Children != 3 || len(tree) != 4 {
		t.Errorf("%d children, %d runs", r.Children, len(tree))
	}
	for _, r := range tree {
		if !r.State.Ended() {
			t.Errorf("run %s is %s", r.ID, r.State)
		}
	}
}

// depthHolds tests that a run that starts itself recursively ends.
func (h *teamHost) depthHolds() {
	id := h.begin("lead", "Go deeper.")
	h.ended(id)
	list := h.under(id)
	for i, r := range list {
		if len(r.Lineage) != i || r.State != caisson.RunSucceeded || r.Result.Answer != "This is the bottom." {
			h.t.Errorf("at depth %d: %+v, %+v", i, r, r.Result)
		}
	}
	if len(list) != 5 {
		h.t.Errorf("there are %d runs", len(list))
	}
}

// cancelTree tests that a sub-run uses the budget of the run that waits for it, and that cancelling ends both at once.
func (h *teamHost) cancelTree() {
	t := h.t
	id := h.begin("--max-cost", "50", "lead", "Wait for the sleeper.")
	child := h.child(id)
	parent := h.record(id)
	if child.Deadline.IsZero() || !child.Deadline.Before(parent.Deadline) || child.Limits.Time >= parent.Limits.Time || child.Limits.StartableRuns() >= parent.Limits.StartableRuns() {
		t.Errorf("of %v and %v: %v and %v", parent.Limits, parent.Deadline, child.Limits, child.Deadline)
	}
	poll.Until(t, hang, func() bool {
		for _, b := range shows[[]caisson.Budget](h.host, "budget", "ls") {
			if b.Key == "run/"+string(id) {
				return b.Used == caisson.Amount{USD: caisson.Dollar, Tokens: 1000, Calls: 2}
			}
		}
		return false
	})
	h.ok("cancel", string(id))
	for _, r := range h.under(id) {
		if r.State != caisson.RunFailed || r.Result.Error.Code != caisson.RunAborted {
			t.Errorf("after it was cancelled: %s is %s, %+v", r.ID, r.State, r.Result)
		}
	}
	h.noSandboxes()
}

// TestPromise9SubRuns tests that only the run that started a sub-run can see or cancel it, even if another one has its
// ID, and that only permitted agents can start sub-runs.
func TestPromise9SubRuns(t *testing.T) {
	t.Parallel()
	h := newTeamHost(t)
	h.client("plain", "--model", "m")
	agents := request{ID: "agents", Method: "GET", URL: toolsURL + "/v1/agents"}
	// Without a grant the name does not resolve; its address would be that of the names that do.
	anyway := request{ID: "anyway", Address: "caisson.internal:80", Raw: "GET /v1/agents HTTP/1.1\r\nHost: tools.caisson.internal\r\n\r\n"}
	for _, list := range [][]reply{h.calls("plain", agents, anyway), slices.Collect(maps.Values(h.asked("shell", agents, anyway)))} {
		for _, a := range list {
			if a.Status != http.StatusForbidden && !strings.Contains(a.Error, "no such host") || a.ID == "anyway" && a.Status == 0 {
				t.Errorf("who may start no runs has %+v", a)
			}
		}
	}
	h.ok("sandbox", "rm", "plain")
	a := h.asked("clerk", agents, startOf("may", "shell", "true"), startOf("may not", "worker", "Say it."), startOf("nobody", "no-such-agent", "x"))
	if a["agents"].Body == "" || strings.Contains(a["agents"].Body, "worker") || !strings.Contains(a["agents"].Body, `"id":"shell"`) {
		t.Errorf("the clerk sees %s", a["agents"].Body)
	}
	if a["may"].Status != http.StatusCreated || a["may not"].Status != http.StatusForbidden || a["nobody"].Status != http.StatusForbidden {
		t.Errorf("the clerk has %+v", a)
	}

	// A run waits for a sub-run. Other runs have the IDs of both.
	id := h.begin("-C", h.dir, "starter", h.asks([]request{{
		ID: "waits", URL: toolsURL + "/mcp", Header: map[string]string{"Mcp-Protocol-Version": "2025-06-18"},
		Body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_agent","arguments":{"agent":"shell","prompt":"while [ ! -e /tmp/go ]; do sleep 0.1; done; echo I waited"}}}`,
	}}))
	child := h.child(id)
	var list []request
	for _, run := range []caisson.ID{id, child.ID} {
		list = append(list,
			request{ID: "get " + string(run), Method: "GET", URL: toolsURL + "/v1/runs/" + string(run) + "?wait=5"},
			request{ID: "cancel " + string(run), URL: toolsURL + "/v1/runs/" + string(run) + "/cancel", Body: "{}"},
			request{ID: "host " + string(run), Method: "GET", URL: "http://llm.caisson.internal/v1/runs/" + string(run), Header: map[string]string{"Host": "tools.caisson.internal"}},
		)
	}
	h.ok("token", "create", "-q", "ci", "--account", "team-b") // makes the account
	for _, flags := range [][]string{nil, {"--account", "team-b"}} {
		_, replies := h.from("starter", flags, list)
		for name, a := range replies {
			if a.Status != http.StatusNotFound {
				t.Errorf("%v %s: %d %s", flags, name, a.Status, a.Body)
			}
		}
	}
	for _, run := range []caisson.ID{id, child.ID} {
		if r := h.record(run); r.State != caisson.RunRunning {
			t.Errorf("run %s is %s: %+v", run, r.State, r.Result)
		}
	}
	h.sh(string(child.Sandbox), "touch /tmp/go")
	r := h.ended(id)
	if got := h.replies(r.Result.Answer)["waits"]; got.Status != http.StatusOK || !strings.Contains(got.Body, `"text":"I waited`) {
		t.Errorf("who has waited has %+v of %+v", got, r.Result)
	}

	// Sub-runs that are in progress when their parent ends are ended with it.
	id, a = h.from("starter", nil, []request{startOf("start", "shell", "sleep 300")})
	tree := h.under(id)
	if a["start"].Status != http.StatusCreated || len(tree) != 2 || tree[1].State != caisson.RunFailed || tree[1].Result.Error.Code != caisson.RunAborted {
		t.Errorf("%+v: %+v", a, tree)
	}
	h.noSandboxes()
}
