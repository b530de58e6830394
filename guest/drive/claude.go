package drive

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/caisson-dev/caisson"
)

// claude parses the output of "claude -p --output-format stream-json --verbose", with or without --include-partial-messages, and
// of Qwen Code with the same flags.
type claude struct{}

// reportsEnd implements [dialect]: a line of type result ends the turn.
func (*claude) reportsEnd() bool { return true }

// claudeBlock is a block of a message, with those fields of all types of blocks that the driver uses.
type claudeBlock struct {
	Type      string          `json:"type"`        // type of the block, such as text, tool_use or tool_result
	Text      string          `json:"text"`        // text of a text block
	ID        string          `json:"id"`          // id of a tool call
	Name      string          `json:"name"`        // name of the called tool
	Input     json.RawMessage `json:"input"`       // arguments of a tool call
	ToolUseID string          `json:"tool_use_id"` // of a tool_result: id of the call
	Content   json.RawMessage `json:"content"`     // of a tool_result: the result
	IsError   bool            `json:"is_error"`    // of a tool_result: the call has failed
}

// claudeLine is a line of output, with those fields of all types of lines that the driver uses.
type claudeLine struct {
	Type    string    `json:"type"`                // type of the line, such as assistant or result
	Subtype string    `json:"subtype"`             // further division of some types, such as success for the type result
	Parent  *string   `json:"parent_tool_use_id"`  // not nil for messages of a sub-agent, which are not part of the answer
	Version string    `json:"claude_code_version"` // version of Claude Code
	Qwen    string    `json:"qwen_code_version"`   // version of the program, if it is Qwen Code
	Message *struct { // of a line with a whole message: the message
		Content json.RawMessage `json:"content"`
	} `json:"message"`
	Error json.RawMessage `json:"error"` // of a line with a message that has failed: the error
	Event *struct {       // of a line with a part of a message: the part
		Type  string       `json:"type"`
		Block *claudeBlock `json:"content_block"`
		Delta *struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"delta"`
	} `json:"event"`
	claudeResult
}

// claudeResult has the fields of the line that ends a turn.
type claudeResult struct {
	Result string    `json:"result"`           // the answer, or the message of an error
	Failed bool      `json:"is_error"`         // the turn has failed
	Errors []string  `json:"errors"`           // messages of the errors that made the turn fail
	Status int       `json:"api_error_status"` // HTTP status of a failed model call
	Turns  int64     `json:"num_turns"`        // number of model calls
	Cost   float64   `json:"total_cost_usd"`   // cost of all model calls, in dollars
	Usage  *struct { // numbers of tokens; used if Models is empty
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
		Read   int64 `json:"cache_read_input_tokens"`
		Write  int64 `json:"cache_creation_input_tokens"`
	} `json:"usage"`
	Models map[string]struct { // numbers of tokens, by model
		Input  int64 `json:"inputTokens"`
		Output int64 `json:"outputTokens"`
		Read   int64 `json:"cacheReadInputTokens"`
		Write  int64 `json:"cacheCreationInputTokens"`
	} `json:"modelUsage"`
}

// line implements [dialect]: it updates s with one line, and reports whether Claude Code or Qwen Code writes lines of its type.
func (c *claude) line(raw []byte, s *turnState) bool {
	var l claudeLine
	if json.Unmarshal(raw, &l) != nil {
		return false
	}
	switch l.Type {
	case "system":
		s.version = cmp.Or(l.Version, l.Qwen, s.version)
		switch l.Subtype {
		case "init":
			s.out.Status("running", "")
		case "compact_boundary":
			s.out.Status("compacting", "")
		case "api_retry":
			s.out.Status("warning", "a model call is being retried")
		}
	case "stream_event":
		if l.Event != nil && l.Parent == nil {
			c.event(&l, s)
		}
	case "assistant":
		if l.Message != nil {
			c.message(&l, s)
		}
	case "user":
		if l.Message != nil {
			for _, b := range claudeBlocks(l.Message.Content) {
				if b.Type == "tool_result" {
					s.toolResult(b.ToolUseID, joinTexts(b.Content), b.IsError)
				}
			}
		}
	case "result":
		c.result(&l, s)
	case "control_request", "control_response", "rate_limit_event", "tool_progress", "tool_use_summary", "auth_status", "prompt_suggestion":
	default:
		return false
	}
	return true
}

// claudeBlocks returns the blocks in the content of a message; nil if the content is a string.
func claudeBlocks(raw json.RawMessage) []claudeBlock {
	var blocks []claudeBlock
	if json.Unmarshal(raw, &blocks) != nil {
		return nil // the content is a string, as in messages of the user, and has no blocks
	}
	return blocks
}

// event handles a line with a part of a message.
func (*claude) event(l *claudeLine, s *turnState) {
	switch e := l.Event; e.Type {
	case "content_block_start":
		if e.Block != nil && e.Block.Type == "thinking" {
			s.out.Status("thinking", "")
		}
	case "content_block_delta":
		if e.Delta != nil && e.Delta.Type == "text_delta" {
			s.answer.Delta(e.Delta.Text)
		}
	}
}

// message handles a line with a whole message, whose text may have been streamed in parts before.
func (*claude) message(l *claudeLine, s *turnState) {
	// The text of a failed message is the error, which the line that ends the turn repeats.
	failed := len(l.Error) > 0 && string(l.Error) != "null"
	for _, b := range claudeBlocks(l.Message.Content) {
		switch {
		case b.Type == "text" && l.Parent == nil && !failed:
			s.answer.Message(b.Text)
		case b.Type == "thinking" && l.Parent == nil:
			s.out.Status("thinking", "")
		case b.Type == "tool_use":
			s.toolStart(b.ID, b.Name, b.Input)
		}
	}
}

// result handles the line that ends the turn.
func (*claude) result(l *claudeLine, s *turnState) {
	r := &l.claudeResult
	u := caisson.RunUsage{Calls: r.Turns, Cost: dollars(r.Cost)}
	for _, m := range r.Models {
		u.Tokens.Input += m.Input
		u.Tokens.Output += m.Output
		u.Tokens.CacheRead += m.Read
		u.Tokens.CacheWrite += m.Write
	}
	if len(r.Models) == 0 && r.Usage != nil {
		u.Tokens = caisson.TokenCount{Input: r.Usage.Input, Output: r.Usage.Output, CacheRead: r.Usage.Read, CacheWrite: r.Usage.Write}
	}
	s.report(u)
	s.done, s.err = true, nil
	if l.Subtype == "success" && !r.Failed {
		s.answer.Final(r.Result)
		return
	}
	s.err = newAgentError(cmp.Or(strings.Join(r.Errors, "\n"), r.Result, errorText(l.Error), "the agent has ended with "+l.Subtype))
	switch r.Status {
	case 402:
		s.err.Code = caisson.RunNoCredits
	case 429:
		s.err.Code = caisson.RunRateLimit
	}
}

// errorText returns the message of an error in JSON; "" if raw is empty or has no message.
func errorText(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return ""
	}
	return errorMessage(v)
}
