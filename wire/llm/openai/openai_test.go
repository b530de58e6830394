package openai_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/openai"
)

var d = openai.New()

func parse(api, body string, allow dialect.Allow) (dialect.Request, error) {
	return d.Parse(dialect.Endpoint{API: api}, []byte(body), allow)
}

// sent returns the forwarded body, decoded.
func sent(t *testing.T, api, body string, allow dialect.Allow) map[string]any {
	t.Helper()
	r, err := parse(api, body, allow)
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.Encode(dialect.Target{Model: "real", User: "user-1", Output: 100})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return got
}

func TestEncode(t *testing.T) {
	for _, c := range []struct{ name, api, body, want string }{
		{
			"what is unknown is dropped", "chat",
			`{"messages":[{"role":"user","content":"a","evil":1}],"model":"x","evil":{"a":1},"metadata":{"a":"b"},"user":"evil","service_tier":"priority","prediction":{"type":"content","content":"x"},"n":1,"safety_identifier":"x","tags":["a"],"prompt_cache_retention":"24h"}`,
			`{"messages":[{"role":"user","content":"a"}],"model":"real","user":"user-1","max_completion_tokens":100}`,
		},
		{
			"what is known passes", "chat",
			`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"ok"}],"temperature":0.5,"stop":["a"],"logprobs":true,"top_logprobs":3,"seed":1,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{}}},"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}},"googleSearch":{}}],"tool_choice":"auto","max_tokens":5}`,
			`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"ok"}],"temperature":0.5,"stop":["a"],"logprobs":true,"top_logprobs":3,"seed":1,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{}}},"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto","model":"real","user":"user-1","max_completion_tokens":100}`,
		},
		{
			"streams say what they cost", "chat", `{"messages":[],"stream":true,"stream_options":{"include_usage":false,"include_obfuscation":false,"evil":1},"store":true}`,
			`{"messages":[],"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},"store":false,"model":"real","user":"user-1","max_completion_tokens":100}`,
		},
		{
			"names may be escaped", "chat", `{"mess\u0061ges":[{"role":"user","content":"a"}],"m\u006fdel":"x"}`,
			`{"messages":[{"role":"user","content":"a"}],"model":"real","user":"user-1","max_completion_tokens":100}`,
		},
		{
			"images and caches", "chat", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low","evil":1}},{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]}`,
			`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}},{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}],"model":"real","user":"user-1","max_completion_tokens":100}`,
		},
		{
			"responses are not kept", "responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"},{"id":"fc_1","type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"ok","evil":1}],"store":true,"background":false,"include":["reasoning.encrypted_content"],"max_output_tokens":7,"tools":[{"type":"function","name":"f","parameters":{}},{"type":"local_shell"}]}`,
			`{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"reasoning","summary":[],"encrypted_content":"x"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"ok"}],"include":["reasoning.encrypted_content"],"tools":[{"type":"function","name":"f","parameters":{}},{"type":"local_shell"}],"store":false,"model":"real","user":"user-1","max_output_tokens":100}`,
		},
		{
			"groups of the client's tools", "responses",
			`{"input":[{"type":"function_call","call_id":"c","name":"f","namespace":"n","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"ok"}],"tools":[{"type":"namespace","name":"n","description":"d","evil":1,"tools":[{"type":"function","name":"f","parameters":{},"evil":1},{"type":"custom","name":"g"}]}],"client_metadata":{"a":"b"}}`,
			`{"input":[{"type":"function_call","call_id":"c","name":"f","namespace":"n","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"ok"}],"tools":[{"type":"namespace","name":"n","description":"d","tools":[{"type":"function","name":"f","parameters":{}},{"type":"custom","name":"g"}]}],"store":false,"model":"real","user":"user-1","max_output_tokens":100}`,
		},
		{"embeddings", "embeddings", `{"input":["a",[1,2]],"encoding_format":"base64","evil":1}`, `{"input":["a",[1,2]],"encoding_format":"base64","model":"real","user":"user-1"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want map[string]any
			if err := json.Unmarshal([]byte(c.want), &want); err != nil {
				t.Fatal(err)
			}
			if got := sent(t, c.api, c.body, dialect.Allow{}); !reflect.DeepEqual(got, want) {
				g, _ := json.Marshal(got)
				t.Errorf("got %s\nwant %s", g, c.want)
			}
		})
	}
}

// TestWaysOut checks fields that need a grant, or are never allowed.
func TestWaysOut(t *testing.T) {
	chat := func(part string) string { return `{"messages":[{"role":"user","content":[` + part + `]}]}` }
	item := func(item string) string { return `{"input":[` + item + `]}` }
	tool := func(tool string) string { return `{"messages":[],"tools":[` + tool + `]}` }
	never := dialect.Allow{}
	tools, urls, state := dialect.Allow{ProviderTools: true}, dialect.Allow{RemoteURLs: true}, dialect.Allow{ServerState: true}
	for _, c := range []struct {
		api, body, param string
		grant            dialect.Allow // grant that allows the field; zero: none does
	}{
		{"chat", chat(`{"type":"image_url","image_url":{"url":"https://evil/?secret"}}`), "messages[0].content[0].image_url.url", urls},
		{"chat", chat(`{"image_url":"https://evil/?secret","type":"image_url"}`), "messages[0].content[0].image_url", urls},
		{"chat", chat(`{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}`), "messages[0].content[0].image_url.url", never},
		{"chat", chat(`{"type":"image_url","image_url":{"url":"gs://bucket/x"}}`), "messages[0].content[0].image_url.url", never},
		{"chat", chat(`{"type":"image_url","image_url":{"url":"data:application/pdf;base64,AAAA"}}`), "messages[0].content[0].image_url.url", never},
		{"responses", item(`{"role":"user","content":[{"type":"input_image","image_url":"data:video/mp4;base64,AAAA"}]}`), "input[0].content[0].image_url", never},
		{"chat", `{"messages":[{"role":"assistant","content":"x","thinking_blocks":[{"type":"image","source":{"type":"url","url":"https://evil/"}}]}]}`, "messages[0].thinking_blocks[0].type", never},
		{"embeddings", `{"input":"https://evil/"}`, "input", urls},
		{"embeddings", `{"input":["x","\u0067s://bucket/x"]}`, "input[1]", urls},
		{"embeddings", `{"input":" DATA:image/png;base64,AA"}`, "input", urls},
		{"embeddings", `{"input":["files/abc"]}`, "input[0]", urls},
		{"chat", chat(`{"type":"text","image_url":{"url":"https://evil/"}}`), "messages[0].content[0].image_url.url", urls},
		{"chat", chat(`{"type":"video_url","video_url":{"url":"https://evil/"}}`), "messages[0].content[0].type", never},
		{"chat", chat(`{"image_url":{"url":"data:image/png;base64,AA"}}`), "messages[0].content[0].type", never},
		{"chat", chat(`{"type":"file","file":{"file_id":"file-1"}}`), "messages[0].content[0].file.file_id", state},
		{"chat", chat(`{"type":"file","file":{"file_data":"https://evil/"}}`), "messages[0].content[0].file.file_data", urls},
		{"chat", chat(`{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}`), "messages[0].content[0].type", never},
		{"chat", `{"messages":[{"content":"x"}]}`, "messages[0].role", never},
		{"chat", `{"messages":[{"role":"assistant","audio":{"id":"a"}}]}`, "messages[0].audio", never},
		{"chat", `{"messages":[],"modalities":["text","audio"]}`, "modalities[1]", never},
		{"chat", `{"messages":[],"audio":{"voice":"x"}}`, "audio", never},
		{"chat", `{"messages":[],"web_search_options":{}}`, "web_search_options", tools},
		{"chat", tool(`{"type":"web_search"}`), "tools[0].type", tools},
		{"chat", tool(`{"type":"mcp","connector_id":"c"}`), "tools[0].type", tools},
		{"chat", tool(`{"googleSearch":{}}`), "tools[0].type", tools},
		{"chat", `{"messages":[],"n":2}`, "n", never},
		{"chat", `{"messages":[],"n":1.0}`, "n", never},
		{"chat", `{"messages":[],"max_tokens":0}`, "max_tokens", never},
		{"chat", `{"messages":[],"max_tokens":1e9}`, "max_tokens", never},
		{"chat", `{"messages":[],"stream":"yes"}`, "stream", never},
		{"chat", `{"messages":[],"api_base":"https://evil/"}`, "api_base", never},
		{"chat", `{"messages":[],"fallbacks":["gpt-5"]}`, "fallbacks", never},
		{"chat", `{"messages":[],"models":["gpt-5"]}`, "models", never},
		{"chat", `{"messages":[],"plugins":[{"id":"web"}]}`, "plugins", never},
		{"chat", `{"messages":[],"model":{}}`, "model", never},
		{"chat", `{"model":"x"}`, "messages", never},
		{"chat", `{"messages":[],"model":"a","mod\u0065l":"b"}`, "model", never},
		{"chat", "{\"messages\":[],\"stop\":\"\xff\"}", "stop", never},
		{"chat", `{"messages":[]} {}`, "", never},
		{"chat", `[]`, "", never},
		{"responses", `{"input":"x","background":true}`, "background", never},
		{"responses", `{"input":"x","conversation":"conv_1"}`, "conversation", never},
		{"responses", `{"input":"x","prompt":{"id":"pmpt_1"}}`, "prompt", never},
		{"responses", `{"input":"x","previous_response_id":"resp_1"}`, "previous_response_id", state},
		{"responses", item(`{"type":"item_reference","id":"msg_1"}`), "input[0].id", state},
		{"responses", item(`{"id":"msg_1"}`), "input[0].id", state},
		{"responses", item(`{"type":null,"id":"msg_1"}`), "input[0].id", state},
		{"responses", item(`{"role":"user","content":[{"type":"input_file","file_url":"https://evil/"}]}`), "input[0].content[0].file_url", urls},
		{"responses", item(`{"role":"user","content":[{"type":"input_image","file_id":"file-1"}]}`), "input[0].content[0].file_id", state},
		{"responses", item(`{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"https://evil/"}]}`), "input[0].output[0].image_url", urls},
		{"responses", item(`{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"https://evil/"}}`), "input[0].output.image_url", urls},
		{"responses", item(`{"type":"web_search_call","id":"ws_1"}`), "input[0].type", tools},
		{"responses", item(`{"type":"mcp_approval_response","approve":true}`), "input[0].type", tools},
		{"responses", `{"input":"x","tools":[{"type":"code_interpreter","container":{"type":"auto"}}]}`, "tools[0].type", tools},
		{"responses", `{"input":"x","tools":[{"type":"shell","environment":{"type":"container_auto"}}]}`, "tools[0].type", tools},
		{"responses", `{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"web_search"}]}]}`, "tools[0].tools[0].type", never},
		{"responses", `{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"local_shell"}]}]}`, "tools[0].tools[0].type", never},
		{"responses", `{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"namespace","name":"m","tools":[{"type":"mcp"}]}]}]}`, "tools[0].tools[0].type", never},
		{"responses", `{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":null,"server_url":"https://evil/"}]}]}`, "tools[0].tools[0].type", never},
		{"responses", `{"input":"x","tools":[{"type":"namespace","name":"n","tools":{"type":"mcp"}}]}`, "tools[0].tools", never},
		{"responses", `{"input":"x","tools":[{"type":"namespace","name":{"a":1},"tools":[]}]}`, "tools[0].name", never},
		{"embeddings", `{"input":[{"image":"https://evil/"}]}`, "input[0]", never},
		{"embeddings", `{"input":[["a"]]}`, "input[0][0]", never},
	} {
		_, err := parse(c.api, c.body, dialect.Allow{})
		r, ok := errors.AsType[*dialect.Refusal](err)
		if !ok || r.Status != http.StatusBadRequest || r.Param != c.param || r.Message == "" {
			t.Errorf("%s: %+v", c.body, err)
		}
		if _, err = parse(c.api, c.body, c.grant); (err == nil) != (c.grant != never) {
			t.Errorf("%s with %+v: %v", c.body, c.grant, err)
		}
		all := dialect.Allow{ProviderTools: true, RemoteURLs: true, ServerState: true, Beta: true}
		if _, err = parse(c.api, c.body, all); c.grant == never && err == nil {
			t.Errorf("%s passes with all grants", c.body)
		}
	}
}

