package test_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

// gatedScript is an answer in two pieces, of which a [gate] holds the second back.
const gatedScript = `
chunk: 24
fallback: {text: "This arrives beforehand.LATER.", tokens: {input: 20, output: 7}}
`

// A gate holds back the parts of an answer that contain LATER until it is opened.
type gate struct{ open chan struct{} }

func newGate() gate { return gate{make(chan struct{})} }

func (g gate) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&gated{w, g, r.Context()}, r)
	})
}

type gated struct {
	http.ResponseWriter
	gate gate
	ctx  context.Context
}

// Write delays data with LATER until the gate is open.
func (w *gated) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("LATER")) {
		select {
		case <-w.gate.open:
		case <-w.ctx.Done():
		}
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets [http.ResponseController] flush.
func (w *gated) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// said is a line that testdata/clients/ask.cjs writes.
type said struct {
	Piece string `json:"piece"`
	Usage int64  `json:"usage"`
	Done  bool   `json:"done"`
	Error string `json:"error"`
}

// ask starts an official client that calls a model, and returns its output as it is written. The client keeps running
// until the test ends.
func (h *modelHost) ask(sandbox, kind string) <-chan said {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*hang)
	cmd := h.command(ctx, "exec", sandbox, "--", "node", "/ask.cjs", kind, "stay")
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	lines, ended := make(chan said), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			var s said
			if err := json.Unmarshal(in.Bytes(), &s); err != nil {
				s.Error = in.Text()
			}
			select {
			case lines <- s:
			case <-ctx.Done():
				return
			}
		}
	}()
	h.t.Cleanup(func() {
		cancel()
		<-ended
		_ = cmd.Wait() // The command was killed, or ended by the sandbox.
		if h.t.Failed() {
			h.t.Logf("the client of %s: %s", kind, errs.String())
		}
	})
	return lines
}

// A providerCase is a kind of provider and the expected request.
type providerCase struct {
	kind, path, model string
	auth              string   // The header that contains the key.
	headers           []string // All allowed headers.
	user              string   // The user in the body, or its prefix.
}

func providerCases() []providerCase {
	usual := []string{"Accept", "Authorization", "Content-Length", "Content-Type", "User-Agent"}
	return []providerCase{
		{
			kind: caisson.ProviderOpenAI, path: "/v1/chat/completions", model: "gpt-test-1", auth: "Authorization",
			headers: usual, user: "caisson-",
		},
		{
			kind: caisson.ProviderAnthropic, path: "/v1/messages", model: "claude-test-1", auth: "X-Api-Key",
			headers: []string{"Anthropic-Version", "Content-Length", "Content-Type", "User-Agent", "X-Api-Key"}, user: "caisson-",
		},
		{
			kind: caisson.ProviderLiteLLM, path: "/v1/chat/completions", model: "proxied-1", auth: "Authorization",
			headers: append(slices.Clone(usual), "X-Litellm-End-User-Id", "X-Litellm-Spend-Logs-Metadata"), user: caisson.LocalAccount,
		},
	}
}

// TestPromise2StockClients tests that official clients with dummy keys get streamed answers. The requests that arrive
// at the providers have the real key and the model of the configuration, and nothing that identifies the client. The
// keys themselves exist only in the daemon, in the wire process and on their way to the provider.
func TestPromise2StockClients(t *testing.T) {
	t.Parallel()
	dir := clients(t)
	var providers []*upstream
	gates := map[string]gate{}
	for _, c := range providerCases() {
		g := newGate()
		gates[c.kind] = g
		providers = append(providers, newUpstream(t, c.kind, gatedScript, c.kind == caisson.ProviderAnthropic, g.wrap))
	}
	h := newModelHost(t, providers,
		priced("fast", "openai", "gpt-test-1"), priced("clever", "anthropic", "claude-test-1"), priced("proxied", "litellm", "proxied-1"))
	h.client("a", "--model", "fast", "--model", "clever", "--model", "proxied", "--mount", dir+":/clients")
	script, err := os.ReadFile("testdata/clients/ask.cjs")
	if err != nil {
		t.Fatal(err)
	}
	h.ok("cp", h.write("ask.cjs", string(script)), "a:/ask.cjs")
	for i, c := range providerCases() {
		h.streams(c, providers[i], gates[c.kind])
	}
	for _, row := range h.ledger() {
		if row.Status != http.StatusOK || row.Estimated || row.Tokens != (caisson.TokenCount{Input: 20, Output: 7}) || row.Cost != price.Cost(row.Tokens) || !row.Stream {
			t.Errorf("the ledger has %+v", row)
		}
	}
	var keys []string
	for _, u := range providers {
		keys = append(keys, u.key)
	}
	h.keysAreNowhere(forms(keys...))
}

// streams calls one provider and checks what each side received.
func (h *modelHost) streams(c providerCase, u *upstream, g gate) {
	h.t.Helper()
	lines := h.ask("a", c.kind)
	text, usage := "", int64(0)
	for s := range lines {
		if s.Error != "" {
			h.t.Fatalf("%s: the client says %s", c.kind, s.Error)
		}
		if s.Piece != "" && text == "" {
			// The provider has not generated the rest yet.
			if got := u.Calls(); s.Piece != "This arrives beforehand." || len(got) != 1 || got[0].Done {
				h.t.Errorf("%s: the first piece is %q, of calls %+v", c.kind, s.Piece, got)
			}
			close(g.open)
		}
		text, usage = text+s.Piece, usage+s.Usage
		if s.Done {
			break
		}
	}
	if text != "This arrives beforehand.LATER." || usage != 7 {
		h.t.Errorf("%s: the client has %q and %d tokens", c.kind, text, usage)
	}
	calls := u.Calls()
	if len(calls) != 1 {
		h.t.Fatalf("%s: %d calls arrived", c.kind, len(calls))
	}
	h.arrived(c, u, calls[0])
}

