package coder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/caisson-dev/caisson"
)

// openAI implements OpenAI's chat completions API, which many other providers offer too.
type openAI struct{}

// chatRequest is the body of a request to OpenAI's API.
type chatRequest struct {
	Model      string     `json:"model"`                 // alias of the model
	Messages   []message  `json:"messages"`              // the conversation
	Tools      []chatTool `json:"tools,omitempty"`       // tools that the model may call
	ToolChoice string     `json:"tool_choice,omitempty"` // "none" if the model must not call tools
	Stream     bool       `json:"stream"`                // the answer is to be streamed
	Options    struct {   // options of the streamed answer
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// chatTool is the description of a tool in a chatRequest.
type chatTool struct {
	Type     string     `json:"type"` // always "function"
	Function definition `json:"function"`
}

// request implements [api]: it returns the path, the additional headers and the body, a chatRequest.
func (openAI) request(q *modelRequest) (string, http.Header, any) {
	req := chatRequest{Model: q.model, Messages: q.talk, Stream: true}
	req.Options.Usage = true
	for _, d := range q.tools {
		req.Tools = append(req.Tools, chatTool{"function", d})
	}
	if q.toolsOff && q.tools != nil {
		req.ToolChoice = "none"
	}
	return "/v1/chat/completions", nil, req
}

// chunk is one event of a stream, whose choices have deltas, or a whole answer, whose choices have messages instead.
type chunk struct {
	Error   raw        `json:"error"` // the error, if the call has failed
	Choices []struct { // the answers, of which only the first one is read
		Delta   *delta  `json:"delta"`
		Message *delta  `json:"message"`
		Finish  *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct { // numbers of tokens of the request and the answer
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Details    *struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// delta is a part of a streamed answer of OpenAI's API, or a whole answer.
type delta struct {
	Content   raw         `json:"content"`           // text of the answer: a string, or a list of parts
	Refusal   string      `json:"refusal"`           // text with which the model refuses to answer
	Reasoning string      `json:"reasoning_content"` // the model's reasoning before the answer
	ToolCalls []callDelta `json:"tool_calls"`        // parts of tool calls
}

// callDelta is a part of a tool call, or a whole tool call.
type callDelta struct {
	Index    *int     `json:"index"` // index of the call in the answer; nil if the server does not send it
	ID       string   `json:"id"`    // id of the call; "" if an earlier part had it
	Function struct { // name of the tool, and the next part of its arguments
		Name      string `json:"name"`
		Arguments raw    `json:"arguments"`
	} `json:"function"`
	Extra raw `json:"extra_content"` // signatures of thoughts, which some models require in later requests
}

// contentText returns the text of content: a string, or a list of parts, of which the text parts are joined.
func contentText(content raw) (string, error) {
	var s string
	if len(content) == 0 || content[0] != '[' {
		if len(content) == 0 {
			return "", nil
		}
		return s, json.Unmarshal(content, &s)
	}
	var parts []struct {
		Type string `json:"type"`
		Text raw    `json:"text"`
	}
	if err := json.Unmarshal(content, &parts); err != nil {
		return "", err
	}
	var all strings.Builder
	for _, p := range parts {
		if p.Type != "text" {
			continue
		}
		if err := json.Unmarshal(p.Text, &s); err != nil {
			return "", err
		}
		all.WriteString(s)
	}
	return all.String(), nil
}

// add implements [api]: it adds data, a chunk as JSON or "[DONE]" at the end of a stream, to r and returns the text in data.
func (openAI) add(r *reply, data []byte) (string, error) {
	if string(data) == "[DONE]" {
		r.done = true
		return "", nil
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return "", fmt.Errorf("an event is no answer of a model: %w", err)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return "", parseFailure(0, data)
	}
	if u := c.Usage; u != nil {
		t := caisson.TokenCount{Input: max(0, u.Prompt), Output: max(0, u.Completion)}
		r.prompt = t.Input
		if u.Details != nil {
			t.CacheRead = min(max(0, u.Details.Cached), t.Input)
			t.Input -= t.CacheRead
		}
		r.usage = &t
	}
	if len(c.Choices) == 0 {
		return "", nil
	}
	choice := c.Choices[0]
	if choice.Finish != nil && *choice.Finish != "" {
		r.finish = *choice.Finish
	}
	d := choice.Delta
	if choice.Message != nil {
		d = choice.Message
	}
	if d == nil {
		return "", nil
	}
	return r.addChunk(d)
}

// addChunk adds a delta to the answer, and returns the text in the delta.
func (r *reply) addChunk(d *delta) (string, error) {
	text, err := contentText(d.Content)
	if err != nil {
		return "", fmt.Errorf("the content of an answer is no text: %w", err)
	}
	if text, err = r.addText(text); err != nil {
		return "", err
	}
	r.refusal.WriteString(d.Refusal)
	r.reasoning.WriteString(d.Reasoning)
	if err := r.addThoughts(len(d.Reasoning)); err != nil || r.refusal.Len() > maxAnswer {
		return "", errTooLong
	}
	for i, piece := range d.ToolCalls {
		if err := r.takeCall(i, piece); err != nil {
			return "", err
		}
	}
	return text, nil
}

// takeCall adds a part of a tool call to the answer. A part with neither an index nor an id belongs to the last call. at, the
// position of the part in the delta, is used as the index if there is no other.
func (r *reply) takeCall(at int, piece callDelta) error {
	if piece.Index != nil {
		at = *piece.Index
	} else if len(r.calls) > 0 && piece.ID == "" {
		at = len(r.calls) - 1
	}
	// A different id begins a new call, because some servers give all calls of an answer the same index.
	if at >= 0 && at < len(r.calls) && piece.ID != "" && r.calls[at].ID != "" && piece.ID != r.calls[at].ID {
		at = len(r.calls)
	}
	c, err := r.call(at)
	if err != nil {
		return err
	}
	if piece.ID != "" {
		c.ID = piece.ID
	}
	if c.Function.Name == "" { // some servers repeat the name in every part of a call
		c.Function.Name = piece.Function.Name
	}
	if len(piece.Extra) > 0 {
		c.Extra = bytes.ToValidUTF8(piece.Extra, []byte("\uFFFD"))
	}
	arguments := string(piece.Function.Arguments)
	if strings.HasPrefix(arguments, `"`) {
		if err := json.Unmarshal(piece.Function.Arguments, &arguments); err != nil {
			return err
		}
	} else if arguments == "null" {
		arguments = ""
	}
	c.Function.Arguments += strings.ToValidUTF8(arguments, "\uFFFD")
	return c.check()
}
