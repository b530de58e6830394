package coder

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/caisson-dev/caisson"
)

// anthropic implements Anthropic's Messages API.
type anthropic struct{}

// anthropicRequest is the body of a request to Anthropic's API.
type anthropicRequest struct {
	Model      string             `json:"model"`                 // alias of the model
	MaxTokens  int64              `json:"max_tokens"`            // maximum number of tokens of the answer
	System     []block            `json:"system,omitempty"`      // text of the system message
	Messages   []anthropicMessage `json:"messages"`              // the conversation without the system message
	Tools      []anthropicTool    `json:"tools,omitempty"`       // tools that the model may call
	ToolChoice *typeObject        `json:"tool_choice,omitempty"` // "none" if the model must not call tools
	Stream     bool               `json:"stream"`                // the answer is to be streamed
}

// typeObject is a JSON object whose only field is "type": whether the model may call tools, or how a prefix is cached.
type typeObject struct {
	Type string `json:"type"`
}

// anthropicTool is the description of a tool in a request to Anthropic's API.
type anthropicTool struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Schema      raw    `json:"input_schema"` // JSON schema of the tool's arguments
}

// anthropicMessage is a message of the conversation in a request to Anthropic's API.
type anthropicMessage struct {
	Role    string  `json:"role"`
	Content []block `json:"content"`
}

// block is a part of a message, with the fields of all types that the agent sends or reads.
type block struct {
	Type      string      `json:"type"`                    // type of the block, such as text, thinking or tool_use
	Text      string      `json:"text,omitempty"`          // text of a text block
	Thinking  *string     `json:"thinking,omitempty"`      // text of a thinking block; may be present and empty
	Signature string      `json:"signature,omitempty"`     // signature of a thinking block
	Data      string      `json:"data,omitempty"`          // content of a redacted_thinking block
	ID        string      `json:"id,omitempty"`            // id of the tool call in a tool_use block
	Name      string      `json:"name,omitempty"`          // name of the tool in a tool_use block
	Input     raw         `json:"input,omitempty"`         // arguments of the call in a tool_use block
	ToolUseID string      `json:"tool_use_id,omitempty"`   // id of the call in a tool_result block
	Content   string      `json:"content,omitempty"`       // result of the tool in a tool_result block
	Cache     *typeObject `json:"cache_control,omitempty"` // cacheMark if the provider is to cache all blocks up to this one
}

// cacheMark marks the end of a prefix that the next request repeats: the provider caches it and charges it in full only once.
var cacheMark = &typeObject{"ephemeral"}

// request implements [api]: it returns the path, the additional headers and the body, an anthropicRequest.
func (anthropic) request(q *modelRequest) (string, http.Header, any) {
	system, talk := splitSystem(q.talk)
	req := anthropicRequest{Model: q.model, MaxTokens: maxOutput, Stream: true}
	if system != "" {
		req.System = []block{{Type: "text", Text: system, Cache: cacheMark}}
	}
	for _, m := range talk {
		blocks, role := messageBlocks(m), roleUser
		if m.Role == roleAssistant {
			role = roleAssistant
		}
		// The results of all tool calls of one answer go into one message.
		if last := len(req.Messages) - 1; m.Role == roleTool && last >= 0 && req.Messages[last].Content[0].Type == "tool_result" {
			req.Messages[last].Content = append(req.Messages[last].Content, blocks...)
		} else {
			req.Messages = append(req.Messages, anthropicMessage{role, blocks})
		}
	}
	if n := len(req.Messages); n > 0 {
		last := req.Messages[n-1].Content
		last[len(last)-1].Cache = cacheMark
	}
	for _, t := range q.tools {
		req.Tools = append(req.Tools, anthropicTool{t.Name, t.Description, t.Parameters})
	}
	if q.toolsOff && q.tools != nil {
		req.ToolChoice = &typeObject{"none"}
	}
	return "/v1/messages", http.Header{"Anthropic-Version": {"2023-06-01"}}, req
}

// messageBlocks returns the content of a message as blocks: at least one, because messages without content are dropped before.
func messageBlocks(m message) (blocks []block) {
	if m.Role == roleTool {
		return []block{{Type: "tool_result", ToolUseID: toolUseID(m.ToolCallID), Content: m.Content}}
	}
	for _, b := range m.thoughts {
		// The API refuses thinking blocks without a signature, which truncated answers have.
		if b.Type != "thinking" || b.Signature != "" {
			blocks = append(blocks, b)
		}
	}
	if strings.TrimSpace(m.Content) != "" {
		blocks = append(blocks, block{Type: "text", Text: m.Content})
	}
	for _, c := range m.ToolCalls {
		blocks = append(blocks, block{Type: "tool_use", ID: toolUseID(c.ID), Name: sanitizeName(c.Function.Name), Input: argumentsObject(c.Function.Arguments)})
	}
	return blocks
}