// TestReferences checks that the gateway records the ids that tools of the provider refer to.
func TestReferences(t *testing.T) {
	allow := dialect.Allow{ProviderTools: true, ServerState: true}
	r, err := parse("responses", `{"input":[{"type":"code_interpreter_call","container_id":"cntr_2"}],"tools":[{"type":"file_search","vector_store_ids":["vs_1","vs_2"]},{"type":"code_interpreter","container":{"type":"auto","file_ids":["file-1"]}},{"type":"code_interpreter","container":"cntr_1"}],"previous_response_id":"resp_1"}`, allow)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"cntr_2", "vs_1", "vs_2", "file-1", "cntr_1", "resp_1"}
	if got := r.ServerIDs(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if _, bounded := r.Input(); bounded {
		t.Error("bounded")
	}
	allow.ServerState = false
	if _, err := parse("responses", `{"input":"x","tools":[{"type":"file_search","vector_store_ids":["vs_1"]}]}`, allow); err == nil {
		t.Error("a store passes without its grant")
	}
	if _, err := parse("responses", `{"input":"x","tools":[{"type":"image_generation","input_image_mask":{"image_url":"https://evil/"}}]}`, allow); err == nil {
		t.Error("a URL passes without its grant")
	}
}

func TestInput(t *testing.T) {
	big := strings.Repeat("A", 1<<20)
	for _, c := range []struct {
		api, body   string
		least, most int64
		bounded     bool
	}{
		{"chat", `{"messages":[{"role":"user","content":"hello"}]}`, 40, 700, true},
		{"chat", `{"messages":[{"role":"user","content":"` + big + `"}]}`, 1 << 20, 1<<20 + 700, true},
		{"chat", `{"evil":"` + big + `","messages":[{"role":"user","content":"x"}]}`, 40, 700, true},
		{"chat", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + big + `"}}]}]}`, 50_000, 51_000, true},
		{"chat", `{"messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"data:application/pdf;base64,AAAA"}}]}]}`, 0, 1e9, false},
		{"responses", `{"input":"x","instructions":"` + big + `"}`, 1 << 20, 1<<20 + 700, true},
		{"embeddings", `{"input":[[1,2,3],[4]]}`, 10, 700, true},
	} {
		r, err := parse(c.api, c.body, dialect.Allow{})
		if err != nil {
			t.Fatal(err)
		}
		if n, bounded := r.Input(); n < c.least || n > c.most || bounded != c.bounded {
			t.Errorf("%.80s: %d, %v", c.body, n, bounded)
		}
	}
}

