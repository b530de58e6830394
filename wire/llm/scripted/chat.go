package scripted

import "fmt"

// chatFields are the fields of a request for a chat completion; others are refused.
var chatFields = []string{
	"messages", "model", "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
	"max_tokens", "metadata", "modalities", "moderation", "n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
	"prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier",
	"stop", "store", "stream", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
	"web_search_options",
}

// chatRequest is the body of a request of OpenAI's chat completions, with those of its fields that are read.
type chatRequest struct {
	Model               string        `json:"model"`
	Messages            []chatMessage `json:"messages"`
	MaxTokens           *int64        `json:"max_tokens"`
	MaxCompletionTokens *int64        `json:"max_completion_tokens"`
	N                   *int64        `json:"n"` // number of answers
	Stream              bool          `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Tools []struct {
		Type     string `json:"type"`
		Function struct {
			Name        string `json:"name"`
			Description string `json:"description"`
		} `json:"function"`
	} `json:"tools"`
}

// chatMessage is one message in a request of OpenAI's chat completions.
type chatMessage struct {
	Role       string   `json:"role"`
	Content    *content `json:"content"`
	ToolCallID string   `json:"tool_call_id"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

func parseChat(body []byte) (*conversation, error) {
	var req chatRequest
	if err := decode(body, chatFields, &req); err != nil {
		return nil, err
	}
	c := &conversation{model: req.Model, stream: req.Stream, tools: map[string]bool{}}
	switch {
	case req.Model == "":
		return nil, invalid("model", "you must provide a model parameter")
	case len(req.Messages) == 0:
		return nil, invalid("messages", "there must be at least one message")
	case req.N != nil && *req.N != 1:
		return nil, invalid("n", "a scripted model has one answer")
	case req.StreamOptions != nil && !req.Stream:
		return nil, invalid("stream_options", "is only allowed when stream is enabled")
	case req.MaxTokens != nil && req.MaxCompletionTokens != nil:
		return nil, invalid("max_tokens", "cannot be set together with max_completion_tokens")
	}
	c.usage = req.StreamOptions != nil && req.StreamOptions.IncludeUsage
	limit, param := req.MaxTokens, "max_tokens"
	if req.MaxCompletionTokens != nil {
		limit, param = req.MaxCompletionTokens, "max_completion_tokens"
	}
	var err error
	if c.limit, err = checkLimit(param, limit); err != nil {
		return nil, err
	}
	for _, t := range req.Tools {
		c.tools[t.Function.Name] = true
		c.textBytes += int64(len(t.Function.Name) + len(t.Function.Description))
	}
	return c, c.chatMessages(req.Messages)
}

// chatMessages reads the messages. A message with a tool's result must refer to a call in the assistant's message before it.
func (c *conversation) chatMessages(messages []chatMessage) error {
	names := map[string]string{} // names of the calls that can be answered, by id
	for i, m := range messages {
		at := fmt.Sprintf("messages[%d]", i)
		text := m.Content.text()
		c.textBytes += int64(len(text))
		empty := m.Content == nil || m.Content.null
		if m.Role != "tool" && m.Role != "assistant" && len(names) > 0 {
			return invalid(at, "an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'")
		}
		switch m.Role {
		case "system", "developer", "user":
			if empty {
				return invalid(at+".content", "must not be empty")
			}
			if m.Role == "user" {
				c.startMessage(text)
			}
		case "assistant":
			if empty && len(m.ToolCalls) == 0 {
				return invalid(at+".content", "an assistant message needs content or tool_calls")
			}
			clear(names)
			for _, call := range m.ToolCalls {
				names[call.ID] = call.Function.Name
				c.textBytes += int64(len(call.Function.Name) + len(call.Function.Arguments))
			}
			if len(m.ToolCalls) > 0 {
				c.rounds = append(c.rounds, nil)
			}
		case "tool":
			name, ok := names[m.ToolCallID]
			if !ok {
				return invalid(at+".tool_call_id", "messages with role 'tool' must be a response to a preceding message with 'tool_calls'")
			}
			delete(names, m.ToolCallID)
			c.addResult(result{name, text})
		default:
			return invalid(at+".role", "%.40q is not a role", m.Role)
		}
	}
	if len(names) > 0 {
		return invalid("messages", "an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'")
	}
	return nil
}

// chatFormatter formats answers as chat completions.
type chatFormatter struct{ *answer }

// finishReason returns OpenAI's name of the finish reason.
func (f chatFormatter) finishReason() string {
	return map[string]string{finishStop: "stop", finishLength: "length", finishTool: "tool_calls", finishFilter: "content_filter"}[f.finish]
}

// usageObject returns the usage. OpenAI's prompt tokens include cached ones.
func (f chatFormatter) usageObject() object {
	t := f.tokens
	return object{
		"prompt_tokens": t.Input + t.CacheRead + t.CacheWrite, "completion_tokens": t.Output, "total_tokens": t.Total(),
		"prompt_tokens_details": object{"cached_tokens": t.CacheRead, "audio_tokens": 0},
		"completion_tokens_details": object{
			"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
		},
	}
}

// whole returns the answer as a chat completion.
func (f chatFormatter) whole() any {
	message := object{"role": "assistant", "content": orNull(f.text), "refusal": nil, "annotations": []any{}}
	if len(f.calls) > 0 {
		calls := []any{}
		for i, c := range f.calls {
			calls = append(calls, object{
				"id": f.callID("call", i), "type": "function", "function": object{"name": c.Name, "arguments": c.Arguments},
			})
		}
		message["tool_calls"] = calls
	} else if f.text == "" {
		message["content"] = ""
	}
	out := object{
		"id": "chatcmpl-" + f.id, "object": "chat.completion", "created": created, "model": f.model,
		"choices":      []any{object{"index": 0, "message": message, "logprobs": nil, "finish_reason": f.finishReason()}},
		"service_tier": "default", "system_fingerprint": nil,
	}
	if !f.turn.Silent {
		out["usage"] = f.usageObject()
	}
	return out
}

// part returns a chunk of a stream with the given choices.
func (f chatFormatter) part(choices ...any) object {
	out := object{
		"id": "chatcmpl-" + f.id, "object": "chat.completion.chunk", "created": created, "model": f.model,
		"service_tier": "default", "system_fingerprint": nil, "choices": choices,
	}
	if f.usage {
		out["usage"] = nil
	}
	return out
}

// delta returns the event of a chunk with the given part of the message.
func (f chatFormatter) delta(delta object) event {
	return event{data: f.part(object{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": nil})}
}

// stream sends the answer as chunks of a chat completion.
func (f chatFormatter) stream(s *sender) {
	s.emit(f.delta(object{"role": "assistant", "content": "", "refusal": nil}))
	s.send(f.text, func(piece string) event { return f.delta(object{"content": piece}) })
	for i, c := range f.calls {
		s.emit(f.delta(object{"tool_calls": []any{object{
			"index": i, "id": f.callID("call", i), "type": "function", "function": object{"name": c.Name, "arguments": ""},
		}}}))
		s.send(c.Arguments, func(piece string) event {
			return f.delta(object{"tool_calls": []any{object{"index": i, "function": object{"arguments": piece}}}})
		})
	}
	s.settle()
	last := []event{{data: f.part(object{"index": 0, "delta": object{}, "logprobs": nil, "finish_reason": f.finishReason()})}}
	if f.usage && !f.turn.Silent {
		usage := f.part()
		usage["choices"], usage["usage"] = []any{}, f.usageObject()
		last = append(last, event{data: usage})
	}
	s.emit(append(last, event{})...)
}

// failed returns the event of an error within a stream.
func (f chatFormatter) failed() event {
	return event{data: (&apiError{status: 500, message: "the server had an error while processing your request"}).format(styleOpenAI)}
}
