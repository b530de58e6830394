package coder

import (
	"encoding/json"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	llmanthropic "github.com/caisson-dev/caisson/wire/llm/anthropic"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	llmgemini "github.com/caisson-dev/caisson/wire/llm/gemini"
)

// speaking configures the API with which the agent calls its model.
func speaking(api string) func(*config) { return func(c *config) { c.api = api } }

// body returns the body of the n-th request.
func (s *broken) body(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.bodies[n])
}

// startOf and the functions below return events of Anthropic's API.
func startOf(index int, block string) string {
	return `{"type":"content_block_start","index":` + strconv.Itoa(index) + `,"content_block":` + block + `}`
}

func deltaOf(index int, delta string) string {
	return `{"type":"content_block_delta","index":` + strconv.Itoa(index) + `,"delta":` + delta + `}`
}

func stopOf(reason string) string {
	return `{"type":"message_delta","delta":{"stop_reason":"` + reason + `"},"usage":{"output_tokens":7}}`
}

const messageStart = `{"type":"message_start","message":{"role":"assistant","content":[],"usage":{"input_tokens":3,"cache_read_input_tokens":20,"cache_creation_input_tokens":100,"output_tokens":1}}}`

// geminiOf returns an event of Gemini's API.
func geminiOf(parts, more string) string {
	return `{"candidates":[{"content":{"role":"model","parts":[` + parts + `]}` + more + `}],"usageMetadata":{"promptTokenCount":30,"cachedContentTokenCount":20,"candidatesTokenCount":4,"thoughtsTokenCount":3}}`
}

// sentences are, for each API, a whole answer with that text.
var sentences = map[string]func(text string) func(net.Conn){
	caisson.APIAnthropic: func(text string) func(net.Conn) {
		return answerOf(messageStart, startOf(0, `{"type":"text","text":""}`), deltaOf(0, `{"type":"text_delta","text":"`+text+`"}`), `{"type":"content_block_stop","index":0}`,
			stopOf("end_turn"), `{"type":"message_stop"}`)
	},
	caisson.APIGemini: func(text string) func(net.Conn) {
		return answerOf(geminiOf(`{"text":"`+text+`"}`, ""), geminiOf(`{"text":""}`, `,"finishReason":"STOP"`))
	},
}