func TestOutput(t *testing.T) {
	for _, c := range []struct {
		api, body   string
		want, least int64
	}{
		{"chat", `{"messages":[]}`, 0, 1},
		{"chat", `{"messages":[],"max_tokens":9,"max_completion_tokens":5}`, 5, 1},
		{"responses", `{"input":"x","max_output_tokens":50}`, 50, 16},
		{"embeddings", `{"input":"x","max_tokens":4}`, 0, 0},
	} {
		r, err := parse(c.api, c.body, dialect.Allow{})
		if err != nil {
			t.Fatal(err)
		}
		if want, least := r.Output(); want != c.want || least != c.least {
			t.Errorf("%s: %d, %d", c.body, want, least)
		}
	}
}

// TestCacheKey checks that users do not share cache keys.
func TestCacheKey(t *testing.T) {
	r, err := parse("chat", `{"messages":[],"prompt_cache_key":"k"}`, dialect.Allow{})
	if err != nil {
		t.Fatal(err)
	}
	a, _ := r.Encode(dialect.Target{Model: "m", User: "a", Output: 1})
	b, _ := r.Encode(dialect.Target{Model: "m", User: "b", Output: 1})
	again, _ := r.Encode(dialect.Target{Model: "m", User: "a", Output: 1})
	key := func(b []byte) string { _, k, _ := strings.Cut(string(b), `"prompt_cache_key":"`); return k[:32] }
	if key(a) == key(b) || key(a) != key(again) || strings.Contains(string(a), `"k"`) {
		t.Errorf("%s\n%s", a, b)
	}
}

