package scripted_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

// TestOthers checks models, embeddings, counts, and requests that providers refuse.
func TestOthers(t *testing.T) {
	url, rec := scriptedtest.Serve(t, "models: [a, b]\nkey: sk-real\nturns: [{text: hello}]\n")
	do := func(method, path, body string, header ...string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer sk-real")
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, strings.TrimSpace(string(b))
	}
	const version = "Anthropic-Version"
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		has                      string
	}{
		{"models", "GET", "/v1/models", "", nil, 200, `{"data":[{"created":1735689600,"id":"a","object":"model","owned_by":"scripted"},`},
		{"anthropic's models", "GET", "/v1/models", "", []string{version, "2023-06-01"}, 200, `"first_id":"a","has_more":false,"last_id":"b"`},
		{"wrong key", "GET", "/v1/models", "", []string{"Authorization", "Bearer sk-other"}, 401, "authentication_error"},
		{"anthropic's key", "POST", "/v1/messages", `{}`, []string{"Authorization", "", "X-Api-Key", "sk-real", version, "1"}, 400, "model: Field required"},
		{"anthropic's wrong key", "POST", "/v1/messages", `{}`, []string{"X-Api-Key", "sk-other"}, 401, "authentication_error"},
		{"unknown path", "GET", "/v1/files", "", nil, 404, "there is no GET /v1/files"},
		{"method", "GET", "/v1/chat/completions", "", nil, 404, "there is no"},
		{"content type", "POST", "/v1/embeddings", "{}", []string{"Content-Type", "text/plain"}, 415, "application/json"},
		{"no JSON", "POST", "/v1/chat/completions", "{", nil, 400, "not a JSON object"},
		{"null", "POST", "/v1/chat/completions", "null", nil, 400, "not a JSON object"},
		{"other model", "POST", "/v1/chat/completions", chatBody("c", "x"), nil, 404, "model_not_found"},
		{"unknown field", "POST", "/v1/chat/completions", `{"model":"a","mesages":[]}`, nil, 400, `"param":"mesages"`},
		{"wrong type", "POST", "/v1/chat/completions", `{"model":3}`, nil, 400, `"param":"model"`},
		{"no messages", "POST", "/v1/chat/completions", `{"model":"a"}`, nil, 400, `"param":"messages"`},
		{"n", "POST", "/v1/chat/completions", `{"n":2,` + chatBody("a", "x")[1:], nil, 400, `"param":"n"`},
		{"options without stream", "POST", "/v1/chat/completions", `{"stream_options":{},` + chatBody("a", "x")[1:], nil, 400, `"param":"stream_options"`},
		{"no tokens", "POST", "/v1/chat/completions", `{"max_tokens":0,` + chatBody("a", "x")[1:], nil, 400, `"param":"max_tokens"`},
		{"role", "POST", "/v1/chat/completions", `{"model":"a","messages":[{"role":"robot","content":"x"}]}`, nil, 400, `messages[0].role`},
		{"result without call", "POST", "/v1/chat/completions", `{"model":"a","messages":[{"role":"tool","tool_call_id":"x","content":"x"}]}`, nil, 400, "preceding message"},
		{"Gemini's key", "POST", "/v1beta/models/a:generateContent", generateBody("", "x"), []string{"Authorization", "", "X-Goog-Api-Key", "sk-real"}, 200, `"finishReason":"STOP"`},
		{"Gemini's wrong key", "POST", "/v1beta/models/a:generateContent", "{}", []string{"X-Goog-Api-Key", "sk-other"}, 401, `"status":"UNAUTHENTICATED"`},
		{"Gemini's stream", "POST", "/v1/models/a:streamGenerateContent?alt=sse", generateBody("", "x"), nil, 200, `data: {"candidates":[{"content":{"parts":[{"text":"hello"}]`},
		{"a stream that is no event", "POST", "/v1/models/a:streamGenerateContent", generateBody("", "x"), nil, 400, "alt=sse"},
		{"no contents", "POST", "/v1beta/models/a:generateContent", "{}", nil, 400, "contents is not specified"},
		{"the model begins", "POST", "/v1beta/models/a:generateContent", `{"contents":[{"role":"model","parts":[{"text":"x"}]}]}`, nil, 400, "begins with a user turn"},
		{"a function call without response", "POST", "/v1beta/models/a:generateContent", generateBody("", "x", "sh:a")[:strings.LastIndex(generateBody("", "x", "sh:a"), `,{"role":"user"`)] + "]}", nil, 400, "function response turn"},
		{"Gemini's other model", "POST", "/v1beta/models/c:generateContent", generateBody("", "x"), nil, 404, `"status":"NOT_FOUND"`},
		{
			"call without result", "POST", "/v1/chat/completions",
			`{"model":"a","messages":[{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"sh"}}]},{"role":"user","content":"x"}]}`, nil, 400, "must be followed by tool messages",
		},
		{"part without type", "POST", "/v1/chat/completions", `{"model":"a","messages":[{"role":"user","content":[{"text":"x"}]}]}`, nil, 400, "without a type"},
		{"few tokens", "POST", "/v1/responses", `{"max_output_tokens":15,` + responsesBody("a", "x")[1:], nil, 400, "at least 16"},
		{"state", "POST", "/v1/responses", `{"model":"a","previous_response_id":"resp_1","input":"x"}`, nil, 404, "previous_response_not_found"},
		{"no input", "POST", "/v1/responses", `{"model":"a"}`, nil, 400, `"param":"input"`},
		{"output without call", "POST", "/v1/responses", `{"model":"a","input":[{"type":"function_call_output","call_id":"x","output":"x"}]}`, nil, 400, "no tool call found"},
		{"call without output", "POST", "/v1/responses", `{"model":"a","input":[{"type":"function_call","call_id":"x","name":"x"}]}`, nil, 400, "no tool output found"},
		{"no version", "POST", "/v1/messages", messagesBody("a", "x"), nil, 400, "anthropic-version: header is required"},
		{
			"no max_tokens", "POST", "/v1/messages", strings.Replace(messagesBody("a", "x"), `"max_tokens":1000,`, "", 1),
			[]string{version, "1"}, 400, "max_tokens: Field required",
		},
		{"robot", "POST", "/v1/messages", `{"model":"a","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"robot","content":"x"}]}`, []string{version, "1"}, 400, "user, assistant or system"},
		{
			"system before results", "POST", "/v1/messages",
			`{"model":"a","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"n","input":{}}]},{"role":"system","content":"x"},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"x"}]}]}`,
			[]string{version, "1"}, 400, "without `tool_result` blocks",
		},
		{"assistant first", "POST", "/v1/messages", `{"model":"a","max_tokens":1,"messages":[{"role":"assistant","content":"x"}]}`, []string{version, "1"}, 400, "user role"},
		{"empty", "POST", "/v1/messages", `{"model":"a","max_tokens":1,"messages":[{"role":"user","content":""}]}`, []string{version, "1"}, 400, "must not be empty"},
		{
			"stray result", "POST", "/v1/messages", `{"model":"a","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"x"}]}]}`,
			[]string{version, "1"}, 400, "unexpected `tool_use_id`",
		},
		{"count", "POST", "/v1/messages/count_tokens", `{"model":"a","messages":[{"role":"user","content":"12345678"}]}`, []string{version, "1"}, 200, `{"input_tokens":2}`},
		{"count with a limit", "POST", "/v1/messages/count_tokens", messagesBody("a", "x"), []string{version, "1"}, 400, "not permitted"},
		{"embeddings", "POST", "/v1/embeddings", `{"model":"a","input":["x","y"],"dimensions":2}`, nil, 200, `"usage":{"prompt_tokens":2,"total_tokens":2}`},
		{"base64", "POST", "/embeddings", `{"model":"a","input":[1,2,3],"encoding_format":"base64"}`, nil, 200, `"usage":{"prompt_tokens":3,`},
		{"lists", "POST", "/embeddings", `{"model":"a","input":[[1,2,3],[4]]}`, nil, 200, `"index":1`},
		{"empty text", "POST", "/embeddings", `{"model":"a","input":["x",""]}`, nil, 400, "empty"},
		{"empty list", "POST", "/embeddings", `{"model":"a","input":[]}`, nil, 400, "elements"},
		{"dimensions", "POST", "/embeddings", `{"model":"a","input":"x","dimensions":4097}`, nil, 400, "dimensions"},
	} {
		rec.Reset()
		status, body := do(c.method, c.path, c.body, c.header...)
		if status != c.status || !strings.Contains(body, c.has) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
		if n, billed := rec.Billed(); n > 0 && !strings.Contains(c.path, "embeddings") && !strings.Contains(c.has, "STOP") && !strings.Contains(c.has, "data:") || status != 200 && billed.Total() > 0 {
			t.Errorf("%s: billed %+v", c.name, billed)
		}
	}
}
