package httpapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// uiHeader says which version of the AI SDK's UI message stream follows.
const uiHeader = "X-Vercel-Ai-Ui-Message-Stream"

// uiChunk is one chunk of a UI message stream. The SDK refuses chunks with fields that their type does not have.
type uiChunk struct {
	Type       string          `json:"type"`
	ID         string          `json:"id,omitempty"`
	MessageID  string          `json:"messageId,omitempty"`
	Delta      string          `json:"delta,omitempty"`
	ToolCallID string          `json:"toolCallId,omitempty"`
	ToolName   string          `json:"toolName,omitempty"`
	Dynamic    bool            `json:"dynamic,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	Output     *string         `json:"output,omitempty"`
	ErrorText  string          `json:"errorText,omitempty"`
	Data       *uiStatus       `json:"data,omitempty"`
	Transient  bool            `json:"transient,omitempty"`
	Finish     string          `json:"finishReason,omitempty"`
}

// uiStatus is what data-status carries.
type uiStatus struct {
	Phase string     `json:"phase"`
	Label string     `json:"label,omitempty"`
	Child caisson.ID `json:"child,omitempty"`
}

// uiSpeaker writes a run's events as a UI message stream: text and tool calls in blocks that begin and end.
type uiSpeaker struct {
	started bool
	text    int             // blocks of text so far
	open    bool            // whether the last of them still is
	tools   map[string]bool // calls without a result
}

func (u *uiSpeaker) header(h http.Header) { h.Set(uiHeader, "v1") }

func (u *uiSpeaker) event(s *sseWriter, e caisson.RunEvent) error {
	chunks := u.chunks(e)
	for i, c := range chunks {
		data, err := json.Marshal(c)
		if err != nil {
			return err
		}
		event := protocol.SSE{Data: data}
		if i == len(chunks)-1 {
			event.ID = e.Seq // only now the whole event has been said
		}
		if err := s.raw(event); err != nil {
			return err
		}
	}
	return nil
}

func (u *uiSpeaker) end(s *sseWriter) error { return s.raw(protocol.SSE{Data: []byte("[DONE]")}) }

// chunks returns what e is in this protocol.
func (u *uiSpeaker) chunks(e caisson.RunEvent) (out []uiChunk) {
	if !u.started {
		u.started, u.tools = true, map[string]bool{}
		out = append(out, uiChunk{Type: "start"})
	}
	switch e.Type {
	case caisson.EventStatus:
		return append(out, uiChunk{Type: "data-status", Data: &uiStatus{e.Phase, e.Label, e.Child}, Transient: true})
	case caisson.EventTextDelta:
		if !u.open {
			u.text, u.open = u.text+1, true
			out = append(out, uiChunk{Type: "text-start", ID: u.block()})
		}
		if e.Delta == "" {
			return out
		}
		return append(out, uiChunk{Type: "text-delta", ID: u.block(), Delta: e.Delta})
	case caisson.EventToolStart:
		out = u.closeText(out)
		if e.CallID == "" || u.tools[e.CallID] {
			return out
		}
		u.tools[e.CallID] = true
		name, input := cmp.Or(e.Tool, "tool"), e.Args
		if !json.Valid(input) {
			input = json.RawMessage("null")
		}
		return append(out, uiChunk{Type: "tool-input-start", ToolCallID: e.CallID, ToolName: name, Dynamic: true},
			uiChunk{Type: "tool-input-available", ToolCallID: e.CallID, ToolName: name, Dynamic: true, Input: input})
	case caisson.EventToolResult:
		out = u.closeText(out)
		if !u.tools[e.CallID] {
			return out // the SDK refuses a result of what was not called
		}
		delete(u.tools, e.CallID)
		if e.IsError {
			return append(out, uiChunk{Type: "tool-output-error", ToolCallID: e.CallID, ErrorText: cmp.Or(e.Result, "the tool failed"), Dynamic: true})
		}
		return append(out, uiChunk{Type: "tool-output-available", ToolCallID: e.CallID, Output: &e.Result, Dynamic: true})
	case caisson.EventFinal:
		return append(u.closeText(out), uiChunk{Type: "finish", Finish: "stop"})
	case caisson.EventError:
		text := "the run failed"
		if e.Error != nil {
			text = e.Error.Error()
		}
		return append(u.closeText(out), uiChunk{Type: "error", ErrorText: text})
	}
	return out
}

// block names the block of text that is open.
func (u *uiSpeaker) block() string { return "text-" + strconv.Itoa(u.text) }

func (u *uiSpeaker) closeText(out []uiChunk) []uiChunk {
	if !u.open {
		return out
	}
	u.open = false
	return append(out, uiChunk{Type: "text-end", ID: u.block()})
}