// arrived checks one request as the provider received it.
func (h *modelHost) arrived(c providerCase, u *upstream, call scriptedtest.Call) {
	h.t.Helper()
	if got := strings.TrimPrefix(call.Header.Get(c.auth), "Bearer "); got != u.key {
		h.t.Errorf("%s: the key that arrived is %q", c.kind, got)
	}
	if call.Path != c.path || !strings.HasSuffix(strings.TrimSuffix(u.url, "/v1"), "//"+call.Host) {
		h.t.Errorf("%s: the call went to %s%s", c.kind, call.Host, call.Path)
	}
	for name, values := range call.Header {
		if !slices.Contains(c.headers, name) {
			h.t.Errorf("%s: the header %s: %q arrived", c.kind, name, values)
		}
	}
	dump, err := json.Marshal(call.Header)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, word := range []string{"client-", "dummy-", "stainless", "node"} {
		if whole := strings.ToLower(string(dump) + string(call.Body)); strings.Contains(whole, word) {
			h.t.Errorf("%s: %q arrived: %s", c.kind, word, whole)
		}
	}
	var body struct {
		Model    string
		Stream   bool
		User     string
		Metadata struct {
			UserID string `json:"user_id"`
		}
	}
	if err := json.Unmarshal(call.Body, &body); err != nil || body.Model != c.model || !body.Stream || !strings.HasPrefix(body.User+body.Metadata.UserID, c.user) {
		h.t.Errorf("%s: the body that arrived is %s (%v)", c.kind, call.Body, err)
	}
	if c.kind != caisson.ProviderLiteLLM {
		return
	}
	var meta map[string]any
	err = json.Unmarshal([]byte(call.Header.Get("X-Litellm-Spend-Logs-Metadata")), &meta)
	row := h.ledger("--model", "proxied")
	if err != nil || len(row) != 1 || meta["caisson_call_id"] != string(row[0].ID) || meta["run_id"] != string(row[0].Sandbox) || call.Header.Get("X-Litellm-End-User-Id") != caisson.LocalAccount {
		h.t.Errorf("%s: the call is attributed to %v and %v, the ledger has %+v (%v)", c.kind, call.Header.Get("X-Litellm-End-User-Id"), meta, row, err)
	}
}

// keysAreNowhere searches for keys wherever they could have been left, while the clients that used them are still
// running.
func (h *modelHost) keysAreNowhere(keys [][]byte) {
	h.t.Helper()
	marker := []byte("dummy-openai-0123456789abcdef") // A control: a key that the clients have must be found.
	inside := h.dump("a")
	if size := h.wantNone("the sandbox", bytes.NewReader(inside), keys); size < 1<<20 || !bytes.Contains(inside, []byte("ask.cjs\x00openai")) {
		h.t.Errorf("the search of the sandbox saw %d bytes", size)
	}
	if n := h.wantNoneInProcesses(keys); n < 4 {
		h.t.Errorf("the search of processes saw %d", n)
	}
	snapshot := h.ok("sandbox", "snapshot", "--memory", "a")
	seen := false
	for _, file := range h.filesBelow(filepath.Join(h.data, "snapshots", snapshot)) {
		f, err := os.Open(file)
		if err != nil {
			h.t.Fatal(err)
		}
		found, _, err := search(f, [][]byte{marker})
		f.Close()
		if err != nil {
			h.t.Error(err)
		}
		seen = seen || len(found) > 0
	}
	if !seen {
		h.t.Error("the snapshot does not show even what the sandbox has in memory: the search finds nothing")
	}
	// The whole data directory: store and its log, journals, snapshots, the daemon's log.
	if size := h.wantNoneBelow(h.dir, keys); size < 20<<20 {
		h.t.Errorf("the search of %s saw %d bytes", h.dir, size)
	}
	events := h.ok("events", "--after", "0", "--for", "1s", "-o", "json")
	if h.wantNone("the events", strings.NewReader(events), keys); !strings.Contains(events, "KEY_OPENAI") {
		h.t.Errorf("the events do not say that a credential was set: %s", events)
	}
	cores, err := filepath.Glob(filepath.Join(h.dir, "core*"))
	if err != nil || len(cores) > 0 {
		h.t.Errorf("there are core files: %q, %v", cores, err)
	}
}

// dump returns the environment and arguments of every process of a sandbox, and an archive of all its files except
// those of the host and the clients.
func (h *modelHost) dump(sandbox string) []byte {
	h.t.Helper()
	const script = `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline
tar -cf - --exclude=./usr --exclude=./proc --exclude=./sys --exclude=./dev --exclude=./clients --ignore-failed-read -C / . 2>/dev/null; true`
	r := h.run("exec", sandbox, "--", "sh", "-c", script)
	if r.code != 0 {
		h.t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	return []byte(r.stdout)
}

// filesBelow lists the regular files below a directory.
func (h *host) filesBelow(dir string) (list []string) {
	h.t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != dir {
			return nil // The file was removed during the search.
		}
		if err == nil && d.Type().IsRegular() {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		h.t.Error(err)
	}
	return list
}
