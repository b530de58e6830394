package openai_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/openai"
)

// TestDeepAnswer checks that metering deeply nested values is as fast as metering other text; it used to take hours.
func TestDeepAnswer(t *testing.T) {
	for _, api := range []string{"chat", "responses"} {
		deep := strings.Repeat("[", 2<<20) + strings.Repeat("]", 2<<20)
		event := `{"choices":[{"delta":` + deep + `}],"delta":` + deep + `}`
		m := openai.New().Meter(dialect.Endpoint{API: api}, true)
		m.Write([]byte("data: " + event[:7<<20] + "\n\n"))
		m.Write([]byte("data: " + strings.Replace(event, deep, `"ab"`, 2) + "\n\n"))
		if m.OutputBytes() < 2 {
			t.Errorf("%s: %d bytes seen", api, m.OutputBytes())
		}
	}
}

// TestNestedWaysOut checks that only known fields of thinking blocks and functions are forwarded, and that servers need two
// grants.
func TestNestedWaysOut(t *testing.T) {
	parse := func(api, body string, allow dialect.Allow) (string, error) {
		r, err := openai.New().Parse(dialect.Endpoint{API: api}, []byte(body), allow)
		if err != nil {
			return "", err
		}
		b, err := r.Encode(dialect.Target{Model: "m", Output: 100})
		return string(b), err
	}
	b, err := parse("chat", `{"messages":[{"role":"assistant","content":"x","thinking_blocks":[{"type":"thinking","thinking":"hm","signature":"s","url":"https://evil/"}]}],
		"tools":[{"type":"function","function":{"name":"a","parameters":{"type":"object"},"cache_control":{"type":"ephemeral","ttl":"1h"}}}]}`, dialect.Allow{})
	if err != nil || strings.Contains(b, "evil") || strings.Contains(b, "ttl") || !strings.Contains(b, `"signature":"s"`) || !strings.Contains(b, `"parameters":{"type":"object"}`) {
		t.Errorf("%s %v", b, err)
	}
	mcp := `{"input":"x","tools":[{"type":"mcp","server_label":"a","server_url":"https://evil/"}]}`
	if _, err := parse("responses", mcp, dialect.Allow{ProviderTools: true}); err == nil || !strings.Contains(err.Error(), "remote-urls") {
		t.Errorf("mcp without remote-urls: %v", err)
	}
	if b, err := parse("responses", mcp, dialect.Allow{ProviderTools: true, RemoteURLs: true}); err != nil || !strings.Contains(b, "server_url") {
		t.Errorf("mcp: %s %v", b, err)
	}
}
