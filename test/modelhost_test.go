package test_test

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/npmtest"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/wire/llm/scripted"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

// URLs of models in sandboxes.
const (
	gatewayURL  = "http://llm.caisson.internal"
	chatURL     = gatewayURL + "/v1/chat/completions"
	messagesURL = gatewayURL + "/v1/messages"
)

// price is the price of the models of these tests: a dollar for a thousand tokens.
var price = caisson.Prices{Input: 1000 * caisson.Dollar, Output: 1000 * caisson.Dollar}

// An upstream is a provider that the test runs, and a record of the requests to it.
type upstream struct {
	*scriptedtest.Recorder
	name, kind string
	key        string // The credential of this provider.
	url        string
	ca         []byte // PEM; nil without TLS
	script     string // The script of a provider of kind scripted, which has no server.
}

// newUpstream serves script as a provider. wrap, unless nil, is between the recorder and the model.
func newUpstream(t testing.TB, kind, script string, secure bool, wrap func(http.Handler) http.Handler) *upstream {
	t.Helper()
	m, err := scripted.New([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler = m
	if wrap != nil {
		h = wrap(h)
	}
	u := &upstream{Recorder: scriptedtest.NewRecorder(h), name: kind, kind: kind, key: newKey()}
	srv := httptest.NewUnstartedServer(u.Recorder)
	if secure {
		srv.StartTLS()
		u.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	} else {
		srv.Start()
	}
	t.Cleanup(func() {
		srv.CloseClientConnections() // Ends responses that hang.
		srv.Close()
	})
	u.url = srv.URL
	if kind != caisson.ProviderAnthropic && kind != caisson.ProviderGemini {
		u.url += "/v1"
	}
	return u
}

// newKey returns a random key.
func newKey() string { return "sk-e2e-" + rand.Text() + rand.Text() }

func (u *upstream) credential() string { return "KEY_" + strings.ToUpper(u.name) }

// A modelHost is a host with providers and models.
type modelHost struct {
	*host
	caller string // The program that makes requests.
}

// newModelHost returns a host whose configuration has these providers, with their credentials, and models as YAML flow
// mappings.
func newModelHost(t testing.TB, providers []*upstream, models ...string) *modelHost {
	t.Helper()
	return newModelHostOn(t, "", providers, models...)
}

// newModelHostOn is newModelHost on a data directory, see newHostOn.
func newModelHostOn(t testing.TB, data string, providers []*upstream, models ...string) *modelHost {
	t.Helper()
	h := withCaller(newHostOn(t, data))
	h.configure(h.modelConfig(providers, models)...)
	for _, u := range providers {
		if u.script != "" {
			continue
		}
		if data != "" {
			h.run("credential", "rm", u.credential()) // From an earlier run.
		}
		if r := h.runWith(strings.NewReader(u.key+"\n"), "credential", "set", u.credential()); r.code != 0 {
			t.Fatal(r)
		}
	}
	return h
}

// withCaller returns a modelHost without providers.
func withCaller(on *host) *modelHost {
	on.t.Helper()
	h := &modelHost{host: on}
	binary, err := callerBinary()
	if err != nil {
		h.t.Fatal(err)
	}
	h.caller = h.write("caller", string(binary))
	if err := os.Chmod(h.caller, 0o755); err != nil {
		h.t.Fatal(err)
	}
	return h
}

// modelConfig returns the lines of a configuration.
func (h *modelHost) modelConfig(providers []*upstream, models []string) []string {
	lines := []string{"idleExit: 10m", "logLevel: debug", "providers:"}
	var ca bytes.Buffer
	for _, u := range providers {
		if u.script != "" {
			lines = append(lines, fmt.Sprintf("- {name: %s, kind: scripted, script: %q}", u.name, h.write(u.name+".script", u.script)))
			continue
		}
		lines = append(lines, fmt.Sprintf("- {name: %s, kind: %s, baseURL: %q, credential: %s}", u.name, u.kind, u.url, u.credential()))
		ca.Write(u.ca)
	}
	lines = append(lines, "models:")
	for _, m := range models {
		lines = append(lines, "- "+m)
	}
	if ca.Len() > 0 {
		lines = append(lines, fmt.Sprintf("providerCA: %q", h.write("ca.pem", ca.String())))
	}
	return lines
}

// priced returns a model in the form of the configuration, at [price].
func priced(alias, provider, upstream string) string {
	return fmt.Sprintf("{alias: %s, provider: %s, upstream: %s, context: 100000, output: 1000, prices: {input: %s, output: %s}}",
		alias, provider, upstream, price.Input, price.Output)
}

// callerBinary builds the program that makes requests inside, once for all tests.
var callerBinary = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "caller-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "caller")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./testdata/caller")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the caller: %w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// client creates a sandbox of the host's template that contains the caller, and returns its ID.
func (h *modelHost) client(name string, args ...string) caisson.ID {
	h.t.Helper()
	return h.clientOf(caisson.HostTemplate, name, args...)
}

// granted creates such a sandbox with a grant, given as YAML.
func (h *modelHost) granted(name, grant string) caisson.ID {
	h.t.Helper()
	h.ok("template", "put", h.write(name+".yaml", fmt.Sprintf("name: %s\nimage: host\nmodels: %s\n", name, grant)))
	return h.clientOf(name, name)
}

func (h *modelHost) clientOf(template, name string, args ...string) caisson.ID {
	h.t.Helper()
	id := h.ok(append(append([]string{"sandbox", "create", "--name", name}, args...), template)...)
	h.ok("cp", h.caller, name+":/caller")
	return caisson.ID(id)
}

// A request is a request for the caller, see testdata/caller.
type request struct {
	ID     string            `json:"id"`
	Method string            `json:"method,omitempty"`
	URL    string            `json:"url,omitempty"`
	Header map[string]string `json:"header,omitempty"`
	Body   string            `json:"body,omitempty"`
	Pad    int               `json:"pad,omitempty"`
	Leave  int               `json:"leave,omitempty"`
	Raw    string            `json:"raw,omitempty"`

	Address string `json:"address,omitempty"`
}

// A reply is the result of a request.
type reply struct {
	ID     string        `json:"id"`
	Status int           `json:"status"`
	Header http.Header   `json:"header"`
	Body   string        `json:"body"`
	Error  string        `json:"error"`
	Took   time.Duration `json:"took"`
}

// chat returns a call of chat completions.
func chat(id, model, text string) request {
	return request{ID: id, URL: chatURL, Body: fmt.Sprintf(`{"model":%q,"max_tokens":50,"messages":[{"role":"user","content":%q}]}`, model, text)}
}

// streamed is chat with a streamed answer.
func streamed(id, model, text string) request {
	r := chat(id, model, text)
	r.Body = strings.Replace(r.Body, "{", `{"stream":true,`, 1)
	return r
}

// many returns n copies of r.
func many(n int, r request) []request {
	list := make([]request, n)
	for i := range list {
		list[i] = r
		list[i].ID = fmt.Sprint(i)
	}
	return list
}

// calls makes all requests concurrently from inside a sandbox, and returns the results of those that ended before the
// sandbox, sorted by ID.
func (h *modelHost) calls(sandbox string, list ...request) []reply {
	h.t.Helper()
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, r := range list {
		if err := enc.Encode(r); err != nil {
			h.t.Fatal(err)
		}
	}
	r := h.runWith(&in, "exec", "-i", sandbox, "--", "/caller")
	var replies []reply
	out := bufio.NewScanner(strings.NewReader(r.stdout))
	out.Buffer(nil, 64<<20)
	for out.Scan() {
		var a reply
		if err := json.Unmarshal(out.Bytes(), &a); err != nil {
			h.t.Errorf("the caller wrote %.200q: %v", out.Text(), err)
			continue
		}
		replies = append(replies, a)
	}
	if r.code != 0 && len(replies) == 0 {
		h.t.Logf("no answer arrived: %v", r)
	}
	slices.SortFunc(replies, func(a, b reply) int { return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID)) })
	return replies
}

