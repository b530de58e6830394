package anthropic

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/dialecttest"
)

var (
	call  = dialect.Endpoint{API: "messages", Path: "/v1/messages"}
	count = dialect.Endpoint{API: "count_tokens", Path: "/v1/messages/count_tokens", Free: true}
	all   = dialect.Allow{ProviderTools: true, RemoteURLs: true, Beta: true, ServerState: true}
)

// body returns a request with the content of these messages and further fields.
func body(content, more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"model":"claude","max_tokens":100,"messages":[{"role":"user","content":` + content + `}]` + more + `}`
}

func TestParseRefuses(t *testing.T) {
	const hi = `"hi"`
	for _, tt := range []struct {
		name, body  string
		allow       dialect.Allow
		param, word string
	}{
		{"an array", `[]`, all, "", "object"},
		{"twice", `{"model":"a","model":"b"}`, all, "model", "twice"},
		{"twice in a schema", body(hi, `"tools":[{"name":"x","input_schema":{"type":"object","type":"array"}}]`), all, "tools[0].input_schema.type", "twice"},
		{"no messages", `{"model":"a","max_tokens":1}`, all, "messages", "missing"},
		{"messages of another kind", `{"messages":"hi"}`, all, "messages", "array"},
		{"unknown field", body(hi, `"inference_geo":"us"`), all, "inference_geo", "not known"},
		{"faster mode", body(hi, `"speed":"fast"`), all, "speed", "not known"},
		{"case", body(hi, `"Stream":true`), all, "Stream", "not known"},
		{"model of another kind", `{"model":["a"],"messages":[]}`, all, "model", "string"},
		{"max_tokens 0", `{"max_tokens":0,"messages":[]}`, all, "max_tokens", "at least 1"},
		{"max_tokens 1e9", `{"max_tokens":1e9,"messages":[]}`, all, "max_tokens", "integer"},
		{"max_tokens as text", `{"max_tokens":"9","messages":[]}`, all, "max_tokens", "integer"},
		{"stream as text", body(hi, `"stream":"true"`), all, "stream", "true or false"},
		{"temperature", body(hi, `"temperature":{}`), all, "temperature", "number"},
		{"stop", body(hi, `"stop_sequences":["a",1]`), all, "stop_sequences[1]", "string"},
		{"role", `{"messages":[{"role":"tool","content":"x"}]}`, all, "messages[0].role", "user"},
		{"field of a message", `{"messages":[{"role":"user","content":"x","name":"y"}]}`, all, "messages[0].name", "not known"},
		{"unknown block", body(`[{"type":"text","text":"a"},{"type":"video","source":{}}]`, ""), all, "messages[0].content[1].type", "video"},
		{"no type", body(`[{"text":"a"}]`, ""), all, "messages[0].content[0].type", "not known"},
		{"field of a block", body(`[{"type":"text","text":"a","url":"http://x"}]`, ""), all, "messages[0].content[0].url", "not known"},
		{"text of another kind", body(`[{"type":"text","text":{"url":"x"}}]`, ""), all, "messages[0].content[0].text", "string"},
		{"image by url", body(`[{"type":"image","source":{"type":"url","url":"https://example.com/x"}}]`, ""), dialect.Allow{}, "messages[0].content[0].source.url", "remote-urls"},
		{"image by another url", body(`[{"type":"image","source":{"type":"url","url":"file:///etc/passwd"}}]`, ""), all, "messages[0].content[0].source.url", "https"},
		{"image by id", body(`[{"type":"image","source":{"type":"file","file_id":"file_1"}}]`, ""), dialect.Allow{RemoteURLs: true}, "messages[0].content[0].source.file_id", "server-state"},
		{"url beside base64", body(`[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"","url":"https://x"}}]`, ""), all, "messages[0].content[0].source.url", "not known"},
		{"document by url", body(`[{"type":"document","source":{"type":"url","url":"https://example.com/x"}}]`, ""), dialect.Allow{}, "messages[0].content[0].source.url", "remote-urls"},
		{
			"within a tool's result", body(`[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"},{"type":"image","source":{"type":"url","url":"https://x"}}]}]`, ""),
			dialect.Allow{},
			"messages[0].content[0].content[1].source.url", "remote-urls",
		},
		{
			"within a document within a tool's result", body(`[{"type":"tool_result","tool_use_id":"t","content":[{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"file","file_id":"f"}}]}}]}]`, ""),
			dialect.Allow{},
			"messages[0].content[0].content[0].source.content[0].source.file_id", "server-state",
		},
		{"upload", body(`[{"type":"container_upload","file_id":"f"}]`, ""), dialect.Allow{ProviderTools: true}, "messages[0].content[0].file_id", "server-state"},
		{"results of others", body(`[{"type":"web_search_tool_result","tool_use_id":"x","content":[]}]`, ""), dialect.Allow{}, "messages[0].content[0].type", "provider-tools"},
		{"ids in results of others", body(`[{"type":"code_execution_tool_result","tool_use_id":"x","content":{"content":[{"file_id":"f"}]}}]`, ""), dialect.Allow{ProviderTools: true}, "messages[0].content[0].content.content[0].file_id", "server-state"},
		{"ids in citations", body(`[{"type":"text","text":"x","citations":[{"type":"char_location","file_id":"f"}]}]`, ""), dialect.Allow{}, "messages[0].content[0].citations[0].file_id", "server-state"},
		{"cache for a day", body(`[{"type":"text","text":"x","cache_control":{"type":"ephemeral","ttl":"24h"}}]`, ""), all, "messages[0].content[0].cache_control.ttl", "5m or 1h"},
		{"cache of another type", body(hi, `"cache_control":{"type":"global"}`), all, "cache_control.type", "ephemeral"},
		{"system image", body(hi, `"system":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":""}}]`), all, "system[0].type", "only text"},
		{"web search", body(hi, `"tools":[{"name":"a","input_schema":{}},{"type":"web_search_20250305","name":"web_search"}]`), dialect.Allow{}, "tools[1].type", "provider-tools"},
		{"web fetch", body(hi, `"tools":[{"type":"web_fetch_20250910","name":"web_fetch"}]`), dialect.Allow{}, "tools[0].type", "provider-tools"},
		{"code", body(hi, `"tools":[{"type":"code_execution_20250825","name":"code_execution"}]`), dialect.Allow{}, "tools[0].type", "provider-tools"},
		{"mcp tools", body(hi, `"tools":[{"type":"mcp_toolset","mcp_server_name":"x"}]`), dialect.Allow{}, "tools[0].type", "provider-tools"},
		{"looks like bash", body(hi, `"tools":[{"type":"bash_code_execution_20250825","name":"x"}]`), dialect.Allow{}, "tools[0].type", "provider-tools"},
		{"looks like a date", body(hi, `"tools":[{"type":"bash_2025012x","name":"x"}]`), dialect.Allow{}, "tools[0].type", "provider-tools"},
		{"type in an escape", body(hi, `"tools":[{"\u0074ype":"web_\u0073earch_20250305","name":"x"}]`), dialect.Allow{}, "tools[0].type", "provider-tools"},
		{"tool of another kind", body(hi, `"tools":["bash"]`), all, "tools[0]", "object"},
		{"type of another kind", body(hi, `"tools":[{"type":["custom"]}]`), all, "tools[0].type", "string"},
		{"field of a tool", body(hi, `"tools":[{"name":"x","input_schema":{},"url":"https://x"}]`), all, "tools[0].url", "not known"},
		{"called by the provider", body(hi, `"tools":[{"name":"x","input_schema":{},"allowed_callers":["direct","code_execution_20250825"]}]`), dialect.Allow{}, "tools[0].allowed_callers[1]", "provider-tools"},
		{"mcp", body(hi, `"mcp_servers":[{"type":"url","url":"https://x","name":"x"}]`), dialect.Allow{ProviderTools: true}, "mcp_servers", "remote-urls"},
		{"container", body(hi, `"container":"c"`), dialect.Allow{ProviderTools: true}, "container", "server-state"},
		{"cache for others", body(hi, `"cache_control":{"type":"ephemeral","scope":"global"}`), dialect.Allow{}, "cache_control.scope", "beta"},
		{"thinking too little", body(hi, `"thinking":{"type":"enabled","budget_tokens":100}`), all, "thinking.budget_tokens", "1024"},
		{"thinking in too little", body(hi, `"thinking":{"type":"enabled","budget_tokens":2000}`), dialect.Allow{}, "max_tokens", "1024"},
		{"deep content", body(strings.Repeat(`[{"type":"tool_result","tool_use_id":"x","content":`, 20)+`"x"`+strings.Repeat(`}]`, 20), ""), all, strings.TrimSuffix("messages[0]."+strings.Repeat("content[0].", 8), ".") + ".content", "flatter"},
		{"output_config", body(hi, `"output_config":{"task_budget":{}}`), dialect.Allow{}, "output_config.task_budget", "beta"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New().Parse(call, []byte(tt.body), tt.allow)
			dialecttest.Refusal(t, err, tt.param, tt.word)
		})
	}
	_, err := New().Parse(count, []byte(body(hi, "")), all)
	dialecttest.Refusal(t, err, "max_tokens", "not known")
}