// TestAnswersOfOtherAPIs: how each answer is interpreted, and how the next request repeats it.
func TestAnswersOfOtherAPIs(t *testing.T) {
	const list = `"name":"list"`
	for _, row := range []struct {
		name, api string
		events    []string
		text      string // before the last answer, which is "fine"
		next      []string
		usage     string // of the first answer
	}{
		{
			"call in pieces", caisson.APIAnthropic,
			[]string{
				messageStart, `{"type":"ping"}`, startOf(0, `{"type":"text","text":"I "}`), deltaOf(0, `{"type":"text_delta","text":"look."}`), `{"type":"content_block_stop","index":0}`,
				startOf(1, `{"type":"tool_use","id":"toolu_1",`+list+`,"input":{}}`), deltaOf(1, `{"type":"input_json_delta","partial_json":"{\"dep"}`), deltaOf(1, `{"type":"input_json_delta","partial_json":"th\":1}"}`),
				startOf(2, `{"type":"tool_use","id":"toolu_2",`+list+`,"input":{"depth":2}}`), stopOf("tool_use"), `{"type":"message_stop"}`,
			},
			"I look.",
			[]string{
				`{"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"toolu_1","name":"list","input":{"depth":1}},{"type":"tool_use","id":"toolu_2","name":"list","input":{"depth":2}}]}`,
				`{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":`, `{"type":"tool_result","tool_use_id":"toolu_2","content":`, `"cache_control":{"type":"ephemeral"}}]}]`,
			},
			`"input":3,"output":7,"cacheRead":20,"cacheWrite":100`,
		},
		{
			"thoughts", caisson.APIAnthropic,
			[]string{
				messageStart, startOf(0, `{"type":"thinking","thinking":"","signature":""}`), deltaOf(0, `{"type":"thinking_delta","thinking":"Hm."}`), deltaOf(0, `{"type":"signature_delta","signature":"c2ln"}`),
				startOf(1, `{"type":"redacted_thinking","data":"eHl6"}`), startOf(2, `{"type":"thinking","thinking":"","signature":"b21pdHRlZA=="}`), startOf(3, `{"type":"thinking","thinking":"cut"}`),
				startOf(4, `{"type":"tool_use","id":"a",`+list+`}`), stopOf("tool_use"), `{"type":"message_stop"}`,
			},
			"",
			[]string{`"content":[{"type":"thinking","thinking":"Hm.","signature":"c2ln"},{"type":"redacted_thinking","data":"eHl6"},{"type":"thinking","thinking":"","signature":"b21pdHRlZA=="},{"type":"tool_use","id":"a","name":"list","input":{}}]`},
			"",
		},
		{
			"no event", caisson.APIAnthropic, nil, "",
			[]string{`{"type":"tool_use","id":"a","name":"list","input":{"depth":1}}`}, `"input":5,"output":2`,
		},
		{
			"ids that the API does not take", caisson.APIAnthropic,
			[]string{startOf(0, `{"type":"tool_use","id":"functions.list:0",`+list+`,"input":{}}`), startOf(1, `{"type":"tool_use","id":"functions.list:0","name":"fly away"}`), stopOf("tool_use")},
			"", []string{`"id":"` + toolUseID("functions.list:0") + `"`, `"id":"call_1_1","name":"fly_away"`}, "",
		},
		{
			"arguments that are no object", caisson.APIAnthropic,
			[]string{startOf(0, `{"type":"tool_use","id":"a",`+list+`}`), deltaOf(0, `{"type":"input_json_delta","partial_json":"{\"depth\": "}`), stopOf("max_tokens")},
			"", []string{`"input":{"arguments":"{\"depth\": "}`, "no JSON object"}, "",
		},
		{
			"calls and signatures", caisson.APIGemini,
			[]string{
				geminiOf(`{"text":"I think","thought":true}`, ""), geminiOf(`{"text":"I look."}`, ""),
				geminiOf(`{"functionCall":{"name":"list","args":{"depth":1}},"thoughtSignature":"c2ln"},{"functionCall":{"id":"x7","name":"list"}}`, ""), geminiOf(`{"text":""}`, `,"finishReason":"STOP"`),
			},
			"I look.",
			[]string{
				`{"role":"model","parts":[{"text":"I look."},{"thoughtSignature":"c2ln","functionCall":{"id":"call_0_1","name":"list","args":{"depth":1}}},{"functionCall":{"id":"x7","name":"list","args":{}}}]}`,
				`{"role":"user","parts":[{"functionResponse":{"id":"call_0_1","name":"list","response":{"output":`, `{"functionResponse":{"id":"x7","name":"list","response":{"output":`,
			},
			`"input":10,"output":7,"cacheRead":20`,
		},
		{
			"no event", caisson.APIGemini, nil, "",
			[]string{`{"functionCall":{"id":"call_0_1","name":"list","args":{"depth":1}}}`}, `"input":5,"output":2`,
		},
	} {
		t.Run(row.api+"/"+row.name, func(t *testing.T) {
			first := answerOf(row.events...)
			if row.events == nil {
				first = refusal(200, "Content-Type: application/json\r\n", map[string]string{
					caisson.APIAnthropic: `{"type":"message","content":[{"type":"tool_use","id":"a","name":"list","input":{"depth":1}}],"stop_reason":"tool_use","usage":{"input_tokens":5,"output_tokens":2}}`,
					caisson.APIGemini:    `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"list","args":{"depth":1}}}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":2}}`,
				}[row.api])
			}
			s := serveBroken(t, first, sentences[row.api]("fine"))
			o := runWith(t, s.url, speaking(row.api))
			if o.err != nil || o.text != row.text+"fine" || !strings.Contains(o.lines, row.usage) {
				t.Fatalf("%q, %+v: %s", o.text, o.err, o.lines)
			}
			for _, want := range row.next {
				if !strings.Contains(s.body(1), want) {
					t.Errorf("no %s in %s", want, s.body(1))
				}
			}
			if strings.Contains(o.lines, "Hm.") || strings.Contains(o.lines, "I think") {
				t.Error("thoughts are no part of the answer")
			}
		})
	}
}