// toolUseID returns the id of a tool call in the form that Anthropic's API accepts. The call may be from a model of another API.
func toolUseID(id string) string {
	if sanitizeName(id) == id {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "call_" + hex.EncodeToString(sum[:12])
}

// anthropicEvent is one event of a streamed answer of Anthropic's API, or a whole answer that was not streamed.
type anthropicEvent struct {
	Type    string    `json:"type"`  // type of the event; "message" for a whole answer
	Index   int       `json:"index"` // index of the block that the event is about
	Message *struct { // in an event message_start: the answer without its content
		Usage *anthropicUsage `json:"usage"`
	} `json:"message"`
	Block *block    `json:"content_block"` // in an event content_block_start: the block that begins
	Delta *struct { // in events content_block_delta and message_delta: the next part of a block, or of the answer
		Type       string `json:"type"`
		Text       string `json:"text"`
		Thinking   string `json:"thinking"`
		Signature  string `json:"signature"`
		JSON       string `json:"partial_json"`
		StopReason string `json:"stop_reason"`
	} `json:"delta"`
	Usage      *anthropicUsage `json:"usage"`       // numbers of tokens of the request and the answer
	Content    []block         `json:"content"`     // of a whole answer: its blocks
	StopReason string          `json:"stop_reason"` // of a whole answer: the reason for which it ended
}

// anthropicUsage has the token counts in an event. The counts in an event include those of the earlier events of the stream.
type anthropicUsage struct {
	Input      *int64 `json:"input_tokens"`
	Output     *int64 `json:"output_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
}

// add implements [api]: it adds data, an anthropicEvent as JSON, to r and returns the text in data.
func (anthropic) add(r *reply, data []byte) (string, error) {
	var e anthropicEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return "", fmt.Errorf("an event is no answer of a model: %w", err)
	}
	switch e.Type {
	case "error":
		return "", parseFailure(0, data)
	case "message_start":
		if e.Message != nil {
			r.addUsage(e.Message.Usage)
		}
	case "content_block_start":
		if e.Block != nil {
			return r.beginBlock(e.Index, e.Block)
		}
	case "content_block_delta":
		return r.addDelta(&e)
	case "message_delta":
		r.addUsage(e.Usage)
		if e.Delta != nil {
			r.setFinish(e.Delta.StopReason)
		}
	case "message_stop":
		r.done = true
	case "message":
		var all strings.Builder
		for i := range e.Content {
			text, err := r.beginBlock(i, &e.Content[i])
			if err != nil {
				return "", err
			}
			all.WriteString(text)
		}
		r.addUsage(e.Usage)
		r.setFinish(e.StopReason)
		return all.String(), nil
	}
	return "", nil // pings and unknown events are ignored
}

// beginBlock handles the start of a block, or a whole block, and returns the text in it.
func (r *reply) beginBlock(index int, b *block) (string, error) {
	switch b.Type {
	case "text":
		return r.addText(b.Text)
	case "tool_use":
		if r.blocks[index] > 0 {
			return "", fmt.Errorf("block %d of an answer begins twice", index)
		}
		at := len(r.calls)
		c, err := r.call(at)
		if err != nil {
			return "", err
		}
		r.setBlock(index, at+1)
		c.ID, c.Function.Name = b.ID, b.Name
		if s := string(b.Input); s != "{}" && s != "null" { // in a stream, the input is empty here and follows in deltas
			c.Function.Arguments = strings.ToValidUTF8(s, "\uFFFD")
		}
		return "", c.check()
	case "thinking", "redacted_thinking":
		r.setBlock(index, -len(r.thoughts)-1)
		r.thoughts = append(r.thoughts, block{Type: b.Type, Thinking: b.Thinking, Signature: b.Signature, Data: b.Data})
		return "", r.addThoughts(b.size())
	}
	return "", nil
}

// size returns the approximate size of a thinking block in a request, in bytes.
func (b *block) size() int {
	n := len(b.Signature) + len(b.Data) + 64
	if b.Thinking != nil {
		n += len(*b.Thinking)
	}
	return n
}

// setBlock records what the block at index is: the call r.calls[at-1] if at is positive, or else the thought r.thoughts[-at-1].
func (r *reply) setBlock(index, at int) {
	if r.blocks == nil {
		r.blocks = map[int]int{}
	}
	r.blocks[index] = at
}

// addDelta handles an event with the next part of a block, and returns the text in it.
func (r *reply) addDelta(e *anthropicEvent) (string, error) {
	d, at := e.Delta, r.blocks[e.Index]
	switch {
	case d == nil:
	case d.Type == "text_delta":
		return r.addText(d.Text)
	case d.Type == "input_json_delta":
		if at <= 0 {
			return "", fmt.Errorf("an event refers to the call in block %d, which has not begun", e.Index)
		}
		c := &r.calls[at-1]
		c.Function.Arguments += strings.ToValidUTF8(d.JSON, "\uFFFD")
		return "", c.check()
	case at < 0: // the delta belongs to a thinking block
		b := &r.thoughts[-at-1]
		if b.Thinking != nil {
			*b.Thinking += d.Thinking
		}
		b.Signature += d.Signature
		return "", r.addThoughts(len(d.Thinking) + len(d.Signature))
	}
	return "", nil
}

// setFinish stores the reason for which an answer ended, as named by Anthropic's API; "" means that it has not ended.
func (r *reply) setFinish(reason string) {
	switch reason {
	case "":
	case "max_tokens", "model_context_window_exceeded":
		r.finish = finishLength
	case "tool_use":
		r.finish = finishCalls
	case "refusal":
		r.finish = finishFilter
	default:
		r.finish = finishStop
	}
}

// addUsage stores the token counts in an event; u is nil if the event has none.
func (r *reply) addUsage(u *anthropicUsage) {
	if u == nil {
		return
	}
	if r.usage == nil {
		r.usage = &caisson.TokenCount{}
	}
	t := r.usage
	for to, n := range map[*int64]*int64{&t.Input: u.Input, &t.Output: u.Output, &t.CacheRead: u.CacheRead, &t.CacheWrite: u.CacheWrite} {
		if n != nil {
			*to = max(*to, boundedCount(*n))
		}
	}
	r.prompt = t.Input + t.CacheRead + t.CacheWrite
}
