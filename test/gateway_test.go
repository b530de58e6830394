package test_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// echoScript repeats the prompt.
const echoScript = `
chunk: 200
fallback: {text: "You said {{last}}.", tokens: {input: 20, output: 10}}
`

// newGatewayHost returns a host with two providers over the network and a scripted one; the models are "m" (OpenAI),
// "c" (Anthropic), "unpriced" and "local".
func newGatewayHost(t *testing.T) (h *modelHost, openai, anthropic *upstream) {
	t.Helper()
	openai = newUpstream(t, caisson.ProviderOpenAI, echoScript, false, nil)
	anthropic = newUpstream(t, caisson.ProviderAnthropic, echoScript, true, nil)
	local := &upstream{name: "local", script: "fallback: {text: Offline.}\n"}
	h = newModelHost(t, []*upstream{openai, anthropic, local},
		priced("m", "openai", "gpt-test-1"), priced("c", "anthropic", "claude-test-1"),
		"{alias: unpriced, provider: openai, upstream: gpt-test-2}", "{alias: local, provider: local, free: true}")
	return h, openai, anthropic
}

// TestGatewayGrants tests which sandboxes may call which models.
func TestGatewayGrants(t *testing.T) {
	t.Parallel()
	h, openai, _ := newGatewayHost(t)
	h.client("a", "--model", "m", "--model", "unpriced")
	h.client("none")
	h.client("offline", "--model", "local")

	a := h.call("offline", chat("scripted", "local", "Hello."))
	if a.Status != http.StatusOK || !strings.Contains(a.Body, "Offline.") {
		t.Errorf("the scripted provider answers %d %s", a.Status, a.Body)
	}
	a = h.call("a", chat("echo", "m", "Hello."))
	if a.Status != http.StatusOK || !strings.Contains(a.Body, "You said Hello.") || a.Header.Get("X-Caisson-Call-Id") == "" {
		t.Errorf("a call is answered %d %v %s", a.Status, a.Header, a.Body)
	}
	// Claiming another sandbox's identity does not give access to its grants.
	spoof := chat("spoof", "m", "Hello.")
	spoof.Header = map[string]string{
		"Authorization": "Bearer " + string(h.show("a").ID), "X-Caisson-Sandbox": "a", "X-Forwarded-For": "127.0.0.1", "X-Litellm-End-User-Id": "a",
	}
	for _, r := range []request{chat("no grant", "m", "Hello."), spoof, {ID: "list", Method: http.MethodGet, URL: gatewayURL + "/v1/models"}} {
		if a := h.call("none", r); a.Status != 0 || !strings.Contains(a.Error, "no such host") {
			t.Errorf("without a grant, %s: %+v", r.ID, a)
		}
	}
	// The address is in use, but the name is not granted.
	named := request{ID: "by name", Address: "caisson.internal:80", Raw: "GET /v1/models HTTP/1.1\r\nHost: llm.caisson.internal\r\n\r\n"}
	if a := h.call("none", named); a.Status != http.StatusForbidden && a.Status != http.StatusNotFound {
		t.Errorf("without a grant, %s: %+v", named.ID, a)
	}
	// A model that is not granted is treated as unknown: the first model of the grant answers.
	for _, model := range []string{"m", "c", "no-such-model"} {
		if a := h.call("offline", chat("not granted: "+model, model, "Hello.")); a.Status != http.StatusOK || !strings.Contains(a.Body, "Offline.") {
			t.Errorf("%s, which is not granted, is answered %d %s", model, a.Status, a.Body)
		}
	}
	if rows := shows[[]caisson.UsageRow](h.host, "usage", "--by", "model"); len(rows) != 2 {
		t.Errorf("called were %+v", rows)
	}
	a = h.call("a", request{ID: "list", Method: http.MethodGet, URL: gatewayURL + "/v1/models"})
	if a.Status != http.StatusOK || strings.Contains(a.Body, "local") || !strings.Contains(a.Body, `"unpriced"`) {
		t.Errorf("the list of models is %d %s", a.Status, a.Body)
	}

	h.wantRefusal(h.call("a", chat("unpriced", "unpriced", "Hello.")), http.StatusForbidden, "import a price list")
	if list := h.ok("model", "ls"); !strings.Contains(lineWith(list, "unpriced"), "caisson model import-prices") {
		t.Errorf("model ls does not say that a price is missing:\n%s", list)
	}
	h.ok("model", "import-prices", h.write("prices.json", `{
		"sample_spec": {"mode": "one of chat, embedding"},
		"gpt-test-2": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06, "max_input_tokens": 1000, "max_output_tokens": 100}
	}`))
	if a := h.call("a", chat("priced", "unpriced", "Hello.")); a.Status != http.StatusOK {
		t.Errorf("with an imported price: %d %s", a.Status, a.Body)
	}
	if sum := h.total("--model", "unpriced"); sum.Cost != 40_000 || sum.Calls != 1 {
		t.Errorf("20 tokens at 1 dollar and 10 at 2 dollars per million are %+v", sum)
	}
	h.rotate(openai)
	h.exports()
}

