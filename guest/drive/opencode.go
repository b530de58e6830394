package drive

import (
	"cmp"
	"encoding/json"

	"github.com/caisson-dev/caisson"
)

// opencode parses the output of "opencode run --format json": a line for each part of a message that is complete. used is the sum
// of the usage of all steps of the turn so far.
type opencode struct{ used caisson.RunUsage }

// reportsEnd implements [dialect]: no line ends the turn.
func (*opencode) reportsEnd() bool { return false }

// line implements [dialect]: it updates s with one line, and reports whether it is a line of OpenCode, which has a session id.
func (o *opencode) line(raw []byte, s *turnState) bool {
	var l struct {
		Type    string `json:"type"`
		Session string `json:"sessionID"`
		Part    struct {
			Text   string  `json:"text"`
			Call   string  `json:"callID"`
			Tool   string  `json:"tool"`
			Cost   float64 `json:"cost"`
			Tokens *struct {
				Input     int64 `json:"input"`
				Output    int64 `json:"output"`
				Reasoning int64 `json:"reasoning"`
				Cache     struct {
					Read  int64 `json:"read"`
					Write int64 `json:"write"`
				} `json:"cache"`
			} `json:"tokens"`
			State struct {
				Status string          `json:"status"`
				Input  json.RawMessage `json:"input"`
				Output string          `json:"output"`
				Error  string          `json:"error"`
			} `json:"state"`
		} `json:"part"`
		Error *struct {
			Name string `json:"name"`
			Data struct {
				Message string `json:"message"`
				Status  int    `json:"statusCode"`
			} `json:"data"`
		} `json:"error"`
	}
	if json.Unmarshal(raw, &l) != nil || l.Session == "" {
		return false
	}
	part := &l.Part
	switch l.Type {
	case "step_start":
		s.out.Status("running", "")
	case "reasoning":
		s.out.Status("thinking", "")
	case "text":
		s.answer.Message(part.Text)
	case "tool_use":
		s.toolStart(part.Call, part.Tool, part.State.Input)
		s.toolResult(part.Call, cmp.Or(part.State.Output, part.State.Error), part.State.Status == "error")
	case "step_finish":
		o.used.Calls++
		o.used.Cost += dollars(part.Cost)
		if t := part.Tokens; t != nil {
			o.used.Tokens.Input += t.Input
			o.used.Tokens.Output += t.Output + t.Reasoning
			o.used.Tokens.CacheRead += t.Cache.Read
			o.used.Tokens.CacheWrite += t.Cache.Write
		}
		s.report(o.used)
	case "error":
		if l.Error == nil {
			return false
		}
		s.err = newAgentError(cmp.Or(l.Error.Data.Message, l.Error.Name))
		switch l.Error.Data.Status {
		case 402:
			s.err.Code = caisson.RunNoCredits
		case 429:
			s.err.Code = caisson.RunRateLimit
		}
	default:
		return false
	}
	return true
}
