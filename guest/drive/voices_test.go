package drive_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/drive"
)

var kinds = []Kind{
	{Name: "exec", Driver: caisson.DriverExec, Parts: true, Silent: true, NewProtocol: func() Protocol { return &execVoice{} }},
	jsonl("codex", true, true, codexVoice()),
	jsonl("claude", true, true, claudeVoice()),
	jsonl("opencode", false, false, opencodeVoice),
	jsonl("caisson", true, true, caissonVoice),
	{
		Name: "paths", Driver: caisson.DriverJSONL, Events: map[string]string{"text": "say.0.text", "final": "all", "error": "error"},
		Parts: true, Repeats: true, IgnoresNoise: true, SkipProcessTests: true, NewProtocol: func() Protocol { return &lineVoice{encode: pathsVoice} },
	},
	{Name: "acp", Driver: caisson.DriverACP, Parts: true, Silent: true, HasEndLine: true, IgnoresNoise: true, NewProtocol: func() Protocol { return newACPVoice() }},
	{
		Name: "codex server", Driver: caisson.DriverCodex, Parts: true, Repeats: true, Silent: true, HasEndLine: true, IgnoresNoise: true, SkipProcessTests: true, // as acp
		NewProtocol: func() Protocol { return &codexServerVoice{acpVoice: newACPVoice()} },
	},
}

func jsonl(dialect string, repeats, tidy bool, encode func(what, text string) []any) Kind {
	return Kind{
		Name: dialect, Driver: caisson.DriverJSONL, Events: map[string]string{"dialect": dialect}, Parts: repeats, Repeats: repeats,
		HasEndLine: tidy, Silent: tidy, IgnoresNoise: true, SkipProcessTests: dialect != "codex", NewProtocol: func() Protocol { return &lineVoice{encode: encode} },
	}
}

func TestMain(m *testing.M) {
	agents := Agents(kinds...)
	for name, agent := range others {
		agents[name] = agent
	}
	os.Exit(Main(m, drive.Drivers(), agents))
}

func TestConformance(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.Name, func(t *testing.T) { Conform(t, k) })
	}
}

// prompt returns the last argument.
func prompt() string { return os.Args[len(os.Args)-1] }

type execVoice struct{}

func (*execVoice) ReadPrompt() string { return prompt() }
func (*execVoice) Delta(s string)     { os.Stdout.WriteString(s) }
func (*execVoice) Message(s string)   { os.Stdout.WriteString(s) }
func (*execVoice) End()               {}

// lineVoice writes JSON lines.
type lineVoice struct {
	encode func(what, text string) []any
	said   strings.Builder // text of the current message
}

func (v *lineVoice) say(what, text string) {
	for _, line := range v.encode(what, text) {
		b, err := json.Marshal(line)
		if err != nil {
			panic(err)
		}
		os.Stdout.Write(append(b, '\n'))
	}
}

func (v *lineVoice) ReadPrompt() string {
	v.say("begin", "")
	return prompt()
}

func (v *lineVoice) Delta(s string) {
	v.said.WriteString(s)
	v.say("delta", s)
}

func (v *lineVoice) Message(s string) {
	v.said.Reset()
	v.say("message", s)
}

func (v *lineVoice) End() { v.say("end", v.said.String()) }

type obj = map[string]any

