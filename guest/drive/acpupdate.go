package drive

import (
	"cmp"
	"encoding/json"
	"fmt"
)

// acpUpdate is any update about a conversation in the Agent Client Protocol. Kind determines which other fields are set.
type acpUpdate struct {
	Kind string `json:"sessionUpdate"` // kind of the update, such as tool_call
	// Content is one block of a message, or the list of the results of a tool call, depending on Kind.
	Content json.RawMessage `json:"content"`
	Message string          `json:"messageId"` // id of the message that Content is a part of
	Entries []struct {      // steps of the agent's plan
		Status string `json:"status"`
	} `json:"entries"`
	acpTool
}

// acpTool describes a tool call in the Agent Client Protocol. An update has only the fields that have changed.
type acpTool struct {
	ID     string          `json:"toolCallId"` // id of the tool call
	Name   string          `json:"name"`       // name of the tool
	Title  string          `json:"title"`      // description of the call for users
	Sort   string          `json:"kind"`       // kind of the tool, such as edit
	Status string          `json:"status"`     // state of the call, such as in_progress
	Input  json.RawMessage `json:"rawInput"`   // arguments of the call
	Output json.RawMessage `json:"rawOutput"`  // result of the call
}

// acpCall is the state of a tool call that has not ended.
type acpCall struct {
	acpTool
	content  json.RawMessage // content of the last update of the call that had content
	reported bool            // the start of the call has been reported
}

// update reports what is new in an update about the conversation. Updates of unknown kinds are ignored.
func (c *acpClient) update(u *acpUpdate) {
	switch u.Kind {
	case "agent_message_chunk":
		var block struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(u.Content, &block) == nil {
			if u.Message != c.message {
				c.message = u.Message
				c.state.answer.EndMessage()
			}
			c.state.answer.Delta(block.Text)
		}
	case "agent_thought_chunk":
		c.state.out.Status("thinking", "")
	case "tool_call", "tool_call_update":
		c.tool(&u.acpTool, u.Content)
	case "plan":
		n := 0
		for _, e := range u.Entries {
			if e.Status == "completed" {
				n++
			}
		}
		c.state.out.Status("running", fmt.Sprintf("plan: %d of %d done", n, len(u.Entries)))
	}
}

// tool handles an update of a tool call. Agents may send the arguments in a later update, so the start of the call is reported
// only once its arguments are known or it is running.
func (c *acpClient) tool(news *acpTool, content json.RawMessage) {
	call := c.call(news)
	if call == nil {
		return
	}
	if hasValue(content) {
		call.content = content
	}
	if hasValue(call.Input) || call.Status != "pending" {
		c.begin(call)
	}
	if call.Status == "completed" || call.Status == "failed" {
		result := joinTexts(call.content)
		if result == "" && hasValue(call.Output) {
			result = string(call.Output)
			var text string
			if json.Unmarshal(call.Output, &text) == nil {
				result = text
			}
		}
		c.state.toolResult(call.ID, result, call.Status == "failed")
		delete(c.calls, call.ID)
	}
}

// call returns the state of a tool call after adding the fields of news to it; nil if too many calls have not ended.
func (c *acpClient) call(news *acpTool) *acpCall {
	call := c.calls[news.ID]
	if call == nil {
		if len(c.calls) >= maxOpenCalls {
			return nil
		}
		call = &acpCall{acpTool: acpTool{ID: news.ID, Status: "pending"}}
		c.calls[news.ID] = call
	}
	call.Name = cmp.Or(news.Name, call.Name)
	call.Title = cmp.Or(news.Title, call.Title)
	call.Sort = cmp.Or(news.Sort, call.Sort)
	call.Status = cmp.Or(news.Status, call.Status)
	if hasValue(news.Input) {
		call.Input = news.Input
	}
	if hasValue(news.Output) {
		call.Output = news.Output
	}
	return call
}

// hasValue reports whether an optional JSON value is present and neither null, {} nor [].
func hasValue(raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", "{}", "[]":
		return false
	}
	return true
}

// begin reports the start of a tool call, unless it has been reported before.
func (c *acpClient) begin(call *acpCall) {
	if call.reported {
		return
	}
	call.reported = true
	var args any = call.Input
	if !hasValue(call.Input) {
		args = nil
		if call.Title != "" {
			args = map[string]string{"title": call.Title}
		}
	}
	c.state.toolStart(call.ID, call.displayName(), args)
}

// displayName returns the name of the tool for users: its name, else its kind unless that is other, else its title, or "tool".
func (t *acpTool) displayName() string {
	if t.Name == "" && t.Sort != "" && t.Sort != "other" {
		return t.Sort
	}
	return cmp.Or(t.Name, t.Title, "tool")
}