// call makes one request.
func (h *modelHost) call(sandbox string, r request) reply {
	h.t.Helper()
	list := h.calls(sandbox, r)
	if len(list) != 1 {
		h.t.Fatalf("request %+v has %d answers", r, len(list))
	}
	return list[0]
}

// An apiError is an error in the form of OpenAI or Anthropic.
type apiError struct {
	Type  string `json:"type"`
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
		Code    string `json:"code"`
		Param   string `json:"param"`
	} `json:"error"`
}

// refusal returns the error in a reply. The test fails if there is none.
func (h *modelHost) refusal(a reply) apiError {
	h.t.Helper()
	var e apiError
	if err := json.Unmarshal([]byte(a.Body), &e); err != nil || e.Error.Message == "" || e.Error.Type == "" ||
		!strings.HasPrefix(a.Header.Get("Content-Type"), "application/json") {
		h.t.Errorf("%s: no error of the API (%v): %d %v %.300q %s", a.ID, err, a.Status, a.Header, a.Body, a.Error)
	}
	return e
}

// wantRefusal checks that a reply is an error with a status, and with words in its message or the name of the field.
func (h *modelHost) wantRefusal(a reply, status int, words string) {
	h.t.Helper()
	if e := h.refusal(a); a.Status != status || !strings.Contains(e.Error.Message+" "+e.Error.Param, words) {
		h.t.Errorf("%s: %d %q, want %d and %q", a.ID, a.Status, e.Error.Message, status, words)
	}
}

// ledger returns the calls of the ledger.
func (h *modelHost) ledger(args ...string) []caisson.Call {
	h.t.Helper()
	return shows[[]caisson.Call](h.host, append([]string{"usage", "--calls"}, args...)...)
}

// total returns the sum of the ledger.
func (h *modelHost) total(args ...string) caisson.UsageRow {
	h.t.Helper()
	rows := shows[[]caisson.UsageRow](h.host, append([]string{"usage", "--by", "total"}, args...)...)
	if len(rows) == 0 {
		return caisson.UsageRow{}
	}
	return rows[0]
}

// clients returns a directory with the official clients of the APIs.
func clients(t testing.TB) string {
	t.Helper()
	if _, err := os.Stat("/usr/bin/node"); err != nil {
		testneed.Skip(t, "node", "the host's template shows what is in /usr, and Node is not there: "+err.Error())
	}
	return npmtest.Dir(t, "clients", npmtest.Files(t, "testdata/clients"))
}
