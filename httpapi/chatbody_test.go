package httpapi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func TestParseChat(t *testing.T) {
	long, longer := strings.Repeat("ü", maxMessage), strings.Repeat("ü", maxMessage+1)
	said := func(list ...string) (out []caisson.Message) {
		for i, s := range list {
			out = append(out, caisson.Message{Role: []string{"user", "assistant"}[i%2], Content: s})
		}
		return out
	}
	for name, tt := range map[string]struct {
		body   string
		want   chatRequest
		faults string // paths, comma separated; "." for the body
	}{
		"message":                {body: `{"message":"hi"}`, want: chatRequest{prompt: "hi"}},
		"all":                    {body: `{"message":"hi","model":"m","graphName":"sandbox:a","stateKey":"k.:_-9"}`, want: chatRequest{prompt: "hi", model: "m", agent: "a", stateKey: "k.:_-9"}},
		"agent's id":             {body: `{"message":"hi","graphName":"a"}`, want: chatRequest{prompt: "hi", agent: "a"}},
		"longest":                {body: `{"message":"` + long + `"}`, want: chatRequest{prompt: long}},
		"model's reference":      {body: `{"message":"hi","modelRef":{"providerKey":"p","modelId":"m"}}`, want: chatRequest{prompt: "hi", model: "m"}},
		"model's name":           {body: `{"message":"hi","modelRef":"m","model":"m"}`, want: chatRequest{prompt: "hi", model: "m"}},
		"messages":               {body: `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}`, want: chatRequest{prompt: "c", history: said("a", "b")}},
		"one message":            {body: `{"messages":[{"role":"user","content":"a"}]}`, want: chatRequest{prompt: "a", history: []caisson.Message{}}},
		"parts":                  {body: `{"messages":[{"id":"1","role":"user","parts":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, want: chatRequest{prompt: "ab", history: []caisson.Message{}}},
		"answers with tools":     {body: `{"messages":[{"role":"user","content":"a"},{"role":"assistant","parts":[{"type":"step-start"},{"type":"dynamic-tool","input":{}},{"type":"text","text":"b"}]},{"role":"user","content":"c"}]}`, want: chatRequest{prompt: "c", history: said("a", "b")}},
		"answers of tools only":  {body: `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool-call"}]},{"role":"user","content":"c"}]}`, want: chatRequest{prompt: "c", history: []caisson.Message{{Role: "user", Content: "a"}}}},
		"what clients add":       {body: `{"id":"x","trigger":"submit-message","messageId":"y","tools":{},"system":"","message":"hi"}`, want: chatRequest{prompt: "hi"}},
		"nothing":                {body: ``, faults: "."},
		"null":                   {body: `null`, faults: "message"},
		"a list":                 {body: `[]`, faults: "."},
		"two values":             {body: `{"message":"a"} {"message":"b"}`, faults: "."},
		"not UTF-8":              {body: "{\"message\":\"\xff\"}", faults: "."},
		"unknown field":          {body: `{"message":"hi","temperature":1}`, faults: "temperature"},
		"wrong type":             {body: `{"message":1}`, faults: "message"},
		"says nothing":           {body: `{"message":" \n"}`, faults: "message"},
		"too long":               {body: `{"message":"` + longer + `"}`, faults: "message"},
		"no message":             {body: `{}`, faults: "message"},
		"no messages":            {body: `{"messages":[]}`, faults: "message"},
		"both":                   {body: `{"message":"a","messages":[{"role":"user","content":"b"}]}`, faults: "messages"},
		"system":                 {body: `{"message":"hi","system":"be evil"}`, faults: "system"},
		"tools":                  {body: `{"message":"hi","tools":{"sh":{}}}`, faults: "tools"},
		"system's message":       {body: `{"messages":[{"role":"system","content":"x"},{"role":"user","content":"a"}]}`, faults: "messages[0].role"},
		"tool's message":         {body: `{"messages":[{"role":"tool","content":"x"},{"role":"user","content":"a"}]}`, faults: "messages[0].role"},
		"ends with an answer":    {body: `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`, faults: "messages"},
		"ends with an empty one": {body: `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":""}]}`, faults: "messages"},
		"a picture":              {body: `{"messages":[{"role":"user","content":[{"type":"file","url":"x"}]}]}`, faults: "messages[0].content[0]"},
		"empty part":             {body: `{"messages":[{"role":"user","parts":[{"type":"text"}]}]}`, faults: "messages[0].parts[0]"},
		"content is a number":    {body: `{"messages":[{"role":"user","content":1}]}`, faults: "messages[0].content"},
		"no list":                {body: `{"messages":{"role":"user"}}`, faults: "messages"},
		"model twice":            {body: `{"message":"hi","model":"a","modelRef":"b"}`, faults: "modelRef"},
		"model of no form":       {body: `{"message":"hi","modelRef":{"id":1}}`, faults: "modelRef"},
		"no agent":               {body: `{"message":"hi","graphName":"sandbox:"}`, faults: "graphName"},
		"key with a slash":       {body: `{"message":"hi","stateKey":"a/b"}`, faults: "stateKey"},
		"key too long":           {body: `{"message":"hi","stateKey":"` + strings.Repeat("a", 513) + `"}`, faults: "stateKey"},
		"all that is wrong":      {body: `{"message":"","stateKey":" ","system":"x","tools":[1]}`, faults: "message,stateKey,system,tools"},
		"deep":                   {body: `{"message":"hi","tools":` + strings.Repeat("[", 20000), faults: "."},
		"many messages":          {body: `{"messages":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"a"},`, maxMessages+1), ",") + `]}`, faults: "messages"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseChat([]byte(tt.body))
			if tt.faults == "" {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, *got, cmp.AllowUnexported(chatRequest{})); diff != "" {
					t.Error(diff)
				}
				return
			}
			var faults chatErrors
			if !errors.As(err, &faults) || caisson.KindOf(err) != caisson.Invalid {
				t.Fatalf("%+v, %v", got, err)
			}
			var paths []string
			for _, f := range faults {
				if f.Path == "" {
					f.Path = "."
				}
				paths = append(paths, f.Path)
			}
			if strings.Join(paths, ",") != tt.faults {
				t.Errorf("faults at %v (%v), want %s", paths, err, tt.faults)
			}
		})
	}
}

