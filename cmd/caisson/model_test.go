package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

const providersYAML = `
providers:
- {name: anthropic, kind: anthropic, baseURL: https://api.anthropic.com, credential: ANTHROPIC_API_KEY}
- {name: local, kind: openai, baseURL: "http://127.0.0.1:8080/v1"}
- {name: demo, kind: scripted, script: /etc/demo.yaml}
`

func TestModelSettings(t *testing.T) {
	cfg := defaultConfig()
	if err := strictyaml.Decode([]byte(providersYAML+`
models:
- {alias: sonnet, provider: anthropic, upstream: claude-sonnet-4-5, prices: {input: 3, output: "15", cacheRead: 0.30, cacheWrite: 3.75}, context: 200000, output: 64000}
- {alias: demo, provider: demo, free: true}
- {alias: a/b:c, provider: local}
defaultBudget: none
gateway: {remoteURL: "https://gw.example/base", remoteCA: /ca.pem, remoteAPI: "https://gw.example:7443", remoteToken: GATEWAY, runTokenKeys: [RUN_KEY, "env:OLD_KEY"]}
`), cfg); err != nil {
		t.Fatal(err)
	}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	m := cfg.Models[0]
	if m.Prices == nil || m.Prices.CacheRead.String() != "0.3" || m.Prices.Output != 15*caisson.Dollar || m.Output != 64000 || cfg.Models[1].Prices != nil {
		t.Errorf("%+v", cfg.Models)
	}
	if !cfg.DefaultBudget.limits().IsZero() || cfg.Providers[0].Credential != "ANTHROPIC_API_KEY" || cfg.Gateway.RunTokenKeys[1] != "env:OLD_KEY" {
		t.Errorf("%+v", cfg)
	}
	if l := defaultConfig().DefaultBudget.limits(); l.USD == nil || *l.USD != 10*caisson.Dollar || l.Tokens != nil {
		t.Errorf("default budget %+v", l)
	}
}

