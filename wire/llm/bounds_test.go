package llm_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestLimitField checks that the output is limited by the one field that the provider obeys, under whichever name the guest sets
// it.
func TestLimitField(t *testing.T) {
	for _, c := range []struct{ kind, base, set, want string }{
		{caisson.ProviderOpenAI, "https://api.openai.com/v1", "", "max_completion_tokens"},
		{caisson.ProviderOpenAI, "https://API.openai.com./v1", "", "max_completion_tokens"},
		{caisson.ProviderOpenAI, "https://x.openai.azure.com/openai/v1", "", "max_completion_tokens"},
		{caisson.ProviderOpenAI, "https://api.openai.com.example.com/v1", "", "max_tokens"},
		{caisson.ProviderOpenAI, "https://api.deepseek.com/v1", "", "max_tokens"},
		{caisson.ProviderOpenAI, "https://api.deepseek.com/v1", "max_completion_tokens", "max_completion_tokens"},
		{caisson.ProviderOpenAI, "https://api.openai.com/v1", "max_tokens", "max_tokens"},
		{caisson.ProviderLiteLLM, "https://proxy.example.com/v1", "", "max_completion_tokens"},
	} {
		m := &mock{}
		var provider string
		f := open(t, m, func(f *fixture) {
			provider = f.provider.Listener.Addr().String()
			f.config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, network, provider)
			}
		})
		base := strings.Replace(c.base, "https:", "http:", 1)
		err := f.gateway.Configure(caisson.GatewayConfig{
			Providers: []caisson.Provider{{Name: "p", Kind: c.kind, BaseURL: base, MaxTokens: c.set}}, Models: models("p"),
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, limits := range []string{"", `"max_tokens":5,`, `"max_completion_tokens":5,`, `"max_tokens":5,"max_completion_tokens":6,`} {
			if status, _, body := f.post("/v1/chat/completions", "{"+limits+hello[1:]); status != 200 {
				t.Fatal(status, body)
			}
			want := `,"` + c.want + `":5}`
			if limits == "" {
				want = `,"` + c.want + `":1000}`
			}
			if b := m.body[len(m.body)-1]; !strings.HasSuffix(b, want) || strings.Count(b, "max_") != 1 {
				t.Errorf("%s %s %s: %s; want %s", c.kind, c.base, limits, b, want)
			}
		}
	}
}

// TestEmbeddingsBound checks that the context of a model bounds each input of a call, and not the sum of all.
func TestEmbeddingsBound(t *testing.T) {
	f := open(t, &mock{})
	f.meter.limit = caisson.Dollar / 5
	inputs := strings.Repeat(`"`+strings.Repeat("a ", 500)+`",`, 500)
	status, _, body := f.post("/v1/embeddings", `{"model":"small","input":[`+inputs+`"x"]}`)
	if status != http.StatusPaymentRequired {
		t.Errorf("%d %s; want 402, as this may be 500,000 tokens", status, body)
	}
}

// TestRateBeforeParse checks that a call above the rate limit is not parsed, because parsing takes time.
func TestRateBeforeParse(t *testing.T) {
	f := open(t, &mock{})
	f.grant.Rate.Requests = 1
	large := `{"messages":` + strings.Repeat(" ", 2<<20) + `1}`
	if status, _, body := f.post("/v1/chat/completions", large); status != http.StatusBadRequest {
		t.Error(status, body)
	}
	if status, _, body := f.post("/v1/chat/completions", large); status != http.StatusTooManyRequests {
		t.Error(status, body)
	}
}
