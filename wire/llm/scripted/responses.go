package scripted

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// responsesFields are the fields of a request of OpenAI's responses API; others are refused.
var responsesFields = []string{
	"background", "context_management", "conversation", "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model",
	"moderation", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options",
	"prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream", "stream_options", "temperature", "text",
	"tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
}

// responsesRequest is the body of a request of OpenAI's responses API, with those of its fields that are read.
type responsesRequest struct {
	Model              string          `json:"model"`
	Instructions       string          `json:"instructions"`
	Input              json.RawMessage `json:"input"`
	MaxOutputTokens    *int64          `json:"max_output_tokens"`
	PreviousResponseID string          `json:"previous_response_id"`
	Stream             bool            `json:"stream"`
	Tools              []struct {
		Type        string `json:"type"`
		Name        string `json:"name"`
		Description string `json:"description"`
	} `json:"tools"`
}

// item is an item in the input of a responses request.
type item struct {
	Type      string   `json:"type"`
	Role      string   `json:"role"`
	Content   *content `json:"content"`
	CallID    string   `json:"call_id"`
	Name      string   `json:"name"`
	Arguments string   `json:"arguments"`
	Output    *content `json:"output"`
}

const minOutput = 16 // the least max_output_tokens that OpenAI's responses API accepts

func parseResponses(body []byte) (*conversation, error) {
	var req responsesRequest
	if err := decode(body, responsesFields, &req); err != nil {
		return nil, err
	}
	c := &conversation{model: req.Model, stream: req.Stream, tools: map[string]bool{}, textBytes: int64(len(req.Instructions))}
	switch {
	case req.Model == "":
		return nil, invalid("model", "you must provide a model parameter")
	case req.PreviousResponseID != "":
		return nil, &apiError{
			status: http.StatusNotFound, message: "Previous response not found; nothing is kept", param: "previous_response_id", code: "previous_response_not_found",
		}
	case len(req.Input) == 0:
		return nil, invalid("input", "is required")
	case req.MaxOutputTokens != nil && *req.MaxOutputTokens < minOutput:
		return nil, invalid("max_output_tokens", "must be at least %d", minOutput)
	}
	if req.MaxOutputTokens != nil {
		c.limit = *req.MaxOutputTokens
	}
	for _, t := range req.Tools {
		c.tools[t.Name] = true
		c.textBytes += int64(len(t.Name) + len(t.Description))
	}
	var text string
	if json.Unmarshal(req.Input, &text) == nil && string(req.Input) != "null" {
		c.textBytes += int64(len(text))
		c.startMessage(text)
		return c, nil
	}
	var items []item
	if err := json.Unmarshal(req.Input, &items); err != nil || len(items) == 0 {
		return nil, invalid("input", "is neither text nor a list of items")
	}
	return c, c.items(items)
}

// items reads the items of a request's input. Adjacent calls of tools form one round: they count as calls in the same answer.
func (c *conversation) items(items []item) error {
	names := map[string]string{} // names of the calls that can be answered, by id
	calling := false
	for i, it := range items {
		at := fmt.Sprintf("input[%d]", i)
		if it.Type != "function_call" {
			calling = false
		}
		switch it.Type {
		case "", "message":
			text := it.Content.text()
			c.textBytes += int64(len(text))
			switch it.Role {
			case "user":
				c.startMessage(text)
			case "assistant", "system", "developer":
			default:
				return invalid(at+".role", "%.40q is not a role", it.Role)
			}
		case "function_call":
			if it.CallID == "" || it.Name == "" {
				return invalid(at, "a call needs call_id and name")
			}
			names[it.CallID] = it.Name
			c.textBytes += int64(len(it.Name) + len(it.Arguments))
			if !calling {
				c.rounds = append(c.rounds, nil)
			}
			calling = true
		case "function_call_output":
			name, ok := names[it.CallID]
			if !ok {
				return invalid(at+".call_id", "no tool call found for function call output with call_id %.80s", it.CallID)
			}
			delete(names, it.CallID)
			c.textBytes += int64(len(it.Output.text()))
			c.addResult(result{name, it.Output.text()})
		}
	}
	if len(names) > 0 {
		return invalid("input", "no tool output found for a function call")
	}
	return nil
}

// responsesFormatter formats answers for the responses API.
type responsesFormatter struct {
	*answer
	sequence int // sequence number of the next event
}

// event returns an event with the next sequence number.
func (f *responsesFormatter) event(kind string, fields object) event {
	fields["type"], fields["sequence_number"] = kind, f.sequence
	f.sequence++
	return event{kind, fields}
}