// rotate replaces a credential, which takes effect with the next call.
func (h *modelHost) rotate(u *upstream) {
	h.t.Helper()
	key := newKey()
	if r := h.runWith(strings.NewReader(key), "credential", "rotate", u.credential()); r.code != 0 {
		h.t.Fatal(r)
	}
	u.Reset()
	a := h.call("a", chat("rotated", "m", "Hello."))
	if calls := u.Calls(); a.Status != http.StatusOK || len(calls) != 1 || calls[0].Header.Get("Authorization") != "Bearer "+key {
		h.t.Errorf("after the credential was rotated: %d %s, %+v", a.Status, a.Body, calls)
	}
	u.key = key
	h.ok("credential", "rm", u.credential())
	h.wantRefusal(h.call("a", chat("removed", "m", "Hello.")), http.StatusBadRequest, "credential")
	if len(u.Calls()) != 1 {
		h.t.Error("without its credential the provider was called")
	}
}

// exports checks that the CSV output equals the JSON output.
func (h *modelHost) exports() {
	h.t.Helper()
	read := func(args ...string) [][]string {
		rows, err := csv.NewReader(strings.NewReader(h.ok(append([]string{"usage", "--csv"}, args...)...))).ReadAll()
		if err != nil || len(rows) == 0 {
			h.t.Fatalf("usage --csv %q: %v", args, err)
		}
		return rows
	}
	rows := shows[[]caisson.UsageRow](h.host, "usage")
	table := read()
	if len(rows) < 3 || len(table) != len(rows)+1 {
		h.t.Errorf("%d rows of JSON are %d of CSV", len(rows), len(table))
	}
	for i, r := range rows {
		if got := table[i+1]; got[0] != r.Key || got[1] != strconv.FormatInt(r.Calls, 10) || got[len(got)-1] != r.Cost.String() {
			h.t.Errorf("CSV has %q for %+v", got, r)
		}
	}
	calls, list := h.ledger(), read("--calls")
	if len(list) != len(calls)+1 || list[1][0] != string(calls[0].ID) {
		h.t.Errorf("%d calls are %d rows of CSV", len(calls), len(list))
	}
	if receipts := read("--receipts"); len(receipts) != len(calls)+1 {
		h.t.Errorf("%d calls are %d rows of receipts", len(calls), len(receipts))
	}
}

// TestGatewayRecords tests that prompts are recorded only if the grant says so, that keys never are, and that an answer
// containing the provider's key is withheld.
func TestGatewayRecords(t *testing.T) {
	t.Parallel()
	h, openai, _ := newGatewayHost(t)
	kept, plain := h.granted("kept", "{models: [m], record: true}"), h.client("plain", "--model", "m")
	foreign := "sk-ant-api03-" + newKey()
	for _, s := range []string{"kept", "plain"} {
		if a := h.call(s, chat("said", "m", "Remember "+foreign)); a.Status != http.StatusOK {
			t.Errorf("%s: %d %s", s, a.Status, a.Body)
		}
		h.wantRefusal(h.call(s, chat("leak", "m", "Repeat "+openai.key)), http.StatusBadGateway, "withheld")
		// A stream breaks off before the key.
		if a := h.call(s, streamed("leak", "m", "Repeat "+openai.key)); a.Status == http.StatusOK && a.Error == "" || strings.Contains(a.Body, openai.key[:piece]) {
			t.Errorf("%s: a stream with the key in it: %+v", s, a)
		}
	}
	file := func(id caisson.ID) string { return filepath.Join(h.data, "sandboxes", string(id), "models.jsonl") }
	data, err := os.ReadFile(file(kept))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for _, line := range lines {
		var r struct{ Call, Sandbox, Model, Request, Response string }
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Call == "" || r.Sandbox != string(kept) || !strings.Contains(r.Request, "[redacted]") ||
			!strings.Contains(r.Response, "You said Re") && !strings.Contains(r.Response, `"Re`) {
			t.Errorf("%v: %s", err, line)
		}
	}
	if len(lines) != 3 {
		t.Errorf("of 3 calls %d were kept", len(lines))
	}
	if info, err := os.Stat(file(kept)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v: %v", info.Mode(), err)
	}
	if _, err := os.Stat(file(plain)); !os.IsNotExist(err) {
		t.Errorf("calls of a sandbox that nobody asked to keep were kept: %v", err)
	}
	h.wantNoneBelow(h.data, forms(openai.key, foreign))
}

