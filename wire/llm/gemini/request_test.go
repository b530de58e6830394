package gemini

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/jpeg"
	"image/png"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/dialecttest"
)

var (
	call   = dialect.Endpoint{API: "generate", Model: "flash", Path: "/v1beta/models/{model}:generateContent"}
	stream = dialect.Endpoint{API: "generate", Model: "flash", Path: "/v1beta/models/{model}:streamGenerateContent", Query: "alt=sse", Stream: true}
	count  = dialect.Endpoint{API: "count_tokens", Model: "flash", Path: "/v1beta/models/{model}:countTokens", Free: true}
	all    = dialect.Allow{ProviderTools: true, RemoteURLs: true, Beta: true, ServerState: true}
)

// part returns a request with this one part and further fields.
func part(p, more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"contents":[{"role":"user","parts":[` + p + `]}]` + more + `}`
}

func TestParseRefuses(t *testing.T) {
	const hi = `{"text":"hi"}`
	for _, tt := range []struct {
		name, body  string
		allow       dialect.Allow
		param, word string
	}{
		{"an array", `[]`, all, "", "object"},
		{"twice", `{"contents":[],"contents":[]}`, all, "contents", "twice"},
		{"twice, in an escape", part(hi, `"generationConfig":{"maxOutputTokens":1,"maxOutput\u0054okens":2}`), all, "generationConfig.maxOutputTokens", "twice"},
		{"twice, in two spellings", part(hi, `"generationConfig":{"maxOutputTokens":1,"max_output_tokens":2}`), all, "generationConfig.maxOutputTokens", "two spellings"},
		{"twice at the top", part(hi, `"systemInstruction":{},"system_instruction":{}`), all, "systemInstruction", "two spellings"},
		{"twice, once as null", part(hi, `"generationConfig":{"maxOutputTokens":null,"max_output_tokens":2}`), all, "generationConfig.maxOutputTokens", "two spellings"},
		{"no contents", `{}`, all, "contents", "missing"},
		{"contents of another kind", `{"contents":"hi"}`, all, "contents", "object"},
		{"unknown field", part(hi, `"store":true`), all, "store", "not known"},
		{"odd spelling", part(hi, `"generation__config":{}`), all, "generation__config", "not known"},
		{"another odd spelling", part(hi, `"Generation_config":{}`), all, "Generation_config", "not known"},
		{"a third odd spelling", part(hi, `"generationConfig":{"_max_output_tokens":5}`), all, "generationConfig._max_output_tokens", "not known"},
		{"limit 0", part(hi, `"generationConfig":{"maxOutputTokens":0}`), all, "generationConfig.maxOutputTokens", "at least 1"},
		{"limit as text", part(hi, `"generationConfig":{"max_output_tokens":"100"}`), all, "generationConfig.maxOutputTokens", "integer"},
		{"limit with exponent", part(hi, `"generationConfig":{"maxOutputTokens":1e3}`), all, "generationConfig.maxOutputTokens", "integer"},
		{"candidates", part(hi, `"generation_config":{"candidate_count":8}`), all, "generationConfig.candidateCount", "only one"},
		{"pictures", part(hi, `"generationConfig":{"responseModalities":["TEXT","IMAGE"]}`), all, "generationConfig.responseModalities[1]", "only TEXT"},
		{"one picture", part(hi, `"generationConfig":{"responseModalities":"IMAGE"}`), all, "generationConfig.responseModalities", "only TEXT"},
		{"speech", part(hi, `"generationConfig":{"speechConfig":{}}`), all, "generationConfig.speechConfig", "not known"},
		{"an object for a number", part(hi, `"generationConfig":{"temperature":{}}`), all, "generationConfig.temperature", "object"},
		{"cache", part(hi, `"cachedContent":"cachedContents/1"`), dialect.Allow{}, "cachedContent", "server-state"},
		{"cache, other spelling", part(hi, `"cached_content":"cachedContents/1"`), dialect.Allow{RemoteURLs: true}, "cachedContent", "server-state"},
		{"search", part(hi, `"tools":[{"functionDeclarations":[]},{"googleSearch":{}}]`), dialect.Allow{}, "tools[1].googleSearch", "provider-tools"},
		{"search, other spelling", part(hi, `"tools":[{"google_search":{}}]`), dialect.Allow{}, "tools[0].googleSearch", "provider-tools"},
		{"search, without array", part(hi, `"tools":{"google_search":{}}`), dialect.Allow{}, "tools.googleSearch", "provider-tools"},
		{"code", part(hi, `"tools":[{"codeExecution":{}}]`), dialect.Allow{}, "tools[0].codeExecution", "provider-tools"},
		{"urls", part(hi, `"tools":[{"urlContext":{}}]`), dialect.Allow{ProviderTools: true}, "tools[0].urlContext", "remote-urls"},
		{"mcp", part(hi, `"tools":[{"mcpServers":[]}]`), dialect.Allow{RemoteURLs: true}, "tools[0].mcpServers", "provider-tools"},
		{"file search", part(hi, `"tools":[{"fileSearch":{"fileSearchStoreNames":["fileSearchStores/1"]}}]`), dialect.Allow{ProviderTools: true}, "tools[0].fileSearch.fileSearchStoreNames[0]", "server-state"},
		{"unknown tool", part(hi, `"tools":[{"teleport":{}}]`), all, "tools[0].teleport", "not known"},
		{"field of a function", part(hi, `"tools":[{"functionDeclarations":[{"name":"x","url":"http://x"}]}]`), all, "tools[0].functionDeclarations[0].url", "not known"},
		{"tool config", part(hi, `"toolConfig":{"retrievalConfig":{}}`), dialect.Allow{}, "toolConfig.retrievalConfig", "provider-tools"},
		{"sound", part(`{"inlineData":{"mimeType":"audio/wav","data":"AAAA"}}`, ""), all, "contents[0].parts[0].inlineData.mimeType", "transcript"},
		{"film", part(`{"inline_data":{"data":"AAAA","mime_type":" Video/MP4"}}`, ""), all, "contents[0].parts[0].inlineData.mimeType", "transcript"},
		{"unknown part", part(`{"video":"x"}`, ""), all, "contents[0].parts[0].video", "not known"},
		{"field of contents", `{"contents":[{"role":"user","parts":[],"name":"x"}]}`, all, "contents[0].name", "not known"},
		{"text of another kind", part(`{"text":["x"]}`, ""), all, "contents[0].parts[0].text", "string"},
		{"a part without array", `{"contents":{"parts":{"file_data":{"file_uri":"https://example.com/x"}}}}`, dialect.Allow{}, "contents.parts.fileData.fileUri", "remote-urls"},
		{"url", part(`{"fileData":{"mimeType":"video/mp4","fileUri":"https://www.youtube.com/watch?v=x"}}`, ""), dialect.Allow{ServerState: true}, "contents[0].parts[0].fileData.fileUri", "remote-urls"},
		{"file", part(`{"fileData":{"fileUri":"https://generativelanguage.googleapis.com/v1beta/files/x"}}`, ""), dialect.Allow{RemoteURLs: true}, "contents[0].parts[0].fileData.fileUri", "server-state"},
		{"bucket", part(`{"fileData":{"fileUri":"gs://bucket/x"}}`, ""), dialect.Allow{RemoteURLs: true}, "contents[0].parts[0].fileData.fileUri", "server-state"},
		{"in a function's response", part(`{"functionResponse":{"name":"f","response":{},"parts":[{"fileData":{"fileUri":"https://x"}}]}}`, ""), dialect.Allow{}, "contents[0].parts[0].functionResponse.parts[0].fileData.fileUri", "remote-urls"},
		{"in the instruction", part(hi, `"systemInstruction":{"parts":[{"fileData":{"fileUri":"https://x"}}]}`), dialect.Allow{}, "systemInstruction.parts[0].fileData.fileUri", "remote-urls"},
		{"code of the provider", part(`{"executableCode":{"language":"PYTHON","code":""}}`, ""), dialect.Allow{}, "contents[0].parts[0].executableCode", "provider-tools"},
		{"data without type", part(`{"inlineData":{"data":"AAAA"}}`, ""), all, "contents[0].parts[0].inlineData", "mimeType"},
		{"data and more", part(`{"inlineData":{"mimeType":"image/png","data":"","fileUri":"https://x"}}`, ""), all, "contents[0].parts[0].inlineData.fileUri", "not known"},
		{"many fields", `{` + func() string {
			var s []string
			for i := range 100 {
				s = append(s, `"`+strings.Repeat("x", i+1)+`":null`)
			}
			return strings.Join(s, ",")
		}() + `}`, all, "", "more fields"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New().Parse(call, []byte(tt.body), tt.allow)
			dialecttest.Refusal(t, err, tt.param, tt.word)
		})
	}
	_, err := New().Parse(count, []byte(`{"generateContentRequest":{"contents":[]},"contents":[]}`), all)
	dialecttest.Refusal(t, err, "contents", "not known")
	_, err = New().Parse(count, []byte(`{"generateContentRequest":{"contents":[],"tools":[{"googleSearch":{}}]}}`), dialect.Allow{})
	dialecttest.Refusal(t, err, "generateContentRequest.tools[0].googleSearch", "provider-tools")
}

// agent is a request of a coding agent.
const agent = `{
  "model": "models/other", "serviceTier": "priority",
  "system_instruction": {"parts": [{"text": "You are an agent."}]},
  "contents": [
    {"role": "user", "parts": [{"text": "What is in a.txt?"}]},
    {"role": "model", "parts": [{"text": "I should look.", "thought": true, "thoughtSignature": "c2ln"}, {"functionCall": {"id": "1", "name": "read", "args": {"path": "a.txt"}}}]},
    {"role": "user", "parts": {"functionResponse": {"id": "1", "name": "read", "response": {"output": "hello"}}}}
  ],
  "tools": [{"function_declarations": [{"name": "read", "description": "Reads a file.", "parametersJsonSchema": {"type": "object", "properties": {"max_a": {}, "maxA": {}}}}]}],
  "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
  "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
  "generation_config": {"max_output_tokens": 9000, "temperature": 0.5, "top_p": 0.9, "candidate_count": 1, "stopSequences": ["END"], "responseModalities": ["TEXT"], "thinking_config": {"thinking_budget": 1000, "includeThoughts": true}, "seed": null}
}`

func decode(t testing.TB, b string) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(b), &m); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return m
}

func TestEncode(t *testing.T) {
	r, err := New().Parse(stream, []byte(agent), dialect.Allow{})
	if err != nil {
		t.Fatal(err)
	}
	want, least := r.Output()
	if _, bounded := r.Input(); r.Model() != "flash" || !r.Stream() || want != 9000 || least != 1 || !bounded || len(r.ServerIDs()) != 0 {
		t.Errorf("model %s stream %v output %d %d ids %v bounded %v", r.Model(), r.Stream(), want, least, r.ServerIDs(), bounded)
	}
	for _, output := range []int64{1, 500, 9000} {
		b, err := r.Encode(dialect.Target{Model: "gemini-flash", User: "user", Output: output})
		if err != nil {
			t.Fatal(err)
		}
		expect := decode(t, agent)
		expect["systemInstruction"] = expect["system_instruction"]
		expect["generationConfig"] = map[string]any{
			"maxOutputTokens": float64(output), "temperature": 0.5, "topP": 0.9, "candidateCount": 1.0, "stopSequences": []any{"END"}, "responseModalities": []any{"TEXT"},
			"thinkingConfig": map[string]any{"thinking_budget": 1000.0, "includeThoughts": true},
		}
		for _, name := range []string{"model", "serviceTier", "system_instruction", "generation_config"} {
			delete(expect, name)
		}
		if d := cmp.Diff(expect, decode(t, string(b))); d != "" {
			t.Error(d)
		}
	}
	if _, err := r.Encode(dialect.Target{Model: "m", Output: 0}); err == nil {
		t.Error("no limit is accepted")
	}
	// A request without a limit is limited too.
	r, err = New().Parse(call, []byte(part(`{"text":"x"}`, "")), dialect.Allow{})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := r.Encode(dialect.Target{Model: "m", Output: 7}); err != nil || string(b) != part(`{"text":"x"}`, `"generationConfig":{"maxOutputTokens":7}`) {
		t.Errorf("%v %s", err, b)
	}
}

func TestEncodeCount(t *testing.T) {
	want := `{"generateContentRequest":{"contents":[{"role":"user","parts":[{"text":"x"}]}],"systemInstruction":{"parts":[]},"generationConfig":{},"model":"models/up"}}`
	long := part(`{"text":"x"}`, `"system_instruction":{"parts":[]}`)
	for _, in := range []string{long, `{"generateContentRequest":` + long + `}`, `{"model":"models/a","generate_content_request":` + long + `}`} {
		r, err := New().Parse(count, []byte(in), dialect.Allow{})
		if err != nil {
			t.Fatal(err)
		}
		if want, least := r.Output(); want != 0 || least != 0 {
			t.Error("counting has no output")
		}
		if b, err := r.Encode(dialect.Target{Model: "up", Output: 0}); err != nil || string(b) != want {
			t.Errorf("%v\ngot  %s\nwant %s", err, b, want)
		}
	}
}

func TestParseGranted(t *testing.T) {
	in := part(`{"fileData":{"mimeType":"video/mp4","fileUri":"https://www.youtube.com/watch?v=x"}},{"fileData":{"fileUri":"https://generativelanguage.googleapis.com/v1beta/files/x"}},{"executableCode":{"language":"PYTHON","code":"1"}},{"codeExecutionResult":{"outcome":"OUTCOME_OK"}}`,
		`"cachedContent":"cachedContents/1","tools":[{"googleSearch":{},"urlContext":{}},{"fileSearch":{"fileSearchStoreNames":["s1","s2"]}}]`)
	r, err := New().Parse(call, []byte(in), all)
	if err != nil {
		t.Fatal(err)
	}
	if _, bounded := r.Input(); bounded {
		t.Error("this cannot be bounded")
	}
	ids := slices.Sorted(slices.Values(r.ServerIDs()))
	if want := []string{"cachedContents/1", "https://generativelanguage.googleapis.com/v1beta/files/x", "s1", "s2"}; !slices.Equal(ids, want) {
		t.Errorf("ids %v, want %v", ids, want)
	}
}

func TestInput(t *testing.T) {
	picture := func(w, h int, jpg bool) string {
		var b bytes.Buffer
		img := image.NewGray(image.Rect(0, 0, w, h))
		if jpg {
			_ = jpeg.Encode(&b, img, nil)
		} else {
			_ = png.Encode(&b, img)
		}
		return base64.StdEncoding.EncodeToString(b.Bytes())
	}
	inline := func(mime, data string) string {
		return part(`{"inline_data":{"mime_type":"`+mime+`","data":"`+data+`"}}`, "")
	}
	for _, tt := range []struct {
		name, body  string
		least, most int64
		bounded     bool
	}{
		{"english", part(`{"text":"`+strings.Repeat("the quick brown fox ", 100)+`"}`, ""), 2000, 2300, true},
		{"chinese", part(`{"text":"`+strings.Repeat("汉字", 500)+`"}`, ""), 3000, 3300, true},
		{"function", part(`{"text":""}`, `"tools":[{"functionDeclarations":[{"name":"`+strings.Repeat("é", 100)+`"}]}]`), 600 + 1024, 2000, true},
		{"small image", inline("image/png", picture(300, 300, false)), 2240, 2600, true},
		{"large image", inline("image/jpeg", picture(3000, 2000, true)), 258 * 4 * 3, 258*6*5 + 400, true},
		{"long image", inline("image/png", picture(20000, 100, false)), 258 * 79, 258*80*3 + 400, true},
		{"no image", inline("image/png", strings.Repeat("A", 10000)), 0, 400, false},
		{"image as a document", inline("application/pdf", picture(10, 10, false)), 0, 400, false},
		{"pdf", inline("application/pdf", strings.Repeat("A", 10000)), 0, 400, false},
		{"text file", inline("text/plain", strings.Repeat("A", 10000)), 10000, 10400, true},
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
		_, err := New().Parse(stream, body, all)
		return err
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{agent, part(`{"text":"x"}`, ""), part(`{"fileData":{"fileUri":"https://x"}}`, `"cached_content":"c"`), part(`{"inlineData":{"mimeType":"image/png","data":"iVBORw0KGgo="}}`, ""), `{"contents":[],"generationConfig":{"maxOutputTokens":5}}`} {
		f.Add([]byte(s), uint8(0), int64(5000))
		f.Add([]byte(s), uint8(15), int64(1))
	}
	passing := []string{"contents", "systemInstruction", "tools", "toolConfig", "safetySettings", "cachedContent", "generationConfig"}
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
		if tokens, _ := r.Input(); tokens < 0 || least != 1 || want < 0 {
			t.Fatalf("input %d, output %d, least %d", tokens, want, least)
		}
		if !allow.ServerState && len(r.ServerIDs()) > 0 {
			t.Fatalf("ids %v without the grant", r.ServerIDs())
		}
		output = max(output, 1)
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
		var config map[string]json.RawMessage
		if err := json.Unmarshal(got["generationConfig"], &config); err != nil {
			t.Fatal(err)
		}
		for name := range config {
			if strings.Contains(name, "_") || strings.EqualFold(name, "maxOutputTokens") != (name == "maxOutputTokens") {
				t.Fatalf("%s passed", name)
			}
		}
		var n int64
		if err := json.Unmarshal(config["maxOutputTokens"], &n); err != nil || n != output {
			t.Fatalf("limit %s, want %d", config["maxOutputTokens"], output)
		}
		if _, err := New().Parse(call, out, allow); err != nil {
			t.Fatalf("what was encoded is refused: %v", err)
		}
	})
}

func BenchmarkParseEncode50K(b *testing.B) {
	msg := `{"role":"user","parts":[{"functionResponse":{"name":"read","response":{"output":"` + strings.Repeat(`func main() {\n\tfmt.Println(\"hello\")\n}\n`, 10) + `"}}}]},` +
		`{"role":"model","parts":[{"text":"I'll look."},{"functionCall":{"name":"read","args":{"path":"a.txt"}}}]},`
	tool := `{"name":"read","description":"` + strings.Repeat("Reads a file from the disk. ", 20) + `","parameters":{"type":"OBJECT","properties":{"path":{"type":"STRING"}}}},`
	in := []byte(`{"systemInstruction":{"parts":[{"text":"` + strings.Repeat("You are an agent. ", 200) + `"}]},"tools":[{"functionDeclarations":[` + strings.TrimSuffix(strings.Repeat(tool, 16), ",") +
		`]}],"contents":[` + strings.TrimSuffix(strings.Repeat(msg, 54), ",") + `]}`)
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