// response returns the response object with the given status and output.
func (f *responsesFormatter) response(status string, output []any) object {
	out := object{
		"id": "resp_" + f.id, "object": "response", "created_at": created, "status": status, "background": false, "error": nil,
		"incomplete_details": nil, "instructions": nil, "max_output_tokens": nil, "model": f.model, "output": output,
		"parallel_tool_calls": true, "previous_response_id": nil, "reasoning": object{"effort": nil, "summary": nil}, "service_tier": "default",
		"store": false, "temperature": 1, "text": object{"format": object{"type": "text"}}, "tool_choice": "auto", "tools": []any{},
		"top_p": 1, "truncation": "disabled", "usage": nil, "user": nil, "metadata": object{},
	}
	if f.limit > 0 {
		out["max_output_tokens"] = f.limit
	}
	return out
}

// done returns the response object of the complete answer, and the status of its last item.
func (f *responsesFormatter) done() (response object, status string) {
	status = "completed"
	reason, incomplete := map[string]string{finishLength: "max_output_tokens", finishFilter: "content_filter"}[f.finish]
	if incomplete {
		status = "incomplete"
	}
	output := []any{}
	if f.text != "" {
		output = append(output, f.message(f.text, status))
	}
	for i := range f.calls {
		output = append(output, f.call(i, f.calls[i].Arguments, status))
	}
	response = f.response(status, output)
	if incomplete {
		response["incomplete_details"] = object{"reason": reason}
	}
	if !f.turn.Silent {
		t := f.tokens
		response["usage"] = object{
			"input_tokens": t.Input + t.CacheRead + t.CacheWrite, "input_tokens_details": object{"cached_tokens": t.CacheRead},
			"output_tokens": t.Output, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": t.Total(),
		}
	}
	return response, status
}

// whole returns the answer as a response object.
func (f *responsesFormatter) whole() any {
	response, _ := f.done()
	return response
}

func (f *responsesFormatter) messageID() string { return "msg_" + f.id }

// message returns the item with the text of the answer.
func (f *responsesFormatter) message(text, status string) object {
	parts := []any{}
	if text != "" {
		parts = append(parts, textPart(text))
	}
	return object{"type": "message", "id": f.messageID(), "status": status, "role": "assistant", "content": parts}
}

func textPart(text string) object {
	return object{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

// call returns the item for the i-th call.
func (f *responsesFormatter) call(i int, arguments, status string) object {
	return object{
		"type": "function_call", "id": f.callID("fc", i), "call_id": f.callID("call", i), "name": f.calls[i].Name, "arguments": arguments, "status": status,
	}
}

// stream sends the answer as events of the responses API.
func (f *responsesFormatter) stream(s *sender) {
	s.emit(
		f.event("response.created", object{"response": f.response("in_progress", []any{})}),
		f.event("response.in_progress", object{"response": f.response("in_progress", []any{})}),
	)
	response, status := f.done()
	index := 0 // index of the item
	if f.text != "" {
		f.streamText(s, status)
		index++
	}
	for i, c := range f.calls {
		s.emit(f.event("response.output_item.added", object{"output_index": index, "item": f.call(i, "", "in_progress")}))
		s.send(c.Arguments, func(piece string) event {
			return f.event("response.function_call_arguments.delta", object{"item_id": f.callID("fc", i), "output_index": index, "delta": piece})
		})
		s.emit(
			f.event("response.function_call_arguments.done", object{
				"item_id": f.callID("fc", i), "output_index": index, "name": c.Name, "arguments": c.Arguments,
			}),
			f.event("response.output_item.done", object{"output_index": index, "item": f.call(i, c.Arguments, status)}),
		)
		index++
	}
	s.settle()
	s.emit(f.event("response."+status, object{"response": response}))
}

// streamText sends the item with the text of the answer.
func (f *responsesFormatter) streamText(s *sender, status string) {
	at := func(fields object) object {
		fields["item_id"], fields["output_index"], fields["content_index"] = f.messageID(), 0, 0
		return fields
	}
	s.emit(
		f.event("response.output_item.added", object{"output_index": 0, "item": f.message("", "in_progress")}),
		f.event("response.content_part.added", at(object{"part": textPart("")})),
	)
	s.send(f.text, func(piece string) event {
		return f.event("response.output_text.delta", at(object{"delta": piece, "logprobs": []any{}}))
	})
	s.emit(
		f.event("response.output_text.done", at(object{"text": f.text, "logprobs": []any{}})),
		f.event("response.content_part.done", at(object{"part": textPart(f.text)})),
		f.event("response.output_item.done", object{"output_index": 0, "item": f.message(f.text, status)}),
	)
}

// failed returns the event of an error within a stream.
func (f *responsesFormatter) failed() event {
	return f.event("error", object{"code": "server_error", "message": "the server had an error while processing your request", "param": nil})
}