// agent is a request of a coding agent.
const agent = `{
  "model": "claude-sonnet-4-5", "max_tokens": 32000, "stream": true, "temperature": 1, "service_tier": "priority",
  "metadata": {"user_id": "someone else"}, "context_management": {"edits": [{"type": "clear_thinking_20251015"}]}, "stop_sequences": null,
  "system": [{"type":"text","text":"You are an agent.","cache_control":{"type":"ephemeral"}}],
  "thinking": {"type":"enabled","budget_tokens":31999},
  "tool_choice": {"type":"auto","disable_parallel_tool_use":true},
  "tools": [
    {"name":"Read","description":"Reads a file.","input_schema":{"type":"object","properties":{"path":{"type":"string"}}},"strict":true},
    {"type":"custom","name":"Write","input_schema":{"type":"object"}},
    {"type":"bash_20250124","name":"bash"},
    {"type":"text_editor_20250728","name":"str_replace_based_edit_tool","max_characters":10000},
    {"type":"computer_20250124","name":"computer","display_width_px":1024,"display_height_px":768}
  ],
  "messages": [
    {"role":"user","content":"What is in a.txt and b.png?"},
    {"role":"assistant","content":[
      {"type":"thinking","thinking":"I should look.","signature":"c2lnbmF0dXJl"},
      {"type":"redacted_thinking","data":"ZGF0YQ=="},
      {"type":"text","text":"I'll look."},
      {"type":"tool_use","id":"toolu_1","name":"Read","input":{"path":"a.txt"}}]},
    {"role":"user","content":[
      {"type":"tool_result","tool_use_id":"toolu_1","is_error":false,"content":[
        {"type":"text","text":"hello","cache_control":{"type":"ephemeral","ttl":"5m"}},
        {"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]},
      {"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"words"},"citations":{"enabled":true}},
      {"type":"search_result","source":"https://example.com","title":"x","content":[{"type":"text","text":"y"}]}]}
  ]
}`

