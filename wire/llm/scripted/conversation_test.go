package scripted_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// said returns the text and the names of the tools in an answer of any API that was not streamed.
func said(t testing.TB, body string) string {
	t.Helper()
	var a struct {
		Choices []struct {
			Message struct {
				Content   string
				ToolCalls []struct{ Function struct{ Name string } } `json:"tool_calls"`
			}
		}
		Output []struct {
			Name    string
			Content []struct{ Text string }
		}
		Content    []struct{ Text, Name string }
		Candidates []struct {
			Content struct {
				Parts []struct {
					Text         string
					FunctionCall struct{ Name string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	var all []string
	for _, c := range a.Choices {
		all = append(all, c.Message.Content)
		for _, call := range c.Message.ToolCalls {
			all = append(all, call.Function.Name)
		}
	}
	for _, o := range a.Output {
		all = append(all, o.Name)
		for _, c := range o.Content {
			all = append(all, c.Text)
		}
	}
	for _, c := range a.Candidates {
		for _, p := range c.Content.Parts {
			all = append(all, p.Text, p.FunctionCall.Name)
		}
	}
	for _, c := range a.Content {
		all = append(all, c.Text, c.Name)
	}
	return strings.Join(strings.Fields(strings.Join(all, " ")), " ")
}

// chatBody and the functions below return the same conversation in each API: a message, then rounds of calls "tool:result" with ids.
func chatBody(model, user string, rounds ...string) string {
	b := fmt.Sprintf(`{"model":%q,"tools":[{"type":"function","function":{"name":"sh"}},{"type":"function","function":{"name":"cat"}}],"messages":[{"role":"system","content":"be"},{"role":"user","content":%q}`, model, user)
	for i, r := range rounds {
		tool, result, _ := strings.Cut(r, ":")
		b += fmt.Sprintf(`,{"role":"assistant","content":null,"tool_calls":[{"id":"c%d","type":"function","function":{"name":%q,"arguments":"{}"}}]},{"role":"tool","tool_call_id":"c%d","content":%q}`, i, tool, i, result)
	}
	return b + "]}"
}

func responsesBody(model, user string, rounds ...string) string {
	b := fmt.Sprintf(`{"model":%q,"tools":[{"type":"function","name":"sh"},{"type":"function","name":"cat"}],"input":[{"role":"user","content":[{"type":"input_text","text":%q}]}`, model, user)
	for i, r := range rounds {
		tool, result, _ := strings.Cut(r, ":")
		b += fmt.Sprintf(`,{"type":"reasoning","summary":[]},{"type":"function_call","call_id":"c%d","name":%q,"arguments":"{}"},{"type":"function_call_output","call_id":"c%d","output":%q}`, i, tool, i, result)
	}
	return b + "]}"
}

func messagesBody(model, user string, rounds ...string) string {
	b := fmt.Sprintf(`{"model":%q,"max_tokens":1000,"system":[{"type":"text","text":"be"}],"tools":[{"name":"sh","input_schema":{}},{"name":"cat","input_schema":{}}],"messages":[{"role":"user","content":%q}`, model, user)
	for i, r := range rounds {
		tool, result, _ := strings.Cut(r, ":")
		b += fmt.Sprintf(`,{"role":"assistant","content":[{"type":"tool_use","id":"c%d","name":%q,"input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c%d","content":%q},{"type":"text","text":"a reminder"}]},{"role":"system","content":"a note"}`, i, tool, i, result)
	}
	return b + "]}"
}

func generateBody(_, user string, rounds ...string) string {
	b := fmt.Sprintf(`{"systemInstruction":{"parts":[{"text":"be"}]},"tools":[{"functionDeclarations":[{"name":"sh"},{"name":"cat"}]}],"contents":[{"role":"user","parts":[{"text":%q}]}`, user)
	for _, r := range rounds {
		tool, result, _ := strings.Cut(r, ":")
		b += fmt.Sprintf(`,{"role":"model","parts":[{"functionCall":{"name":%q,"args":{}}}]},{"role":"user","parts":[{"functionResponse":{"name":%q,"response":{"output":%q}}}]}`, tool, tool, result)
	}
	return b + "]}"
}

type inAPI struct {
	name, path string
	body       func(model, user string, rounds ...string) string
}

// generate calls Gemini's API, whose path contains the model.
var generate = inAPI{"generate", "/v1beta/models/MODEL:generateContent", generateBody}

var apis = []inAPI{
	{"chat", "/v1/chat/completions", chatBody},
	{"responses", "/responses", responsesBody},
	{"messages", "/v1/messages", messagesBody},
}
