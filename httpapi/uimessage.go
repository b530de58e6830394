package httpapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// uiHeader is the header with the version of the AI SDK's UI message stream.
const uiHeader = "X-Vercel-Ai-Ui-Message-Stream"

// uiChunk is one chunk of a UI message stream. The AI SDK rejects chunks with fields that chunks of their type do not have.
type uiChunk struct {
	Type       string          `json:"type"`
	ID         string          `json:"id,omitempty"` // id of the block of text that the chunk belongs to
	Delta      string          `json:"delta,omitempty"`
	ToolCallID string          `json:"toolCallId,omitempty"`
	ToolName   string          `json:"toolName,omitempty"`
	Dynamic    bool            `json:"dynamic,omitempty"` // the client does not know the tool in advance
	Input      json.RawMessage `json:"input,omitempty"`
	Output     *string         `json:"output,omitempty"`
	ErrorText  string          `json:"errorText,omitempty"`
	Data       *uiStatus       `json:"data,omitempty"`
	Transient  bool            `json:"transient,omitempty"`    // the client does not store Data in the message
	Finish     string          `json:"finishReason,omitempty"` // reason for which the answer ended
}

// uiStatus is the field Data of a chunk of the type data-status in a UI message stream: what the run does now.
type uiStatus struct {
	Phase string     `json:"phase"`           // what the run does now, such as thinking
	Label string     `json:"label,omitempty"` // a detail of the phase, such as the name of a tool
	Child caisson.ID `json:"child,omitempty"` // id of a sub-run that was started
}

// uiMessageEncoder writes the events of a run as a UI message stream, in which blocks of text and tool calls have start and end
// chunks.
type uiMessageEncoder struct {
	started bool            // the start chunk was written
	text    int             // number of blocks of text so far
	open    bool            // the last block of text has no end chunk yet
	tools   map[string]bool // ids of the tool calls that have no result yet
}

func (u *uiMessageEncoder) setHeader(h http.Header) { h.Set(uiHeader, "v1") }

func (u *uiMessageEncoder) encode(s *sseWriter, e caisson.RunEvent) error {
	chunks := u.chunks(e)
	for i, c := range chunks {
		data, err := json.Marshal(c)
		if err != nil {
			return err
		}
		event := protocol.SSE{Data: data}
		if i == len(chunks)-1 {
			event.ID = e.Seq // only the last chunk has the id: a client that has received it has the whole event
		}
		if err := s.sendRaw(event); err != nil {
			return err
		}
	}
	return nil
}

// end writes the data [DONE], which ends a UI message stream.
func (u *uiMessageEncoder) end(s *sseWriter) error {
	return s.sendRaw(protocol.SSE{Data: []byte("[DONE]")})
}

// chunks returns the chunks that represent the event e.
func (u *uiMessageEncoder) chunks(e caisson.RunEvent) (out []uiChunk) {
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
			out = append(out, uiChunk{Type: "text-start", ID: u.blockID()})
		}
		if e.Delta == "" {
			return out
		}
		return append(out, uiChunk{Type: "text-delta", ID: u.blockID(), Delta: e.Delta})
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
			return out // the AI SDK rejects a tool's result without a call
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

// blockID returns the id of the current block of text.
func (u *uiMessageEncoder) blockID() string { return "text-" + strconv.Itoa(u.text) }

// closeText appends the end chunk of the last block of text to out, if that block has none yet.
func (u *uiMessageEncoder) closeText(out []uiChunk) []uiChunk {
	if !u.open {
		return out
	}
	u.open = false
	return append(out, uiChunk{Type: "text-end", ID: u.blockID()})
}
