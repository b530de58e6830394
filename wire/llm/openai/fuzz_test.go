package openai_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

// allowed lists the fields of a forwarded body. It repeats the tables of the package in order to find mistakes in them.
var allowed = map[string][]string{
	"chat": {
		"messages", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "prompt_cache_key", "store", "user", "tools", "tool_choice", "parallel_tool_calls",
		"functions", "function_call", "temperature", "top_p", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "response_format", "seed", "stop",
		"reasoning_effort", "verbosity", "top_k", "min_p", "top_a", "repetition_penalty", "reasoning", "include_reasoning", "thinking",
	},
	"responses": {
		"input", "instructions", "model", "stream", "stream_options", "max_output_tokens", "prompt_cache_key", "store", "user", "tools", "tool_choice", "parallel_tool_calls",
		"max_tool_calls", "temperature", "top_p", "top_logprobs", "text", "reasoning", "truncation", "include",
	},
	"embeddings": {"input", "model", "dimensions", "encoding_format", "user", "prompt_cache_key"},
}

// FuzzParse checks that the forwarded body is JSON with known fields and with the gateway's values, and that parsing it again
// does not change it.
func FuzzParse(f *testing.F) {
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"a","name":"b"}],"model":"x","stream":true,"max_tokens":3,"evil":1}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}},{"type":"text","text":"\ud83d\ude00"}]}],"tools":[{"type":"function","function":{"name":"f"}}],"store":true}`,
		`{"input":[{"role":"user","content":"a"},{"type":"function_call_output","output":[{"type":"input_text","text":"x"}]},{"type":"reasoning","id":"r","encrypted_content":"e"}],"stream_options":{"include_obfuscation":true},"stream":true}`,
		`{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f","parameters":{}},{"type":"custom","name":"g","format":{}}]}]}`,
		`{"input":[[1,2],"a"],"dimensions":3}`, `{"input":"a","model":null,"n":1,"user":"u","metadata":{}}`, `{ "m\u006fdel" : "a" , "messages" : [ ] }`, `{"model":"a","mod\u0065l":"b"}`, `{`, ``, `[]`, `{"messages":[{}]}`,
	} {
		for i := range 3 {
			f.Add(body, i)
		}
	}
	f.Fuzz(func(t *testing.T, body string, which int) {
		api := []string{"chat", "responses", "embeddings"}[uint(which)%3]
		r, err := parse(api, body, dialect.Allow{})
		if err != nil {
			if dialect.AsRefusal(err).Code != "invalid_request" || r != nil {
				t.Fatalf("%v", err)
			}
			return
		}
		if len(r.ServerIDs()) > 0 {
			t.Fatal("ids without a grant")
		}
		first, err := r.Encode(dialect.Target{Model: "up", User: "me", Output: 10})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(first, &got); err != nil {
			t.Fatalf("%v in %s", err, first)
		}
		for name := range got {
			if !slices.Contains(allowed[api], name) {
				t.Fatalf("%q passes in %s", name, first)
			}
		}
		if string(got["model"]) != `"up"` || string(got["user"]) != `"me"` || got["store"] != nil && string(got["store"]) != "false" {
			t.Fatalf("%s", first)
		}
		if n, bounded := r.Input(); bounded && n < int64(len(got["messages"])+len(got["input"]))-int64(strings.Count(body, `"data:`)*len(body)) {
			t.Fatalf("%d tokens for %s", n, first)
		}
		again, err := parse(api, string(first), dialect.Allow{})
		if err != nil {
			t.Fatalf("%v for %s", err, first)
		}
		second, _ := again.Encode(dialect.Target{Model: "up", User: "me", Output: 10})
		if api == "embeddings" || got["prompt_cache_key"] != nil {
			return // the key is hashed again
		}
		if string(second) != string(first) || again.Stream() != r.Stream() {
			t.Fatalf("%s\nbecame %s", first, second)
		}
	})
}

const usageLine = `data: {"id":"x","choices":[],"usage":{"prompt_tokens":30,"completion_tokens":7,"total_tokens":40,"prompt_tokens_details":{"cached_tokens":10},"completion_tokens_details":{"reasoning_tokens":3}}}`