func TestModelFaults(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		fields     string // of the faults, with spaces between
	}{
		{"nothing", "", ""},
		{"no name", "providers: [{kind: openai, baseURL: https://a}]", "providers[0].name"},
		{"odd name", "providers: [{name: 'A b', kind: openai, baseURL: https://a}]", "providers[0].name"},
		{"twice", "providers: [{name: a, kind: openai, baseURL: https://a}, {name: a, kind: gemini, baseURL: https://a}]", "providers[1].name"},
		{"kind", "providers: [{name: a, kind: azure, baseURL: https://a}]", "providers[0].kind"},
		{"no URL", "providers: [{name: a, kind: openai}]", "providers[0].baseURL"},
		{"clear", "providers: [{name: a, kind: openai, baseURL: http://api.example}]", "providers[0].baseURL"},
		{"clear and private", "providers: [{name: a, kind: openai, baseURL: http://10.0.0.1}]", "providers[0].baseURL"},
		{"loopback", "providers: [{name: a, kind: openai, baseURL: 'http://[::1]:1/v1'}]", ""},
		{"password", "providers: [{name: a, kind: openai, baseURL: https://u:p@a}]", "providers[0].baseURL"},
		{"query", "providers: [{name: a, kind: openai, baseURL: 'https://a?key=x'}]", "providers[0].baseURL"},
		{"escape", "providers: [{name: a, kind: openai, baseURL: 'https://a/x%2fy'}]", "providers[0].baseURL"},
		{"scheme", "providers: [{name: a, kind: openai, baseURL: 'file:///etc'}]", "providers[0].baseURL"},
		{"key for credential", "providers: [{name: a, kind: openai, baseURL: https://a, credential: 'sk ant'}]", "providers[0].credential"},
		{"account without credential", "providers: [{name: a, kind: openai, baseURL: https://a, account: x}]", "providers[0].account"},
		{"account", "providers: [{name: a, kind: openai, baseURL: https://a, credential: K, account: X}]", "providers[0].account"},
		{"script for others", "providers: [{name: a, kind: openai, baseURL: https://a, script: /x}]", "providers[0].script"},
		{"limit of others", "providers: [{name: a, kind: gemini, baseURL: https://a, maxTokensField: max_tokens}]", "providers[0].maxTokensField"},
		{"odd limit", "providers: [{name: a, kind: openai, baseURL: https://a, maxTokensField: n}]", "providers[0].maxTokensField"},
		{"relative script", "providers: [{name: a, kind: scripted, script: x}]", "providers[0].script"},
		{"scripted with URL", "providers: [{name: a, kind: scripted, script: /x, baseURL: https://a}]", "providers[0]"},
		{"model of nobody", "models: [{alias: a, provider: x}]", "models[0].provider"},
		{"alias", providersYAML + "models: [{alias: 'a b', provider: demo}, {alias: '', provider: demo}]", "models[0].alias models[1].alias"},
		{"alias twice", providersYAML + "models: [{alias: a, provider: demo}, {alias: a, provider: local}]", "models[1].alias"},
		{"upstream", providersYAML + "models: [{alias: a, provider: demo, upstream: \"a\\nb\"}]", "models[0].upstream"},
		{"free and not", providersYAML + "models: [{alias: a, provider: demo, free: true, prices: {input: 1, output: 1}}]", "models[0].free"},
		{"nothing for a price", providersYAML + "models: [{alias: a, provider: demo, prices: {}}]", "models[0].prices"},
		{"dear", providersYAML + "models: [{alias: a, provider: demo, prices: {input: 10001, output: 1}}]", "models[0].prices.input"},
		{"tokens", providersYAML + "models: [{alias: a, provider: demo, context: -1, output: 2000000000}]", "models[0].context models[0].output"},
		{"more out than in", providersYAML + "models: [{alias: a, provider: demo, context: 10, output: 11}]", "models[0].output"},
		{"listener", "gateway: {listen: '127.0.0.1:1', runTokenKeys: [K]}", ""},
		{"no keys", "gateway: {listen: '127.0.0.1:1'}", "gateway.runTokenKeys"},
		{"three keys", "gateway: {listen: '127.0.0.1:1', runTokenKeys: [A, B, C]}", "gateway.runTokenKeys"},
		{"odd keys", "gateway: {listen: '127.0.0.1:1', runTokenKeys: ['env:', 'a b']}", "gateway.runTokenKeys[0] gateway.runTokenKeys[1]"},
		{"listener without TLS", "gateway: {listen: ':1', runTokenKeys: [K]}", "gateway.listen"},
		{"listener with TLS", "gateway: {listen: ':1', tlsCert: /c, tlsKey: /k, runTokenKeys: [K]}", ""},
		{"half of TLS", "gateway: {tlsCert: /c}", "gateway.tlsCert"},
		{"relative", "gateway: {tlsCert: c, tlsKey: /k}", "gateway.tlsCert"},
		{"no port", "gateway: {listen: localhost, runTokenKeys: [K]}", "gateway.listen"},
		{"both", "gateway: {listen: '127.0.0.1:1', remoteURL: https://a, remoteAPI: https://a, remoteToken: T, runTokenKeys: [K]}", "gateway.remoteURL"},
		{"remote in the clear", "gateway: {remoteURL: http://a, remoteAPI: https://a, remoteToken: T, runTokenKeys: [K]}", "gateway.remoteURL"},
		{"remote API in the clear", "gateway: {remoteURL: https://a, remoteAPI: http://a, remoteToken: T, runTokenKeys: [K]}", "gateway.remoteAPI"},
		{"remote without its API", "gateway: {remoteURL: https://a, remoteToken: T, runTokenKeys: [K]}", "gateway.remoteAPI"},
		{"remote without a token", "gateway: {remoteURL: https://a, remoteAPI: https://a, runTokenKeys: [K]}", "gateway.remoteToken"},
		{"a token in the open", "gateway: {remoteURL: https://a, remoteAPI: https://a, remoteToken: 'caisson_ABC DEF', runTokenKeys: [K]}", "gateway.remoteToken"},
		{"authorities for nobody", "gateway: {remoteCA: /ca}", "gateway.remoteURL"},
		{"a token for nobody", "gateway: {remoteToken: T}", "gateway.remoteURL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := defaultConfig()
			if err := strictyaml.Decode([]byte(c.yaml), cfg); err != nil {
				t.Fatal(err)
			}
			var got []string
			if err := cfg.validate(); err != nil {
				for _, e := range splitErrors(err) {
					got = append(got, caisson.FieldOf(e))
				}
			}
			if strings.Join(got, " ") != c.fields {
				t.Errorf("faults in %q, want %q", got, c.fields)
			}
		})
	}
	for _, c := range []struct{ yaml, field string }{
		{"models: [{alias: a, prices: {input: -1}}]", "models[0].prices.input"},
		{"models: [{alias: a, prices: {input: NaN}}]", "models[0].prices.input"},
		{"models: [{alias: a, prices: {inpt: 1}}]", "models[0].prices.inpt"},
		{"models: [{alias: a, price: 1}]", "models[0].price"},
		{"providers: [{name: a, key: sk-x}]", "providers[0].key"},
		{"defaultBudget: -1", "defaultBudget"},
		{"defaultBudget: much", "defaultBudget"},
	} {
		if err := strictyaml.Decode([]byte(c.yaml), defaultConfig()); caisson.FieldOf(err) != c.field {
			t.Errorf("%s: %v", c.yaml, err)
		}
	}
}

func TestFetchList(t *testing.T) {
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another host was asked") }))
	defer other.Close()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/list":
			w.Write([]byte("{}"))
		case "/moved":
			http.Redirect(w, r, "/list", http.StatusFound)
		case "/elsewhere":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/downgrade":
			http.Redirect(w, r, "http://"+r.Host+"/list", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/large":
			w.Write(make([]byte, maxPriceList+1))
		default:
			http.NotFound(w, r)
		}
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // a handshake below fails
	srv.StartTLS()
	defer srv.Close()
	for path, want := range map[string]string{
		"/list": "", "/moved": "", "/elsewhere": "redirects to", "/downgrade": "redirects to", "/loop": "redirects to",
		"/large": "has more than 16MiB", "/missing": "404",
	} {
		data, err := fetchList(t.Context(), srv.Client().Transport, srv.URL+path)
		if want == "" && (err != nil || string(data) != "{}") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %.10q, %v", path, data, err)
		}
	}
	for _, u := range []string{"http://127.0.0.1/x", "file:///etc/passwd", "https://u:p@example.com/x", "https://", "ftp://a/b"} {
		if _, err := fetchList(t.Context(), srv.Client().Transport, u); caisson.FieldOf(err) != "list" {
			t.Errorf("%s: %v", u, err)
		}
	}
	if _, err := fetchList(t.Context(), http.DefaultTransport, srv.URL+"/list"); caisson.KindOf(err) != caisson.Unavailable {
		t.Errorf("a certificate of nobody's: %v", err)
	}
}
