package scripted

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// messagesFields are the fields of a request of Anthropic's messages API; others are refused.
var messagesFields = []string{
	"max_tokens", "messages", "model", "cache_control", "container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "metadata",
	"output_config", "output_format", "service_tier", "speed", "stop_sequences", "stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p",
	"user_profile_id", "workspace_id",
}

// messagesRequest is the body of a request of Anthropic's messages API, with those of its fields that are read.
type messagesRequest struct {
	Model     string   `json:"model"`
	MaxTokens *int64   `json:"max_tokens"`
	System    *content `json:"system"`
	Messages  []struct {
		Role    string   `json:"role"`
		Content *content `json:"content"`
	} `json:"messages"`
	Stream bool `json:"stream"`
	Tools  []struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"input_schema"`
	} `json:"tools"`
}

// checkVersion returns an error if the header with the version of the API is missing.
func checkVersion(h http.Header) error {
	if h.Get("Anthropic-Version") == "" {
		return invalid("", "anthropic-version: header is required")
	}
	return nil
}

func parseMessages(body []byte) (*conversation, error) {
	c, req, err := readMessages(body)
	if err != nil {
		return nil, err
	}
	if req.MaxTokens == nil {
		return nil, invalid("max_tokens", "Field required")
	}
	c.limit, err = checkLimit("max_tokens", req.MaxTokens)
	return c, err
}

// readMessages parses the fields that messages and count_tokens have in common.
func readMessages(body []byte) (*conversation, *messagesRequest, error) {
	var req messagesRequest
	if err := decode(body, messagesFields, &req); err != nil {
		return nil, nil, err
	}
	switch {
	case req.Model == "":
		return nil, nil, invalid("model", "Field required")
	case len(req.Messages) == 0:
		return nil, nil, invalid("messages", "at least one message is required")
	case req.Messages[0].Role != "user":
		return nil, nil, invalid("messages", "first message must use the user role")
	}
	c := &conversation{model: req.Model, stream: req.Stream, tools: map[string]bool{}, textBytes: int64(len(req.System.text()))}
	for _, t := range req.Tools {
		c.tools[t.Name] = true
		c.textBytes += int64(len(t.Name) + len(t.Description) + len(t.InputSchema))
	}
	var open map[string]string // unanswered calls of the previous message, by id
	for i, m := range req.Messages {
		at := fmt.Sprintf("messages.%d", i)
		if m.Content == nil || m.Content.null || len(m.Content.parts) == 0 || m.Content.plain && m.Content.text() == "" {
			return nil, nil, invalid(at+".content", "must not be empty")
		}
		var err error
		switch m.Role {
		case "user":
			err = c.userBlocks(at, m.Content, open)
			open = nil
		case "assistant":
			open = c.assistantBlocks(m.Content)
		case "system": // instructions of the client in the middle of the conversation
			c.textBytes += int64(len(m.Content.text()))
			if len(open) > 0 {
				err = invalid(at, "`tool_use` ids were found without `tool_result` blocks immediately after")
			}
		default:
			err = invalid(at+".role", "must be user, assistant or system")
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if len(open) > 0 {
		return nil, nil, invalid("messages", "`tool_use` ids were found without `tool_result` blocks immediately after")
	}
	return c, &req, nil
}

// userBlocks reads a message of the user: a new request, or results of tools, which may be accompanied by text.
func (c *conversation) userBlocks(at string, m *content, open map[string]string) error {
	text := m.text()
	c.textBytes += int64(len(text))
	results := 0
	for _, p := range m.parts {
		if p.Type != "tool_result" {
			continue
		}
		name, ok := open[p.ToolUseID]
		if !ok {
			return invalid(at+".content", "unexpected `tool_use_id` found in `tool_result` blocks: %.80s", p.ToolUseID)
		}
		delete(open, p.ToolUseID)
		results++
		c.textBytes += int64(len(p.Content.text()))
		c.addResult(result{name, p.Content.text()})
	}
	if len(open) > 0 {
		return invalid(at, "`tool_use` ids were found without `tool_result` blocks immediately after")
	}
	if results == 0 {
		c.startMessage(text)
	}
	return nil
}

// assistantBlocks reads a message of the model and returns its calls by id.
func (c *conversation) assistantBlocks(m *content) map[string]string {
	c.textBytes += int64(len(m.text()))
	calls := map[string]string{}
	for _, p := range m.parts {
		if p.Type == "tool_use" {
			calls[p.ID] = p.Name
			c.textBytes += int64(len(p.Name) + len(p.Input))
		}
	}
	if len(calls) > 0 {
		c.rounds = append(c.rounds, nil)
	}
	return calls
}

// count answers a request to count tokens (count_tokens).
func (m *Model) count(w http.ResponseWriter, r *http.Request, body []byte) error {
	if err := checkVersion(r.Header); err != nil {
		return err
	}
	c, req, err := readMessages(body)
	if err != nil {
		return err
	}
	if req.MaxTokens != nil || req.Stream {
		return invalid("max_tokens", "Extra inputs are not permitted")
	}
	if err := m.checkModel(c.model); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, object{"input_tokens": estimateTokens(c.textBytes)})
	return nil
}

// messagesFormatter formats answers for Anthropic's messages API.
type messagesFormatter struct{ *answer }

// finishReason returns Anthropic's name of the finish reason.
func (f messagesFormatter) finishReason() string {
	return map[string]string{finishStop: "end_turn", finishLength: "max_tokens", finishTool: "tool_use", finishFilter: "refusal"}[f.finish]
}

// usageObject returns the usage with the given number of output tokens.
func (f messagesFormatter) usageObject(output int64) object {
	return object{
		"input_tokens": f.tokens.Input, "output_tokens": output, "service_tier": "standard",
		"cache_read_input_tokens": f.tokens.CacheRead, "cache_creation_input_tokens": f.tokens.CacheWrite,
		"cache_creation": object{"ephemeral_5m_input_tokens": f.tokens.CacheWrite, "ephemeral_1h_input_tokens": 0},
	}
}

// message returns a message with the given blocks, reason for its end (nil if it has not ended), and number of output tokens.
func (f messagesFormatter) message(blocks []any, stop any, output int64) object {
	out := object{
		"id": "msg_" + f.id, "type": "message", "role": "assistant", "model": f.model, "content": blocks, "stop_reason": stop, "stop_sequence": nil,
	}
	if !f.turn.Silent {
		out["usage"] = f.usageObject(output)
	}
	return out
}

// whole returns the answer as a message.
func (f messagesFormatter) whole() any {
	blocks := []any{}
	if f.text != "" {
		blocks = append(blocks, object{"type": "text", "text": f.text, "citations": nil})
	}
	for i, c := range f.calls {
		blocks = append(blocks, object{"type": "tool_use", "id": f.callID("toolu", i), "name": c.Name, "input": json.RawMessage(c.Arguments)})
	}
	return f.message(blocks, f.finishReason(), f.tokens.Output)
}

// namedEvent returns an event whose name is its type.
func namedEvent(data object) event { return event{data["type"].(string), data} }

// start returns the event that begins the block with the given index.
func (f messagesFormatter) start(index int, block object) event {
	return namedEvent(object{"type": "content_block_start", "index": index, "content_block": block})
}

// delta returns the event with a piece of a block.
func (f messagesFormatter) delta(index int, delta object) event {
	return namedEvent(object{"type": "content_block_delta", "index": index, "delta": delta})
}

// stop returns the event that ends a block.
func (f messagesFormatter) stop(index int) event {
	return namedEvent(object{"type": "content_block_stop", "index": index})
}

// stream sends the answer as the events of a message.
func (f messagesFormatter) stream(s *sender) {
	s.emit(namedEvent(object{"type": "message_start", "message": f.message([]any{}, nil, 1)}), namedEvent(object{"type": "ping"}))
	index := 0 // index of the block
	if f.text != "" {
		s.emit(f.start(index, object{"type": "text", "text": "", "citations": nil}))
		s.send(f.text, func(piece string) event { return f.delta(index, object{"type": "text_delta", "text": piece}) })
		s.emit(f.stop(index))
		index++
	}
	for i, c := range f.calls {
		s.emit(f.start(index, object{"type": "tool_use", "id": f.callID("toolu", i), "name": c.Name, "input": object{}}))
		s.send(c.Arguments, func(piece string) event {
			return f.delta(index, object{"type": "input_json_delta", "partial_json": piece})
		})
		s.emit(f.stop(index))
		index++
	}
	s.settle()
	last := object{"type": "message_delta", "delta": object{"stop_reason": f.finishReason(), "stop_sequence": nil}}
	if !f.turn.Silent {
		last["usage"] = f.usageObject(f.tokens.Output)
	}
	s.emit(namedEvent(last), namedEvent(object{"type": "message_stop"}))
}

// failed returns the event of an error within a stream.
func (f messagesFormatter) failed() event {
	return event{"error", (&apiError{status: 529, message: "Overloaded"}).format(styleAnthropic)}
}