// TestGatewayRates tests the rate limits of calls, and that one sandbox at its limit does not delay others.
func TestGatewayRates(t *testing.T) {
	t.Parallel()
	g := newGate()
	openai := newUpstream(t, caisson.ProviderOpenAI, echoScript, false, nil)
	slow := newUpstream(t, caisson.ProviderLiteLLM, gatedScript, false, g.wrap)
	h := newModelHost(t, []*upstream{openai, slow}, priced("m", "openai", "gpt-test-1"), priced("slow", "litellm", "slow-1"))
	h.granted("rated", "{models: [m], rate: {requestsPerMinute: 3}}")
	h.granted("counted", "{models: [m], rate: {tokensPerMinute: 1000}}")
	h.client("busy", "--model", "slow", "--budget", "1000")
	h.client("other", "--model", "m", "--model", "slow", "--budget", "1000")
	for _, c := range []struct {
		sandbox            string
		calls, least, most int
	}{
		{"rated", 12, 3, 5}, // Then one more every 20 s.
		// A call uses 30 tokens: 33 sequential calls, fewer concurrent ones because each reserves its maximum; then one
		// more every 2 s.
		{"counted", 60, 1, 50},
	} {
		paid := 0
		for _, a := range h.calls(c.sandbox, many(c.calls, chat("", "m", "Hello."))...) {
			if a.Status == http.StatusOK {
				paid++
				continue
			}
			h.wantRefusal(a, http.StatusTooManyRequests, "per minute")
			if wait, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || wait < 1 || wait > 60 {
				t.Errorf("%s: it is to wait %q", c.sandbox, a.Header.Get("Retry-After"))
			}
		}
		if paid < c.least || paid > c.most {
			t.Errorf("%s: %d calls were answered", c.sandbox, paid)
		}
	}

	const seats = 64 // Limit of concurrent calls per sandbox.
	list := many(seats, streamed("", "slow", "Hello."))
	end := h.hold(slow, "busy", list)
	h.wantRefusal(h.call("busy", chat("one more", "slow", "Hello.")), http.StatusTooManyRequests, fmt.Sprintf("%d calls under way", seats))
	for _, r := range many(5, chat("", "m", "Hello.")) {
		if a := h.call("other", r); a.Status != http.StatusOK {
			t.Errorf("while another sandbox waits: %d %s %s", a.Status, a.Body, a.Error)
		}
	}
	before := len(slow.Calls())
	if early := h.call("other", func() request { r := streamed("early", "slow", "Hello."); r.Leave = 20; return r }()); early.Status != http.StatusOK || len(slow.Calls()) != before+1 {
		t.Errorf("the provider that others wait for: %d %s %s", early.Status, early.Body, early.Error)
	}
	close(g.open)
	for _, a := range end() {
		if a.Status != http.StatusOK || a.Error != "" || !strings.Contains(a.Body, "[DONE]") {
			t.Errorf("a call that had to wait: %+v", a)
		}
	}
	if sum := h.total("--model", "slow"); sum.Calls != seats+1 || sum.Estimated > 1 {
		t.Errorf("the ledger has %+v", sum)
	}
}

// TestPromise6ForksHaveTheirOwnModels tests that a fork has only the models granted to it, none of its parent's, and
// that a fork and a resumed sandbox use their own budget under their own ID.
func TestPromise6ForksHaveTheirOwnModels(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, caisson.ProviderLiteLLM, echoScript, false, nil)
	h := newModelHost(t, []*upstream{u}, priced("m", "litellm", "proxied-1"))
	parent := h.client("parent", "--model", "m", "--max-calls", "2")
	h.works("parent")
	h.works("parent")
	h.ok("sandbox", "fork", "--name", "orphan", "parent")
	if a := h.call("orphan", chat("no grant", "m", "Hello.")); !strings.Contains(a.Error, "no such host") {
		t.Errorf("a fork that was given no models: %+v", a)
	}
	h.ok("sandbox", "fork", "--name", "child", "--model", "m", "--max-calls", "2", "parent")
	child := h.show("child").ID
	h.wantRefusal(h.call("parent", chat("spent", "m", "Hello.")), http.StatusPaymentRequired, "2 calls")
	h.works("child")
	h.ok("sandbox", "pause", "child")
	h.ok("sandbox", "resume", "child")
	h.works("child")
	h.wantRefusal(h.call("child", chat("spent", "m", "Hello.")), http.StatusPaymentRequired, "2 calls")
	calls := u.Calls()
	if len(calls) != 4 {
		t.Fatalf("%d calls arrived", len(calls))
	}
	for i, c := range calls {
		whose := parent
		if i >= 2 {
			whose = child
		}
		if meta := c.Header.Get("X-Litellm-Spend-Logs-Metadata"); !strings.Contains(meta, string(whose)) {
			t.Errorf("call %d is attributed to %s, and is %s's", i, meta, whose)
		}
	}
	for _, id := range []caisson.ID{parent, child} {
		if sum := h.total("--sandbox", string(id)); sum.Calls != 2 {
			t.Errorf("the ledger has %+v of %s", sum, id)
		}
	}
	// The usage of a removed sandbox is kept.
	h.ok("sandbox", "rm", "child")
	if sum := h.total("--sandbox", string(child)); sum.Calls != 2 {
		t.Errorf("the ledger has %+v of what is gone", sum)
	}
	h.balance()
}
