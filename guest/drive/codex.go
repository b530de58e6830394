package drive

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson"
)

// codex parses the output of "codex exec --json": lines about a thread of turns, and about started, updated and completed items.
type codex struct {
	lastError string // message of the last error; an error need not end the turn, because codex retries lost connections
}

// reportsEnd implements [dialect]: a line of type turn.completed or turn.failed ends the turn.
func (*codex) reportsEnd() bool { return true }

// codexItem is an item of a turn, such as a message or a tool call, with those fields of all types of items that the driver uses.
type codexItem struct {
	ID        string          `json:"id"`                // id of the item
	Type      string          `json:"type"`              // type of the item, such as agent_message
	Text      string          `json:"text"`              // text of an item that is a message
	Message   string          `json:"message"`           // message of an item that is an error
	Command   string          `json:"command"`           // command line of a shell command
	Output    string          `json:"aggregated_output"` // output of a shell command
	ExitCode  *int            `json:"exit_code"`         // exit code of a shell command
	Status    string          `json:"status"`            // state of a tool call: failed, declined or another one
	Changes   json.RawMessage `json:"changes"`           // the files that a call of apply_patch changes
	Server    string          `json:"server"`            // name of the MCP server whose tool is called
	Tool      string          `json:"tool"`              // name of the called tool of an MCP server
	Arguments json.RawMessage `json:"arguments"`         // arguments for a tool of an MCP server
	Result    *struct {       // result of a tool of an MCP server
		Content json.RawMessage `json:"content"`
	} `json:"result"`
	Error *struct { // error of a tool of an MCP server
		Message string `json:"message"`
	} `json:"error"`
	Query string     `json:"query"` // query of a web search
	Items []struct { // steps of a to-do list
		Completed bool `json:"completed"`
	} `json:"items"`
}

// line implements [dialect]: it updates s with one line, and reports whether the line has a type and form that Codex writes.
func (c *codex) line(raw []byte, s *turnState) bool {
	var e struct {
		Type    string     `json:"type"`
		Message string     `json:"message"`
		Item    *codexItem `json:"item"`
		Error   *struct {
			Message string `json:"message"`
		} `json:"error"`
		Usage *struct {
			Input  int64 `json:"input_tokens"`
			Cached int64 `json:"cached_input_tokens"`
			Write  int64 `json:"cache_write_input_tokens"`
			Output int64 `json:"output_tokens"`
		} `json:"usage"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return false
	}
	switch e.Type {
	case "thread.started":
	case "turn.started":
		s.out.Status("running", "")
	case "turn.completed":
		if u := e.Usage; u != nil {
			s.report(caisson.RunUsage{Tokens: caisson.TokenCount{
				Input: max(0, u.Input-u.Cached-u.Write), CacheRead: u.Cached, CacheWrite: u.Write, Output: u.Output,
			}})
		}
		s.done = true
	case "turn.failed":
		message := c.lastError
		if e.Error != nil && e.Error.Message != "" {
			message = e.Error.Message
		}
		s.done, s.err = true, newAgentError(message)
	case "error":
		if e.Message == "" {
			return false // not a line of codex, whose errors have a message
		}
		c.lastError = e.Message
		s.out.Status("warning", e.Message)
	case "item.started", "item.updated", "item.completed":
		if e.Item != nil {
			c.item(e.Item, e.Type == "item.completed", s)
		}
	default:
		return false
	}
	return true
}

// item reports what is new in an item, such as a message or a tool call, that has started, changed or been completed, to s.
func (c *codex) item(i *codexItem, completed bool, s *turnState) {
	switch i.Type {
	case "agent_message":
		if completed {
			s.answer.Message(i.Text)
		} else {
			s.answer.Partial(i.Text)
		}
	case "reasoning":
		s.out.Status("thinking", "")
	case "command_execution":
		s.toolStart(i.ID, "shell", map[string]string{"command": i.Command})
		c.result(i, completed, i.Output, i.ExitCode != nil && *i.ExitCode != 0, s)
	case "file_change":
		s.toolStart(i.ID, "apply_patch", map[string]json.RawMessage{"changes": i.Changes})
		c.result(i, completed, i.Status, false, s)
	case "mcp_tool_call":
		s.toolStart(i.ID, strings.Trim(i.Server+"."+i.Tool, "."), i.Arguments)
		result := ""
		if i.Result != nil {
			result = joinTexts(i.Result.Content)
		}
		if i.Error != nil {
			result = i.Error.Message
		}
		c.result(i, completed, result, i.Error != nil, s)
	case "web_search":
		s.toolStart(i.ID, "web_search", map[string]string{"query": i.Query})
		c.result(i, completed, "", false, s)
	case "todo_list":
		n := 0
		for _, item := range i.Items {
			if item.Completed {
				n++
			}
		}
		s.out.Status("running", fmt.Sprintf("plan: %d of %d done", n, len(i.Items)))
	case "error":
		s.out.Status("warning", i.Message)
	}
}

// result reports the result of a tool call, if its item is completed.
func (*codex) result(i *codexItem, completed bool, result string, failed bool, s *turnState) {
	if completed {
		s.toolResult(i.ID, result, failed || i.Status == "failed" || i.Status == "declined")
	}
}
