package test_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// malformed returns invalid requests, each with the status and a word of the message of the response. All have the
// content type of JSON.
func malformed() []struct {
	request
	status int
	words  string
} {
	type c = struct {
		request
		status int
		words  string
	}
	var list []c
	add := func(status int, words string, r request) { list = append(list, c{r, status, words}) }
	body := func(id, body string) request { return request{ID: id, URL: chatURL, Body: body} }
	const hello = `[{"role":"user","content":"Hello."}]`
	add(400, "", body("empty", ""))
	add(400, "", body("no JSON", "hello"))
	add(400, "", body("half an object", `{"model":"m","messages":`))
	add(400, "", body("two objects", `{"model":"m","messages":`+hello+`}{}`))
	add(400, "object", body("an array", `[]`))
	add(400, "messages", body("no messages", `{"model":"m"}`))
	add(400, "", body("a name twice", `{"model":"m","model":"c","messages":`+hello+`}`))
	add(400, "", body("deep", `{"model":"m","messages":`+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)+`}`))
	add(400, "", body("a byte that is no text", `{"model":"m","messages":[{"role":"user","content":"`+"\x00"+`"}]}`))
	add(400, "model", body("a model that is no name", `{"model":7,"messages":`+hello+`}`))
	add(400, "limit", body("a negative limit", `{"model":"m","max_tokens":-5,"messages":`+hello+`}`))
	add(400, "n", body("two answers", `{"model":"m","n":2,"messages":`+hello+`}`))
	add(400, "api_base", body("another place", `{"model":"m","api_base":"http://127.0.0.1:1","messages":`+hello+`}`))
	add(400, "", body("a picture by URL", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]}]}`))
	add(400, "", body("a tool of the provider", `{"model":"m","tools":[{"type":"web_search"}],"messages":`+hello+`}`))
	add(400, "web_search_options", body("a search", `{"model":"m","web_search_options":{},"messages":`+hello+`}`))
	responses := func(id, body string) request { return request{ID: id, URL: gatewayURL + "/v1/responses", Body: body} }
	add(400, "provider-tools", responses("a provider's server of tools", `{"model":"m","input":"Hello.","max_output_tokens":9,"tools":[{"type":"mcp","server_label":"x","server_url":"https://example.com"}]}`))
	add(400, "background", responses("in the background", `{"model":"m","input":"Hello.","background":true}`))
	add(400, "server-state", responses("what others said", `{"model":"m","input":"Hello.","previous_response_id":"resp_0123456789"}`))
	messages := func(id, body string) request {
		return request{ID: id, URL: messagesURL, Body: body, Header: map[string]string{"Anthropic-Version": "2023-06-01"}}
	}
	add(400, "provider-tools", messages("Anthropic's own search", `{"model":"c","max_tokens":9,"messages":`+hello+`,"tools":[{"type":"web_search_20250305","name":"web_search"}]}`))
	add(404, "no part of the APIs", request{ID: "files", URL: gatewayURL + "/v1/files", Body: "{}"})
	add(404, "no part of the APIs", request{ID: "up", URL: gatewayURL + "/v1/../v1/chat/completions", Body: chat("", "m", "Hello.").Body})
	add(404, "no part of the APIs", request{ID: "escaped", URL: gatewayURL + "/v1/chat%2Fcompletions", Body: chat("", "m", "Hello.").Body})
	add(404, "no part of the APIs", request{ID: "another method", Method: http.MethodPut, URL: chatURL, Body: chat("", "m", "Hello.").Body})
	encoded := chat("encoded", "m", "Hello.")
	encoded.Header = map[string]string{"Content-Encoding": "gzip"}
	add(415, "encoded", encoded)
	huge := chat("huge", "m", "Hello.")
	huge.Pad = 33 << 20
	add(413, "32 MiB", huge)
	upgrade := request{ID: "WebSocket", Raw: "GET /v1/responses HTTP/1.1\r\nHost: llm.caisson.internal\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"}
	add(404, "", upgrade)
	upgrade.ID, upgrade.Raw = "WebSocket at a path", strings.Replace(upgrade.Raw, "GET /v1/responses", "POST /v1/responses", 1)
	add(400, "upgrade", upgrade)
	return list
}

// TestGatewayMalformed tests that malformed requests are rejected in the form of the API and do not reach a provider.
func TestGatewayMalformed(t *testing.T) {
	t.Parallel()
	h, openai, anthropic := newGatewayHost(t)
	h.client("a", "--model", "m", "--model", "c")
	var list []request
	for _, c := range malformed() {
		list = append(list, c.request)
	}
	replies := map[string]reply{}
	for _, a := range h.calls("a", list...) {
		replies[a.ID] = a
	}
	for _, c := range malformed() {
		a := replies[c.ID]
		a.ID = c.ID
		h.wantRefusal(a, c.status, c.words)
	}
	h.wantUnspoken()
	if n := len(openai.Calls()) + len(anthropic.Calls()); n > 0 {
		t.Errorf("%d of the requests reached a provider: %+v %+v", n, openai.Calls(), anthropic.Calls())
	}
	if sum := h.total(); sum.Calls != 0 {
		t.Errorf("what was refused is in the ledger: %+v", sum)
	}
	h.oldClient()
	// Tools that the client runs are passed in both APIs.
	tool := request{ID: "tool", URL: chatURL, Body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hello."}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}`}
	if a := h.call("a", tool); a.Status != http.StatusOK {
		t.Errorf("a tool that the client runs: %d %s", a.Status, a.Body)
	}
}

// wantUnspoken sends data that is not HTTP.
func (h *modelHost) wantUnspoken() {
	h.t.Helper()
	var list []request
	for _, raw := range []string{
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("x", 100) + "\n\n", // TLS
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST /v1/chat/completions HTTP/1.1\r\n\r\n", // no host
		"POST /v1/chat/completions HTTP/1.1\r\nHost: llm.caisson.internal\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
		"POST /v1/chat/completions HTTP/1.1\r\nHost: llm.caisson.internal\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\nzz\r\n",
		"POST /v1/chat/completions HTTP/9.9\r\nHost: llm.caisson.internal\r\n\r\n",
		strings.Repeat("A", 200_000),
		"POST /v1/chat/completions HTTP/1.1\r\nHost: llm.caisson.internal\r\nX-Large: " + strings.Repeat("x", 40<<10) + "\r\n\r\n",
	} {
		list = append(list, request{ID: fmt.Sprintf("%.80q", raw), Raw: raw})
	}
	replies := h.calls("a", list...)
	if len(replies) != len(list) {
		h.t.Errorf("%d of %d have an answer", len(replies), len(list))
	}
	for _, a := range replies {
		if a.Error == "" && (a.Status < 400 || a.Status >= 600) {
			h.t.Errorf("%s is answered %d %s", a.ID, a.Status, a.Body)
		}
	}
}

// oldClient uses HTTP/1.0, which also supports complete answers.
func (h *modelHost) oldClient() {
	h.t.Helper()
	body := chat("", "m", "Hello.").Body
	a := h.call("a", request{ID: "HTTP/1.0", Raw: fmt.Sprintf("POST /v1/chat/completions HTTP/1.0\r\nHost: llm.caisson.internal\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)})
	if !json.Valid([]byte(a.Body)) || a.Status != http.StatusOK || !strings.Contains(a.Body, "You said Hello.") {
		h.t.Errorf("HTTP/1.0 is answered %d %v %s %s", a.Status, a.Header, a.Body, a.Error)
	}
}