func TestEncode(t *testing.T) {
	r, err := New().Parse(call, []byte(agent), dialect.Allow{})
	if err != nil {
		t.Fatal(err)
	}
	want, least := r.Output()
	if r.Model() != "claude-sonnet-4-5" || !r.Stream() || want != 32000 || least != 1025 || len(r.ServerIDs()) != 0 {
		t.Errorf("model %s stream %v output %d %d ids %v", r.Model(), r.Stream(), want, least, r.ServerIDs())
	}
	if _, bounded := r.Input(); !bounded {
		t.Error("nothing in it is unbounded")
	}
	var in map[string]any
	if err := json.Unmarshal([]byte(agent), &in); err != nil {
		t.Fatal(err)
	}
	for output, budget := range map[int64]float64{32000: 31999, 8000: 6000, 1366: 1025, 1365: 1024, 1025: 1024} {
		b, err := r.Encode(dialect.Target{Model: "upstream-model", User: "sandbox-1", Output: output})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		expect := maps.Clone(in)
		delete(expect, "stop_sequences")
		delete(expect, "context_management")
		expect["model"] = "upstream-model"
		expect["max_tokens"] = float64(output)
		expect["metadata"] = map[string]any{"user_id": "sandbox-1"}
		expect["service_tier"] = "standard_only"
		expect["thinking"] = map[string]any{"type": "enabled", "budget_tokens": budget}
		if d := cmp.Diff(expect, got); d != "" {
			t.Errorf("output %d: %s", output, d)
		}
	}
	if _, err := r.Encode(dialect.Target{Model: "m", Output: 1024}); err == nil {
		t.Error("a limit below the least is accepted")
	}
	b, err := r.Encode(dialect.Target{Model: "m", Output: 2000})
	if err != nil || strings.Contains(string(b), "metadata") || strings.Contains(string(b), "someone else") {
		t.Errorf("without a user: %v %s", err, b)
	}
}