// codexVoice has no parts, but items whose updates repeat the whole text. It writes an update whenever the text has doubled, or
// is complete.
func codexVoice() func(what, text string) []any {
	var said strings.Builder
	told := 0
	item := func(event string) any {
		told = said.Len()
		return obj{"type": event, "item": obj{"id": "item_1", "type": "agent_message", "text": said.String()}}
	}
	return func(what, text string) []any {
		switch what {
		case "begin":
			return []any{obj{"type": "thread.started", "thread_id": "t"}, obj{"type": "turn.started"}}
		case "delta":
			if said.WriteString(text); said.Len() < 2*told {
				return nil
			}
			return []any{item("item.updated")}
		case "message":
			said.Reset()
			said.WriteString(text)
			line := item("item.completed")
			said.Reset()
			told = 0
			return []any{line}
		}
		end := obj{"type": "turn.completed", "usage": obj{"input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 3}}
		if said.Len() == 0 {
			return []any{end}
		}
		return []any{item("item.completed"), end}
	}
}

func claudeVoice() func(what, text string) []any {
	last := ""
	return func(what, text string) []any {
		switch what {
		case "begin":
			return []any{obj{"type": "system", "subtype": "init", "claude_code_version": "1.2.3", "session_id": "s"}}
		case "delta":
			return []any{obj{
				"type": "stream_event", "parent_tool_use_id": nil, "session_id": "s",
				"event": obj{"type": "content_block_delta", "index": 0, "delta": obj{"type": "text_delta", "text": text}},
			}}
		case "message":
			last = text
			return []any{obj{
				"type": "assistant", "parent_tool_use_id": nil, "session_id": "s",
				"message": obj{"role": "assistant", "content": []any{obj{"type": "text", "text": text}}},
			}}
		}
		if text == "" {
			text = last
		}
		return []any{obj{"type": "result", "subtype": "success", "is_error": false, "result": text, "total_cost_usd": 0.5, "usage": obj{"input_tokens": 1, "output_tokens": 2}}}
	}
}

func opencodeVoice(what, text string) []any {
	line := func(kind string, part any) any {
		return obj{"type": kind, "timestamp": 1, "sessionID": "ses_1", "part": part}
	}
	switch what {
	case "begin":
		return []any{line("step_start", obj{"type": "step-start"})}
	case "delta", "message":
		return []any{line("text", obj{"type": "text", "text": text})}
	}
	return []any{line("step_finish", obj{"type": "step-finish", "reason": "stop", "cost": 0.25, "tokens": obj{"input": 5, "output": 6}})}
}

func caissonVoice(what, text string) []any {
	switch what {
	case "begin":
		return []any{obj{"type": "status", "phase": "running"}}
	case "delta":
		return []any{obj{"type": "text_delta", "delta": text}}
	case "message":
		return []any{obj{"type": "assistant_final", "content": text}}
	}
	return []any{obj{"type": "assistant_final"}, obj{"type": "done"}}
}

func pathsVoice(what, text string) []any {
	switch what {
	case "delta":
		return []any{obj{"say": []any{obj{"text": text}}}}
	case "message":
		return []any{obj{"all": text}}
	}
	return []any{obj{"note": what}}
}

// acpVoice is a minimal agent of the Agent Client Protocol.
type acpVoice struct {
	in *bufio.Scanner
	id json.RawMessage // id of the prompt request
}

func newACPVoice() *acpVoice {
	v := &acpVoice{in: bufio.NewScanner(os.Stdin)}
	v.in.Buffer(nil, 16<<20)
	return v
}

func (v *acpVoice) write(m obj) {
	m["jsonrpc"] = "2.0"
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(b, '\n'))
}

type acpRequest struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Prompt []struct {
			Text string `json:"text"`
		} `json:"prompt"`
		Input []struct {
			Text string `json:"text"`
		} `json:"input"` // of Codex
	} `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

func (v *acpVoice) read() *acpRequest {
	if !v.in.Scan() {
		os.Exit(0)
	}
	r := &acpRequest{}
	if err := json.Unmarshal(v.in.Bytes(), r); err != nil {
		panic(fmt.Sprintf("%v: %q", err, v.in.Bytes()))
	}
	return r
}

func (v *acpVoice) ReadPrompt() string {
	for {
		switch r := v.read(); r.Method {
		case "initialize":
			v.write(obj{"id": r.ID, "result": obj{"protocolVersion": 1, "agentCapabilities": obj{"loadSession": true}, "agentInfo": obj{"name": "fake", "version": "9.8"}}})
		case "session/new":
			v.write(obj{"id": r.ID, "result": obj{"sessionId": "sess-1"}})
		case "session/load":
			v.Delta("what was said before")
			v.write(obj{"id": r.ID, "result": obj{}})
		case "session/prompt":
			v.id = r.ID
			return r.Params.Prompt[0].Text
		}
	}
}

func (v *acpVoice) update(u obj) {
	v.write(obj{"method": "session/update", "params": obj{"sessionId": "sess-1", "update": u}})
}

func (v *acpVoice) Delta(s string) {
	v.update(obj{"sessionUpdate": "agent_message_chunk", "content": obj{"type": "text", "text": s}})
}
func (v *acpVoice) Message(s string) { v.Delta(s) }
func (v *acpVoice) stop(reason string) {
	v.write(obj{"id": v.id, "result": obj{"stopReason": reason}})
}
func (v *acpVoice) End() { v.stop("end_turn") }

// codexServerVoice is a minimal app server of Codex.
type codexServerVoice struct {
	*acpVoice
	said strings.Builder
}

func (v *codexServerVoice) ReadPrompt() string {
	for {
		switch r := v.read(); r.Method {
		case "initialize":
			v.write(obj{"id": r.ID, "result": obj{"userAgent": "caisson/9.8 (Debian 12.0.0; x86_64) xterm (caisson; 1)", "platformOs": "linux"}})
			v.notify("configWarning", obj{"summary": "something is missing"})
		case "thread/start":
			v.write(obj{"id": r.ID, "result": obj{"thread": obj{"id": "th-1", "ephemeral": true}}})
		case "turn/start":
			v.write(obj{"id": r.ID, "result": obj{"turn": obj{"id": "tu-1", "status": "inProgress", "error": nil}}})
			v.notify("turn/started", obj{"turn": obj{"id": "tu-1", "status": "inProgress"}})
			v.item("item/completed", obj{"type": "userMessage", "id": "u", "content": []any{obj{"type": "text", "text": "not an answer"}}})
			return r.Params.Input[0].Text
		}
	}
}

func (v *codexServerVoice) notify(method string, params obj) {
	params["threadId"] = "th-1"
	v.write(obj{"method": method, "params": params, "emittedAtMs": 1})
}

func (v *codexServerVoice) item(method string, item obj) {
	v.notify(method, obj{"item": item, "turnId": "tu-1"})
}

func (v *codexServerVoice) Delta(s string) {
	if v.said.Len() == 0 {
		v.item("item/started", obj{"type": "agentMessage", "id": "i", "text": "", "phase": nil})
	}
	v.said.WriteString(s)
	v.notify("item/agentMessage/delta", obj{"itemId": "i", "turnId": "tu-1", "delta": s})
}

func (v *codexServerVoice) Message(s string) {
	v.said.Reset()
	v.item("item/completed", obj{"type": "agentMessage", "id": "i", "text": s})
}

func (v *codexServerVoice) End() {
	if v.said.Len() > 0 {
		v.Message(v.said.String())
	}
	v.notify("thread/tokenUsage/updated", obj{"tokenUsage": obj{"total": obj{"inputTokens": 10, "cachedInputTokens": 4, "outputTokens": 3}, "modelContextWindow": nil}})
	v.end("completed", nil)
}

// end reports that the turn has ended.
func (v *codexServerVoice) end(status string, err any) {
	v.notify("turn/completed", obj{"turn": obj{"id": "tu-1", "status": status, "error": err}})
}

// others are fake agents for tests of one driver.
var others = map[string]func(){}
