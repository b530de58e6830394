package llm_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm"
	"github.com/caisson-dev/caisson/wire/llm/anthropic"
	"github.com/caisson-dev/caisson/wire/llm/gemini"
	"github.com/caisson-dev/caisson/wire/llm/openai"
)

// apiCalls are the APIs, with one call of each.
var apiCalls = []struct {
	api              llm.API
	kind, path, body string
	final            int // the status that no client retries
}{
	{llm.API{Dialect: openai.New(), Kinds: []string{caisson.ProviderOpenAI}}, caisson.ProviderOpenAI, "/v1/chat/completions", hello, 400},
	{llm.API{Dialect: openai.New(), Kinds: []string{caisson.ProviderOpenAI}}, caisson.ProviderOpenAI, "/v1/responses", `{"model":"small","input":"hello"}`, 400},
	{llm.API{Dialect: anthropic.New(), Kinds: []string{caisson.ProviderAnthropic}}, caisson.ProviderAnthropic, "/v1/messages", `{"max_tokens":9,` + hello[1:], 403},
	{llm.API{Dialect: gemini.New(), Kinds: []string{caisson.ProviderGemini}}, caisson.ProviderGemini, "/v1beta/models/small:generateContent", `{"contents":[{"parts":[{"text":"hello"}]}]}`, 403},
}

// TestCredentialRefused checks that clients do not retry a call whose credential the provider rejects. The ledger records the
// name of the credential and what to do; the sandbox does not get the name.
func TestCredentialRefused(t *testing.T) {
	for _, s := range apiCalls {
		for _, c := range []struct {
			status int
			body   string
			kind   string // if set, only for this kind
		}{
			{401, `{"error":{"type":"authentication_error","message":"invalid x-api-key: ` + key + `"}}`, ""},
			{403, "<html>no\x1b[31m", ""},
			{407, "", ""},
			{400, `{"error":{"code":400,"message":"API key not valid.","details":[{"reason":"API_KEY_INVALID"}]}}`, caisson.ProviderGemini},
		} {
			if c.kind != "" && c.kind != s.kind {
				continue
			}
			t.Run(fmt.Sprint(s.path, " ", c.status), func(t *testing.T) {
				var n atomic.Int64
				f := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					n.Add(1)
					w.WriteHeader(c.status)
					io.WriteString(w, c.body)
				}), func(f *fixture) { f.config.APIs = []llm.API{s.api} })
				f.configure(t, s.kind, f.provider.URL)
				status, h, body := f.post(s.path, s.body)
				if status != s.final || n.Load() != 1 || s.kind != caisson.ProviderGemini && h.Get("X-Should-Retry") != "false" {
					t.Errorf("%d %v after %d calls: %s", status, h, n.Load(), body)
				}
				if !strings.Contains(body, `\"small\"`) || strings.Contains(body, "credential K") || strings.Contains(body, "rotate K") || strings.Contains(body, "API key") {
					t.Errorf("the sandbox is told %s", body)
				}
				row := f.row()
				want := fmt.Sprintf(`the provider refused the credential K of model "small" (%d): run "caisson credential rotate K"`, c.status)
				if !strings.HasPrefix(row.Detail, want) || strings.Contains(row.Detail, key) || strings.Contains(row.Detail, "\x1b") || row.Status != s.final || row.Cost != 0 {
					t.Errorf("%+v", row)
				}
				if c.status == 401 && !strings.HasSuffix(row.Detail, ": invalid x-api-key: [redacted]") {
					t.Errorf("what the provider says is not there: %s", row.Detail)
				}
			})
		}
	}
}

// TestCredentialMissing checks that a call without a credential is in the ledger and is not retried.
func TestCredentialMissing(t *testing.T) {
	f := open(t, &mock{})
	if err := f.gateway.Configure(caisson.GatewayConfig{
		Providers: []caisson.Provider{{Name: "p", Kind: caisson.ProviderOpenAI, BaseURL: f.provider.URL, Credential: "K"}}, Models: models("p"),
	}); err != nil {
		t.Fatal(err)
	}
	status, h, body := f.post("/v1/chat/completions", hello)
	if status != 400 || h.Get("X-Should-Retry") != "false" || strings.Contains(body, "set K") {
		t.Error(status, h, body)
	}
	if row := f.row(); row.Detail != `model "small" has no credential: run "caisson credential set K"` || row.Cost != 0 {
		t.Errorf("%+v", row)
	}
}