// TestBadAnswersOfOtherAPIs: each answer ends the run or is retried, and no part of it is used as an answer.
func TestBadAnswersOfOtherAPIs(t *testing.T) {
	call := startOf(0, `{"type":"tool_use","id":"a","name":"list","input":{}}`)
	for _, row := range []struct {
		name, api string
		answer    func(net.Conn)
		again     bool   // the request is retried
		code      string // otherwise, the error code of the run
		says      string
	}{
		{"cut off", caisson.APIAnthropic, answerOf(messageStart, call, deltaOf(0, `{"type":"input_json_delta","partial_json":"{"}`)), true, "", "connection to the model broke"},
		{"overloaded", caisson.APIAnthropic, answerOf(messageStart, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`), true, "", "answered 529"},
		{"refused", caisson.APIAnthropic, refusal(400, "", `{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: too large"}}`), false, caisson.RunAgentError, "400: max_tokens: too large"},
		{"no credits", caisson.APIAnthropic, answerOf(messageStart, `{"type":"error","error":{"type":"billing_error","message":"your credit is too low"}}`), false, caisson.RunNoCredits, "your credit is too low"},
		{"not found", caisson.APIAnthropic, refusal(404, "", `{"type":"error","error":{"type":"not_found_error","message":"model: x"}}`), false, caisson.RunNotFound, "model: x"},
		{"too long", caisson.APIAnthropic, refusal(400, "", `{"type":"error","error":{"type":"invalid_request_error","message":"input length and max_tokens exceed context limit: 190000 + 32000 > 200000"}}`), false, caisson.RunInvalid, "does not fit"},
		{"withheld", caisson.APIAnthropic, answerOf(messageStart, stopOf("refusal")), false, caisson.RunAgentError, "withheld"},
		{"wrong types", caisson.APIAnthropic, answerOf(`{"type":"content_block_delta","index":{},"delta":[]}`), true, "", ""},
		{"no block", caisson.APIAnthropic, answerOf(deltaOf(5, `{"type":"input_json_delta","partial_json":"{}"}`)), true, "", ""},
		{"a block of text", caisson.APIAnthropic, answerOf(startOf(0, `{"type":"thinking"}`), deltaOf(0, `{"type":"input_json_delta","partial_json":"{}"}`)), true, "", ""},
		{"twice", caisson.APIAnthropic, answerOf(call, call), true, "", ""},
		{"a negative index", caisson.APIAnthropic, answerOf(deltaOf(-1, `{"type":"input_json_delta","partial_json":"{}"}`)), true, "", ""},
		{"no JSON", caisson.APIAnthropic, answerOf("<html>"), true, "", ""},
		{"nothing", caisson.APIAnthropic, answerOf(`{"type":"message_stop"}`), true, "", ""},
		{"cut off", caisson.APIGemini, answerOf(geminiOf(`{"functionCall":{"name":"list"}}`, "")), true, "", "connection to the model broke"},
		{"overloaded", caisson.APIGemini, answerOf(`{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}`), true, "", "answered 503"},
		{"refused", caisson.APIGemini, refusal(400, "", `{"error":{"code":400,"message":"Unknown name \"x\"","status":"INVALID_ARGUMENT"}}`), false, caisson.RunAgentError, `400: Unknown name "x"`},
		{"budget", caisson.APIGemini, refusal(402, "", `{"error":{"code":402,"message":"the budget of the run is spent","status":"RESOURCE_EXHAUSTED"}}`), false, caisson.RunNoCredits, "the budget of the run"},
		{"too long", caisson.APIGemini, refusal(400, "", `{"error":{"code":400,"message":"The input token count (9) exceeds the maximum number of tokens allowed (8).","status":"INVALID_ARGUMENT"}}`), false, caisson.RunInvalid, "does not fit"},
		{"withheld", caisson.APIGemini, answerOf(geminiOf(``, `,"finishReason":"SAFETY"`)), false, caisson.RunAgentError, "withheld"},
		{"blocked", caisson.APIGemini, answerOf(`{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT"}}`), false, caisson.RunAgentError, "withheld"},
		{"wrong types", caisson.APIGemini, answerOf(`{"candidates":{"content":1}}`), true, "", ""},
		{"wrong arguments", caisson.APIGemini, answerOf(geminiOf(`{"functionCall":{"name":7}}`, "")), true, "", ""},
		{"an array", caisson.APIGemini, refusal(200, "Content-Type: application/json\r\n", `[]`), true, "", ""},
	} {
		t.Run(row.api+"/"+row.name, func(t *testing.T) {
			s := serveBroken(t, row.answer, sentences[row.api]("fine"))
			o := runWith(t, s.url, speaking(row.api))
			if row.again && (o.err != nil || o.text != "fine" || s.requests() != 2 || !strings.Contains(o.lines, row.says)) {
				t.Errorf("%q, %+v after %d requests: %s", o.text, o.err, s.requests(), o.lines)
			}
			if !row.again && (o.err == nil || o.err.Code != row.code || !strings.Contains(o.err.Message, row.says) || s.requests() != 1) {
				t.Errorf("%q, %+v after %d requests", o.text, o.err, s.requests())
			}
		})
	}
}

// TestOtherAPIsGoOn: an answer that was interrupted or truncated is continued, and no text is repeated.
func TestOtherAPIsGoOn(t *testing.T) {
	for api, half := range map[string][2]func(net.Conn){
		caisson.APIAnthropic: {answerOf(messageStart, deltaOf(0, `{"type":"text_delta","text":"one "}`)), answerOf(deltaOf(0, `{"type":"text_delta","text":"two "}`), stopOf("max_tokens"), `{"type":"message_stop"}`)},
		caisson.APIGemini:    {answerOf(geminiOf(`{"text":"one "}`, "")), answerOf(geminiOf(`{"text":"two "}`, `,"finishReason":"MAX_TOKENS"`))},
	} {
		s := serveBroken(t, half[0], half[1], sentences[api]("three"))
		if o := runWith(t, s.url, speaking(api)); o.err != nil || o.text != "one two three" || !strings.Contains(s.body(2), msgContinueLength) {
			t.Errorf("%s: %q, %+v: %s", api, o.text, o.err, s.body(2))
		}
	}
}

// TestEndlessAnswersOfOtherAPIs: each of these answers would be endless, or fill the memory.
func TestEndlessAnswersOfOtherAPIs(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, row := range []struct{ name, api, piece string }{
		{"text", caisson.APIAnthropic, deltaOf(0, `{"type":"text_delta","text":"`+long+`"}`)},
		{"thoughts", caisson.APIAnthropic, startOf(0, `{"type":"thinking","thinking":"`+long+`"}`)},
		{"signature", caisson.APIAnthropic, startOf(0, `{"type":"thinking"}`) + "\n\ndata: " + deltaOf(0, `{"type":"signature_delta","signature":"`+long+`"}`)},
		{"arguments", caisson.APIAnthropic, deltaOf(0, `{"type":"input_json_delta","partial_json":"`+long+`"}`)},
		{"blocks", caisson.APIAnthropic, ""},
		{"name", caisson.APIAnthropic, startOf(1, `{"type":"tool_use","name":"`+long+`"}`)},
		{"pings", caisson.APIAnthropic, `{"type":"ping","x":"` + long + `"}`},
		{"text", caisson.APIGemini, geminiOf(`{"text":"`+long+`"}`, "")},
		{"thoughts", caisson.APIGemini, geminiOf(`{"thought":true,"text":"`+long+`"}`, "")},
		{"calls", caisson.APIGemini, geminiOf(`{"functionCall":{"name":"list"}}`, "")},
		{"signature", caisson.APIGemini, geminiOf(`{"functionCall":{"name":"list"},"thoughtSignature":"`+strings.Repeat(long, 30)+`"}`, "")},
		{"nothing", caisson.APIGemini, `{"x":"` + long + `"}`},
	} {
		t.Run(row.api+"/"+row.name, func(t *testing.T) {
			s := serveBroken(t, func(c net.Conn) {
				io.WriteString(c, eventStream+"data: "+startOf(0, `{"type":"tool_use","id":"a","name":"list"}`)+"\n\n")
				for i := 1; ; i++ {
					piece := row.piece
					if piece == "" {
						piece = startOf(i, `{"type":"tool_use","name":"list"}`)
					}
					if _, err := io.WriteString(c, "data: "+piece+"\n\n"); err != nil {
						return
					}
				}
			})
			o := runWith(t, s.url, speaking(row.api))
			if o.err == nil || o.err.Code != caisson.RunAgentError || s.requests() != 1 || len(o.text) > maxAnswer {
				t.Errorf("%d bytes, %+v after %d requests", len(o.text), o.err, s.requests())
			}
		})
	}
}

// TestConversationsOfOtherAPIs: the gateway accepts requests with any conversation, and they contain nothing that the APIs
// refuse.
func TestConversationsOfOtherAPIs(t *testing.T) {
	calls := func(ids ...string) (m message) {
		m.Role = roleAssistant
		for _, id := range ids {
			m.ToolCalls = append(m.ToolCalls, call{ID: id, Type: "function", Function: function{Name: "a tool", Arguments: "null"}, Extra: raw(`{"x":1}`)})
		}
		return m
	}
	result := func(id string) message { return message{Role: roleTool, ToolCallID: id} }
	talk := []message{
		{Role: roleSystem, Content: "be"}, {Role: roleAssistant, Content: "  "}, calls("a.b", "c"), result("a.b"), result("c"), {Role: roleUser, Content: "and?"},
		{Role: roleAssistant, Content: "\n", Reasoning: "hm"}, {Role: roleUser, Content: "go on"}, calls("d"), result("d"),
	}
	for _, row := range []struct {
		api     api
		dialect dialect.Dialect
		want    string
	}{
		{
			anthropic{}, llmanthropic.New(),
			`[{"role":"user","content":[{"type":"text","text":"` + omittedNotice + `"}]},` +
				`{"role":"assistant","content":[{"type":"tool_use","id":"` + toolUseID("a.b") + `","name":"a_tool","input":{"arguments":"null"}},{"type":"tool_use","id":"c","name":"a_tool","input":{"arguments":"null"}}]},` +
				`{"role":"user","content":[{"type":"tool_result","tool_use_id":"` + toolUseID("a.b") + `"},{"type":"tool_result","tool_use_id":"c"}]},` +
				`{"role":"user","content":[{"type":"text","text":"and?"}]},{"role":"user","content":[{"type":"text","text":"go on"}]},` +
				`{"role":"assistant","content":[{"type":"tool_use","id":"d","name":"a_tool","input":{"arguments":"null"}}]},` +
				`{"role":"user","content":[{"type":"tool_result","tool_use_id":"d","cache_control":{"type":"ephemeral"}}]}]`,
		},
		{
			gemini{}, llmgemini.New(),
			`[{"role":"user","parts":[{"text":"` + omittedNotice + `"}]},` +
				`{"role":"model","parts":[{"functionCall":{"id":"a.b","name":"a_tool","args":{"arguments":"null"}}},{"functionCall":{"id":"c","name":"a_tool","args":{"arguments":"null"}}}]},` +
				`{"role":"user","parts":[{"functionResponse":{"id":"a.b","name":"a_tool","response":{"output":""}}},{"functionResponse":{"id":"c","name":"a_tool","response":{"output":""}}}]},` +
				`{"role":"user","parts":[{"text":"and?"}]},{"role":"user","parts":[{"text":"go on"}]},` +
				`{"role":"model","parts":[{"functionCall":{"id":"d","name":"a_tool","args":{"arguments":"null"}}}]},` +
				`{"role":"user","parts":[{"functionResponse":{"id":"d","name":"a_tool","response":{"output":""}}}]}]`,
		},
	} {
		path, _, req := row.api.request(&modelRequest{model: "m", talk: talk})
		body, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		path, _, _ = strings.Cut(path, "?")
		e, ok := row.dialect.Endpoint("POST", path)
		if !ok {
			t.Fatalf("%s is no call", path)
		}
		if _, err := row.dialect.Parse(e, body, dialect.Allow{}); err != nil {
			t.Errorf("%v in %s", err, body)
		}
		var got struct{ Messages, Contents raw }
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		if all := string(got.Messages) + string(got.Contents); all != row.want {
			t.Errorf("got  %s\nwant %s", all, row.want)
		}
	}
}