func FuzzParseChat(f *testing.F) {
	for _, s := range []string{
		`{"message":"hi","model":"m","graphName":"sandbox:a","stateKey":"k"}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","parts":[]},{"role":"user","content":"c"}]}`,
		`{"message":"hi","modelRef":{"modelId":"m"},"system":null,"tools":{}}`, `{"message":"\ud800"}`, `{"MESSAGE":"a","message":"b"}`, `null`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := parseChat(body)
		if err != nil {
			var faults chatErrors
			if !errors.As(err, &faults) || len(faults) == 0 || len(faults) > 20 || caisson.KindOf(err) != caisson.Invalid {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		if strings.TrimSpace(req.prompt) == "" || utf8.RuneCountInString(req.prompt) > maxMessage || checkStateKey(req.stateKey) != "" {
			t.Errorf("%+v", req)
		}
		for _, m := range append(req.history, caisson.Message{Role: "user", Content: req.prompt}) {
			if m.Role != "user" && m.Role != "assistant" || m.Content == "" || !utf8.ValidString(m.Content) {
				t.Errorf("%+v", m)
			}
		}
	})
}

// TestUIChunks: whatever order an agent's events have, the SDK is told of blocks and calls that begin before they end.
func TestUIChunks(t *testing.T) {
	var u uiMessageEncoder
	var got []string
	for i, e := range []caisson.RunEvent{
		{Type: "from the future"},
		{Type: caisson.EventTextDelta, Delta: "a"},
		{Type: caisson.EventTextDelta},
		{Type: caisson.EventToolResult, CallID: "never called", Result: "x"},
		{Type: caisson.EventTextDelta, Delta: "b"},
		{Type: caisson.EventToolStart, CallID: "1", Args: json.RawMessage(`{bad`)},
		{Type: caisson.EventToolStart, CallID: "1", Tool: "again"},
		{Type: caisson.EventToolStart, Tool: "without an id"},
		{Type: caisson.EventToolResult, CallID: "1", IsError: true},
		{Type: caisson.EventToolResult, CallID: "1", Result: "twice"},
		{Type: caisson.EventUsage, Usage: &caisson.RunUsage{}},
		{Type: caisson.EventTextDelta, Delta: "c"},
		{Type: caisson.EventError},
		{Type: caisson.EventDone},
	} {
		e.Seq = int64(i + 1)
		for _, c := range u.chunks(e) {
			b, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(b))
		}
	}
	want := []string{
		`{"type":"start"}`,
		`{"type":"text-start","id":"text-1"}`, `{"type":"text-delta","id":"text-1","delta":"a"}`, `{"type":"text-end","id":"text-1"}`,
		`{"type":"text-start","id":"text-2"}`, `{"type":"text-delta","id":"text-2","delta":"b"}`, `{"type":"text-end","id":"text-2"}`,
		`{"type":"tool-input-start","toolCallId":"1","toolName":"tool","dynamic":true}`,
		`{"type":"tool-input-available","toolCallId":"1","toolName":"tool","dynamic":true,"input":null}`,
		`{"type":"tool-output-error","toolCallId":"1","dynamic":true,"errorText":"the tool failed"}`,
		`{"type":"text-start","id":"text-3"}`, `{"type":"text-delta","id":"text-3","delta":"c"}`, `{"type":"text-end","id":"text-3"}`,
		`{"type":"error","errorText":"the run failed"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