// TestProviderSays checks that a provider's error is in the ledger as one bounded line without secrets.
func TestProviderSays(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   string
	}{
		{"message", 529, `{"error":{"type":"overloaded_error","message":"Overloaded"}}`, `provider "p" answered 529 for model "small": Overloaded`},
		{"type", 500, `{"error":{"type":"api_error"}}`, `provider "p" answered 500 for model "small": api_error`},
		{"string", 404, `{"error":"no such\nmodel"}`, `provider "p" answered 404 for model "small": no such model`},
		{"detail", 422, `{"detail":"bad"}`, `provider "p" answered 422 for model "small": bad`},
		{"plain", 500, "upstream connect error\r\n", `provider "p" answered 500 for model "small": upstream connect error`},
		{"nothing", 404, "", `provider "p" answered 404 for model "small"`},
		{"escaped key", 400, `{"error":{"message":"\u0073` + key[1:] + `"}}`, `provider "p" answered 400 for model "small": [redacted]`},
		{"another's key", 400, `{"error":{"message":"sk-ant-` + strings.Repeat("Ab3", 10) + `"}}`, `provider "p" answered 400 for model "small": [redacted]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			}))
			f.post("/v1/chat/completions", hello)
			if row := f.row(); row.Detail != c.want {
				t.Errorf("%q, want %q", row.Detail, c.want)
			}
		})
	}
	f := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(400)
		fmt.Fprintf(w, `{"error":{"message":%q}}`, strings.Repeat("é ", 1000))
	}))
	f.post("/v1/chat/completions", hello)
	if row := f.row(); len(row.Detail) > 512 || len(row.Detail) < 200 {
		t.Errorf("%d bytes: %s", len(row.Detail), row.Detail)
	}
}

// TestUnreachableWhy checks that the ledger records the host that could not be reached and the reason, and that the sandbox gets
// neither.
func TestUnreachableWhy(t *testing.T) {
	tls := httptest.NewTLSServer(&mock{})
	defer tls.Close()
	plain := httptest.NewServer(&mock{})
	defer plain.Close()
	closed := serve(t, func(net.Conn) {})
	fails := func(err error) func(context.Context, string, string) (net.Conn, error) {
		return func(context.Context, string, string) (net.Conn, error) { return nil, err }
	}
	for _, c := range []struct {
		name, base, host, want string
		dial                   func(context.Context, string, string) (net.Conn, error)
	}{
		{"refused", "http://127.0.0.2:1", "127.0.0.2:1", "connection refused", nil},
		{"no name", "https://api.example", "api.example", "its name cannot be resolved", fails(&net.DNSError{Err: "no such host", Name: "api.example"})},
		{"no address", "https://api.example", "api.example", "its name cannot be resolved: it has no address", fails(caisson.Errorf(caisson.NotFound, "it has no address"))},
		{"slow", "https://api.example", "api.example", "timed out", fails(fmt.Errorf("dial: %w", context.DeadlineExceeded))},
		{"certificate", tls.URL, tls.Listener.Addr().String(), "its TLS certificate is not valid", nil},
		{"no TLS", strings.Replace(plain.URL, "http:", "https:", 1), plain.Listener.Addr().String(), "TLS failed", nil},
		{"closed", "http://" + closed, closed, "broke the connection", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t, &mock{}, func(f *fixture) {
				f.config.Roots = x509.NewCertPool()
				if c.dial != nil {
					f.config.Dial = c.dial
				}
			})
			f.configure(t, caisson.ProviderOpenAI, c.base)
			status, _, body := f.post("/v1/chat/completions", hello)
			if row := f.row(); status != 502 || !strings.Contains(row.Detail, c.host) || !strings.Contains(row.Detail, c.want) || !strings.Contains(row.Detail, `"small"`) {
				t.Errorf("%d: %q", status, row.Detail)
			}
			if strings.Contains(body, c.host) || strings.Contains(body, c.want) {
				t.Errorf("the sandbox is told %s", body)
			}
		})
	}
}

// TestUngrantedIsUnknown checks that the existence of a model that is not granted affects neither what a sandbox or the provider
// receives nor the ledger.
func TestUngrantedIsUnknown(t *testing.T) {
	for _, s := range apiCalls {
		for _, grant := range [][]string{{"small"}, {"unpriced"}, {"gone"}, {}} {
			t.Run(fmt.Sprint(s.path, " ", grant), func(t *testing.T) {
				type seen struct {
					status                  int
					header, body, sent, row string
				}
				ask := func(model string) (v seen) {
					f := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						b, _ := io.ReadAll(r.Body)
						v.sent = r.URL.Path + string(b)
						io.WriteString(w, `{"usage":{"prompt_tokens":30,"completion_tokens":7,"input_tokens":30,"output_tokens":7},"usageMetadata":{"promptTokenCount":30,"candidatesTokenCount":7}}`)
					}), func(f *fixture) { f.config.APIs, f.grant.Models = []llm.API{s.api}, grant })
					f.configure(t, s.kind, f.provider.URL)
					var h http.Header
					v.status, h, v.body = f.post(strings.Replace(s.path, "small", model, 1), strings.Replace(s.body, "small", model, 1))
					h.Del("Date")
					h.Del("X-Caisson-Call-Id")
					v.header = fmt.Sprint(h)
					for _, row := range f.meter.rows() {
						v.row += fmt.Sprintln(row.Model, row.Upstream, row.Status, row.Error, row.Tokens, row.Cost, row.Detail)
					}
					return v
				}
				// The names have the same length, because the length counts.
				there, not := ask("other"), ask("blank")
				if there != not {
					t.Errorf("of one that is there: %+v\nof one that is not: %+v", there, not)
				}
				if answered := slices.Equal(grant, []string{"small"}); answered != (there.status == 200) || answered != strings.HasPrefix(there.row, "small gpt-real-name 200") {
					t.Errorf("%+v", there)
				}
			})
		}
	}
}