func TestEndpoint(t *testing.T) {
	for path, want := range map[string]string{
		"POST /v1/chat/completions": "chat", "POST /chat/completions": "chat", "POST /v1/responses": "responses", "POST /embeddings": "embeddings", "GET /v1/models": "models",
		"POST /v1/v1/responses": "", "POST /v1responses": "", "GET /v1/responses": "", "POST /v1": "", "POST /v1/": "", "POST ": "", "POST /v1/completions": "", "GET /v1/models/x": "",
		"POST /V1/responses": "", "POST /v1/responses?a": "", "POST /v1/responses/": "", "GET /v1/responses/resp_1": "", "POST /v1/files": "",
	} {
		method, p, _ := strings.Cut(path, " ")
		if e, ok := d.Endpoint(method, p); e.API != want || ok != (want != "") {
			t.Errorf("%s: %+v", path, e)
		}
	}
}

func TestErrorAndList(t *testing.T) {
	w := httptest.NewRecorder()
	d.Error(w, &dialect.Refusal{Status: 429, Code: "rate_limited", Param: `a"b`, Message: "line\nbreak", Retry: 3})
	want := `{"error":{"message":"line\nbreak","type":"rate_limit_error","param":"a\"b","code":"rate_limited"}}` + "\n"
	if w.Code != 429 || w.Header().Get("Retry-After") != "3" || w.Body.String() != want {
		t.Error(w.Code, w.Header(), w.Body)
	}
	if got := string(d.List([]caisson.Model{{Alias: "a"}, {Alias: "b"}})); !json.Valid([]byte(got)) || strings.Count(got, `"object":"model"`) != 2 {
		t.Error(got)
	}
	h := d.Header(http.Header{"Openai-Beta": {"x"}, "X-Api-Key": {"y"}}, caisson.NewSecret("k"), dialect.Allow{})
	if h.Get("Authorization") != "Bearer k" || h.Get("OpenAI-Beta") != "" || h.Get("X-Api-Key") != "" {
		t.Error(h)
	}
}