func TestEncodeCount(t *testing.T) {
	r, err := New().Parse(count, []byte(`{"model":"a","messages":[{"role":"user","content":"x"}],"system":"s","thinking":{"type":"adaptive"}}`), dialect.Allow{})
	if err != nil {
		t.Fatal(err)
	}
	if want, least := r.Output(); want != 0 || least != 0 || r.Stream() {
		t.Error("counting has no output")
	}
	b, err := r.Encode(dialect.Target{Model: "up", User: "user", Output: 0})
	if err != nil || string(b) != `{"messages":[{"role":"user","content":"x"}],"system":"s","thinking":{"type":"adaptive"},"model":"up"}` {
		t.Errorf("%v %s", err, b)
	}
}

func TestParseGranted(t *testing.T) {
	in := body(`[
		{"type":"image","source":{"type":"url","url":"https://example.com/x.png"}},
		{"type":"document","source":{"type":"file","file_id":"file_1"}},
		{"type":"container_upload","file_id":"file_2"},
		{"type":"code_execution_tool_result","tool_use_id":"t","content":{"type":"code_execution_result","content":[{"type":"code_execution_output","file_id":"file_3"}]}},
		{"type":"server_tool_use","id":"s","name":"web_search","input":{}}]`,
		`"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":3}],"container":{"id":"container_1","skills":[{"type":"anthropic","skill_id":"pdf"},{"type":"custom","skill_id":"skill_1"}]},
		"mcp_servers":[{"type":"url","url":"https://x","name":"x"}],"context_management":{"edits":[]}`)
	r, err := New().Parse(call, []byte(in), all)
	if err != nil {
		t.Fatal(err)
	}
	if _, bounded := r.Input(); bounded {
		t.Error("what the provider's tools find cannot be bounded")
	}
	ids := slices.Sorted(slices.Values(r.ServerIDs()))
	if want := []string{"container_1", "file_1", "file_2", "file_3", "skill_1"}; !slices.Equal(ids, want) {
		t.Errorf("ids %v, want %v", ids, want)
	}
	// The budget may exceed max_tokens if the model thinks between tool calls.
	r, err = New().Parse(call, []byte(`{"max_tokens":2000,"messages":[],"thinking":{"type":"enabled","budget_tokens":9000}}`), dialect.Allow{Beta: true})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := r.Encode(dialect.Target{Model: "m", Output: 1500}); err != nil || !strings.Contains(string(b), `"budget_tokens":9000`) {
		t.Errorf("%v %s", err, b)
	}
}

func TestInput(t *testing.T) {
	text := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	for _, tt := range []struct {
		name, body string
		least      int64 // actual number of tokens, or the maximum if each byte were one
		most       int64
		bounded    bool
	}{
		{"a byte a token", body(text(strings.Repeat("\x01", 1000)), ""), 1000, 7000, true},
		{"english", body(text(strings.Repeat("the quick brown fox ", 100)), ""), 2000, 2500, true},
		{"chinese", body(text(strings.Repeat("汉字", 500)), ""), 3000, 3500, true},
		{"emoji", body(text(strings.Repeat("🧑‍🚀", 100)), ""), 1100, 1500, true},
		{"many messages", `{"messages":[` + strings.Repeat(`{"role":"user","content":""},`, 99) + `{"role":"user","content":""}]}`, 100 * 8, 4000, true},
		{"many tools", body(`""`, `"tools":[`+strings.Repeat(`{"name":"a","input_schema":{}},`, 99)+`{"name":"a","input_schema":{}}]`), 1024 + 100*64, 20000, true},
		{"escaped again", body(`""`, `"tools":[{"name":"a","input_schema":{"description":"`+strings.Repeat("é", 1000)+`"}}]`), 6000 + 1024, 8000, true},
		{"image", body(`[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"`+strings.Repeat("A", 1e6)+`"}}]`, ""), 4784, 6000, true},
		{"pdf", body(`[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"`+strings.Repeat("A", 1e6)+`"}}]`, ""), 0, 1000, false},
		{"cache for an hour", body(`[{"type":"text","text":"`+strings.Repeat("x", 10000)+`","cache_control":{"type":"ephemeral","ttl":"1h"}}]`, ""), 16000, 17000, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := New().Parse(call, []byte(tt.body), dialect.Allow{})
			if err != nil {
				t.Fatal(err)
			}
			if got, bounded := r.Input(); got < tt.least || got > tt.most || bounded != tt.bounded {
				t.Errorf("%d, %v; want %d to %d, %v", got, bounded, tt.least, tt.most, tt.bounded)
			}
		})
	}
}