// FuzzMeter checks that the result does not depend on how an answer is split into pieces.
func FuzzMeter(f *testing.F) {
	for _, s := range []string{
		"data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\n\n" + usageLine + "\n\ndata: [DONE]\n\n",
		usageLine + "\r\n\r\ndata: [DONE]\r\n\r\n",
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":2},\"output_tokens\":6,\"total_tokens\":11}}}\n\n",
		"data: {\"type\":\"response.output_text.delta\",\"delta\":\"hello\"}\n\n", `{"id":"r","output":[{"id":"m"}],"usage":{"input_tokens":5,"output_tokens":6}}`, `{"usage":{"prompt_tokens":-5,"completion_tokens":99999999999999999999}}`,
	} {
		for i := range 4 {
			f.Add(s, uint(1+i), i)
		}
	}
	f.Fuzz(func(t *testing.T, answer string, size uint, which int) {
		e := dialect.Endpoint{API: []string{"chat", "responses"}[uint(which)%2]}
		stream := which&2 == 0
		whole, pieces := d.Meter(e, stream), d.Meter(e, stream)
		whole.Write([]byte(answer))
		n := int(1 + size%64)
		for rest := answer; rest != ""; {
			p := rest[:min(n, len(rest))]
			if w, err := pieces.Write([]byte(p)); w != len(p) || err != nil {
				t.Fatal(w, err)
			}
			rest = rest[len(p):]
		}
		a, aok := whole.Usage()
		b, bok := pieces.Usage()
		if a != b || aok != bok || whole.OutputBytes() != pieces.OutputBytes() || whole.Done() != pieces.Done() || !slices.Equal(whole.IDs(), pieces.IDs()) {
			t.Fatalf("%+v %v %d %v, in pieces %+v %v %d %v", a, aok, whole.OutputBytes(), whole.Done(), b, bok, pieces.OutputBytes(), pieces.Done())
		}
		if a.Input < 0 || a.Output < 0 || a.CacheRead < 0 || a.CacheWrite < 0 {
			t.Fatalf("%+v", a)
		}
	})
}

func TestMeter(t *testing.T) {
	for _, c := range []struct {
		name, api, answer string
		stream            bool
		want              caisson.TokenCount
		complete, done    bool
		seen              int64
	}{
		{"chat", "chat", `{"id":"x","choices":[{"message":{"content":"{\"usage\":{\"prompt_tokens\":1}}"}}],"usage":{"prompt_tokens":30,"completion_tokens":7,"total_tokens":37,"prompt_tokens_details":{"cached_tokens":10}}}`, false, caisson.TokenCount{Input: 20, Output: 7, CacheRead: 10}, true, true, -1},
		{"reasoning beside the total", "chat", `{"usage":{"prompt_tokens":30,"completion_tokens":7,"total_tokens":137}}`, false, caisson.TokenCount{Input: 30, Output: 107}, true, true, -1},
		{"caches of LiteLLM", "chat", `{"usage":{"prompt_tokens":30,"completion_tokens":7,"total_tokens":37,"cache_creation_input_tokens":5,"cache_read_input_tokens":4}}`, false, caisson.TokenCount{Input: 21, Output: 7, CacheRead: 4, CacheWrite: 5}, true, true, -1},
		{"cut off", "chat", `{"usage":{"prompt_tokens":30,"completion_tokens":7}`, false, caisson.TokenCount{Input: 30, Output: 7}, false, false, -1},
		{"none", "chat", `{"choices":[]}`, false, caisson.TokenCount{}, false, true, -1},
		{"stream", "chat", "data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n" + usageLine + "\n\ndata: [DONE]\n\n", true, caisson.TokenCount{Input: 20, Output: 10, CacheRead: 10}, true, true, 5},
		{"stream without an end", "chat", usageLine + "\n\n", true, caisson.TokenCount{Input: 20, Output: 10, CacheRead: 10}, true, false, 0},
		{"running count", "chat", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n", true, caisson.TokenCount{Input: 3, Output: 1}, false, false, 1},
		{"tool calls", "chat", "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}}]}\n\n", true, caisson.TokenCount{}, false, false, 3},
		{"responses", "responses", "data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"usage\":null}}\n\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"abc\"}\n\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":2},\"output_tokens\":6,\"total_tokens\":11}}}\n\n", true, caisson.TokenCount{Input: 3, Output: 6, CacheRead: 2}, true, true, 3},
		{"failed", "responses", "data: {\"type\":\"response.failed\",\"response\":{\"usage\":null}}\n\n", true, caisson.TokenCount{}, false, true, 0},
		{"embeddings", "embeddings", `{"data":[{"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":8,"total_tokens":8}}`, false, caisson.TokenCount{Input: 8}, true, true, -1},
	} {
		m := d.Meter(dialect.Endpoint{API: c.api}, c.stream)
		m.Write([]byte(c.answer))
		got, complete := m.Usage()
		if got != c.want || complete != c.complete || m.Done() != c.done || c.seen >= 0 && m.OutputBytes() != c.seen {
			t.Errorf("%s: %+v, complete %v, done %v, seen %d", c.name, got, complete, m.Done(), m.OutputBytes())
		}
	}
}
