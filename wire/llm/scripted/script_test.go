package scripted

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestScriptFaults(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"nothing", "", "turns: there are none"},
		{"unknown key", "turn: []", "turn: unknown key"},
		{"unknown key deep", "turns: [{when: {lst: x}}]", "turns[0].when.lst: unknown key"},
		{"not YAML", "turns: [", "not valid YAML"},
		{"api", "turns: [{when: {api: gemini}}]", `turns[0].when.api: "gemini" is not one of`},
		{"pattern", "turns: [{when: {pattern: '('}}]", "turns[0].when.pattern: missing closing )"},
		{"long pattern", "turns: [{when: {resultPattern: '" + strings.Repeat("x", 1001) + "'}}]", "turns[0].when.resultPattern: has more than"},
		{"once and times", "turns: [{once: true, times: 2}]", "turns[0].once:"},
		{"negative times", "turns: [{times: -1}]", "turns[0].times:"},
		{"long text", "turns: [{text: '" + strings.Repeat("x", maxText+1) + "'}]", "turns[0].text: has more than 64KiB"},
		{"placeholders", "turns: [{text: '" + strings.Repeat("{{last}}", 17) + "'}]", "turns[0].text: has more than 16"},
		{"tool name", "turns: [{calls: [{arguments: '{}'}]}]", "turns[0].calls[0].name:"},
		{"arguments", "turns: [{calls: [{name: a, arguments: '[]'}]}]", "turns[0].calls[0].arguments:"},
		{"null arguments", "turns: [{calls: [{name: a, arguments: 'null'}]}]", "turns[0].calls[0].arguments:"},
		{"calls", "turns: [{calls: [" + strings.Repeat("{name: a},", 33) + "]}]", "turns[0].calls: there are more"},
		{"finish", "turns: [{finish: late}]", "turns[0].finish:"},
		{"tokens", "turns: [{tokens: {input: -1, cacheRead: 2000000000}}]", "turns[0].tokens.cacheRead:"},
		{"delay", "turns: [{delay: {first: 11m}}]", "turns[0].delay.first: 11m"},
		{"default delay", "turns: [{text: x}]\ndelay: {chunk: 1h}", "delay.chunk:"},
		{"chunk", "turns: [{text: x}]\nchunk: 0", "chunk: 0 is not from 1"},
		{"dimensions", "turns: [{text: x}]\ndimensions: 5000", "dimensions:"},
		{"break", "turns: [{break: {how: explode, after: -1}}]", "turns[0].break.how:"},
		{"status", "turns: [{error: {status: 200}}]", "turns[0].error.status: 200"},
		{"no status", "turns: [{error: {message: x}}]", "turns[0].error.status: 0"},
		{"message and body", "turns: [{error: {status: 500, message: x, body: y}}]", "turns[0].error: has a message"},
		{"error and text", "turns: [{error: {status: 500}, text: x}]", "turns[0].error: is instead"},
		{"model name", "turns: [{text: x}]\nmodels: ['']", "models[0]:"},
		{"fallback with when", "fallback: {when: {last: x}, text: x}", "fallback: must not have when"},
		{"many turns", "turns: [" + strings.Repeat("{},", 1001) + "]", "turns: there are 1001"},
		{"large", strings.Repeat("#", maxScript+1), "at most 1MiB"},
		{"two faults", "turns: [{times: -1}, {finish: x}]", "turns[1].finish:"},
	} {
		m, err := New([]byte(c.script))
		if m != nil || caisson.KindOf(err) != caisson.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestPieces(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{
		{"", 3, ""},
		{"abcdefg", 3, "abc|def|g"},
		{"äöü", 3, "ä|ö|ü"},
		{"世界", 1, "世|界"},
		{"a世b", 4, "a世|b"},
		{"\xff\xfe\x80", 1, "\xff|\xfe|\x80"},
	} {
		if got := strings.Join(pieces(c.s, c.n), "|"); got != c.want {
			t.Errorf("pieces(%q, %d) = %q", c.s, c.n, got)
		}
	}
}

// FuzzNew checks that an accepted script is within the limits and answers.
func FuzzNew(f *testing.F) {
	f.Add(Default)
	f.Add("turns: [{when: {pattern: x*, model: a*}, text: '{{last}}', calls: [{name: a}], tokens: {output: 3}}]\nfallback: {text: y}")
	f.Add("turns: [{once: true, error: {status: 500}}]")
	f.Add("fallback: {text: x, break: {how: error, after: 3}}")
	f.Fuzz(func(t *testing.T, yaml string) {
		m, err := New([]byte(yaml))
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid {
				t.Fatal(err)
			}
			return
		}
		m.script.Delay, m.script.Key = delay{}, caisson.Secret{}
		for i := range m.script.Turns {
			m.script.Turns[i].Delay, m.script.Turns[i].Break = nil, nil
		}
		if fb := m.script.Fallback; fb != nil {
			fb.Delay, fb.Break = nil, nil
		}
		try(t, m, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
	})
}

// FuzzRequest checks that every body gets a well-formed answer.
func FuzzRequest(f *testing.F) {
	for _, api := range []string{"chat/completions", "responses", "messages", "messages/count_tokens", "embeddings"} {
		f.Add(api, `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"hello"}]}`)
		f.Add(api, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"a"}]},`+
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"x"}]}]}]}`)
		f.Add(api, `{"model":"m","input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"1","name":"a"},{"type":"function_call_output","call_id":"1","output":"x"}]}`)
		f.Add(api, `{"model":"m","input":[[1,2]],"dimensions":3}`)
		f.Add(api, `{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"a"}}]},{"role":"tool","tool_call_id":"1","content":"x"}],"tools":[{"function":{"name":"a"}}]}`)
	}
	m, err := New([]byte("turns: [{when: {result: x}, text: '{{result}}'}, {calls: [{name: a}]}]\nfallback: {text: '{{last}}'}"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, api, body string) {
		if strings.ContainsFunc(api, func(r rune) bool { return r <= ' ' || r > '~' || r == '%' || r == '#' || r == '?' }) {
			return
		}
		try(t, m, "/v1/"+api, body)
	})
}

func try(t *testing.T, m *Model, path, body string) {
	r := httptest.NewRequest(http.MethodPost, "http://x/", strings.NewReader(body))
	r.URL.Path = path
	r.Header.Set("Content-Type", "application/json")
	if strings.Contains(path, "messages") {
		r.Header.Set("Anthropic-Version", "2023-06-01")
	}
	billed := 0
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r.WithContext(WithBill(r.Context(), func(c caisson.TokenCount) {
		billed++
		if c.Input < 0 || c.Output < 0 {
			t.Errorf("billed %+v", c)
		}
	})))
	stream := strings.HasPrefix(w.Header().Get("Content-Type"), "text/")
	if !stream && !json.Valid(w.Body.Bytes()) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if billed > 1 || billed == 1 && w.Code != http.StatusOK {
		t.Errorf("billed %d times with status %d", billed, w.Code)
	}
	if stream && w.Code == http.StatusOK && !bytes.HasSuffix(w.Body.Bytes(), []byte("\n\n")) {
		t.Errorf("a stream that ends with %q", w.Body.Bytes()[max(0, w.Body.Len()-20):])
	}
}