func TestDuplicates(t *testing.T) {
	dialecttest.Duplicates(t, agent, func(body []byte) error {
		_, err := New().Parse(call, body, all)
		return err
	})
}

// passing are the only fields that may be forwarded.
var passing = []string{
	"model", "messages", "system", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream", "tools", "tool_choice", "thinking",
	"metadata", "cache_control", "output_config", "output_format", "service_tier", "mcp_servers", "container", "context_management",
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{agent, body(`"hi"`, ""), body(`[{"type":"image","source":{"type":"url","url":"https://x"}}]`, `"mcp_servers":[],"container":"c"`), `{"messages":[]}`, `{"messages":[],"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024}}`} {
		f.Add([]byte(s), uint8(0), int64(5000))
		f.Add([]byte(s), uint8(15), int64(1))
	}
	f.Fuzz(func(t *testing.T, in []byte, grants uint8, output int64) {
		allow := dialect.Allow{ProviderTools: grants&1 > 0, RemoteURLs: grants&2 > 0, Beta: grants&4 > 0, ServerState: grants&8 > 0}
		r, err := New().Parse(call, in, allow)
		if err != nil {
			if rf, ok := err.(*dialect.Refusal); !ok || rf.Status != http.StatusBadRequest || rf.Message == "" {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		want, least := r.Output()
		if tokens, _ := r.Input(); tokens < 0 || least < 1 || want != 0 && want < least {
			t.Fatalf("input %d, output %d, least %d", tokens, want, least)
		}
		if !allow.ServerState && len(r.ServerIDs()) > 0 {
			t.Fatalf("ids %v without the grant", r.ServerIDs())
		}
		output = max(output, least)
		out, err := r.Encode(dialect.Target{Model: "up", User: "user", Output: output})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		for name := range got {
			if !slices.Contains(passing, name) {
				t.Fatalf("%s passed", name)
			}
		}
		var m struct {
			Model     string
			MaxTokens int64 `json:"max_tokens"`
			Metadata  map[string]string
			Thinking  struct {
				Type   string
				Budget int64 `json:"budget_tokens"`
			}
		}
		_ = json.Unmarshal(out, &m) // the provider rejects fields of other kinds
		if m.Model != "up" || m.MaxTokens != output || len(m.Metadata) != 1 || m.Metadata["user_id"] != "user" {
			t.Fatalf("%+v", m)
		}
		if m.Thinking.Type == "enabled" && m.Thinking.Budget >= output && !allow.Beta {
			t.Fatalf("budget %d with a limit of %d", m.Thinking.Budget, output)
		}
		if _, err := New().Parse(call, out, allow); err != nil {
			t.Fatalf("what was encoded is refused: %v", err)
		}
	})
}

func BenchmarkParseEncode50K(b *testing.B) {
	msg := `{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"` + strings.Repeat(`func main() {\n\tfmt.Println(\"hello\")\n}\n`, 10) + `"}]}]},` +
		`{"role":"assistant","content":[{"type":"text","text":"I'll look."},{"type":"tool_use","id":"toolu_1","name":"Read","input":{"path":"a.txt"}}]},`
	tool := `{"name":"Read","description":"` + strings.Repeat("Reads a file from the disk. ", 20) + `","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}},`
	in := []byte(`{"model":"a","max_tokens":1000,"stream":true,"system":"` + strings.Repeat("You are an agent. ", 200) + `","tools":[` + strings.TrimSuffix(strings.Repeat(tool, 16), ",") +
		`],"messages":[` + strings.TrimSuffix(strings.Repeat(msg, 50), ",") + `]}`)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := New().Parse(call, in, dialect.Allow{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.Encode(dialect.Target{Model: "up", User: "user", Output: 500}); err != nil {
			b.Fatal(err)
		}
	}
}
