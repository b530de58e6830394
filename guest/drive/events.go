package drive

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// caissonEvents is the dialect caisson. Its lines are [caisson.RunEvent] without the fields that the engine sets. The answer is
// in text_delta; assistant_final may repeat it, or contain an answer that was not streamed. At most one error is used, and done
// ends the turn.
type caissonEvents struct{}

func (*caissonEvents) reportsEnd() bool { return false }

func (*caissonEvents) line(raw []byte, s *turnState) bool {
	var e caisson.RunEvent
	if json.Unmarshal(raw, &e) != nil {
		return false
	}
	switch e.Type {
	case caisson.EventStatus:
		s.out.Status(e.Phase, e.Label)
	case caisson.EventTextDelta:
		s.answer.Delta(e.Delta)
	case caisson.EventToolStart:
		s.toolStart(e.CallID, e.Tool, e.Args)
	case caisson.EventToolResult:
		s.toolResult(e.CallID, e.Result, e.IsError)
	case caisson.EventUsage:
		if e.Usage != nil {
			s.report(*e.Usage)
		}
	case caisson.EventFinal:
		s.answer.Final(e.Content)
		s.done = s.err == nil
	case caisson.EventError:
		if s.err == nil && e.Error != nil {
			s.err = newError(e.Error.Code, e.Error.Message)
		}
	case caisson.EventDone:
		s.done = true
	default:
		return false
	}
	return true
}

// byPath is the dialect of agents whose lines are described by paths of JSON fields.
type byPath struct {
	text, final, failure []string            // paths of a part of the answer, of the answer and of an error; nil if none
	usage                map[string][]string // paths of numbers, by the names in usageNames
}

// usageNames are the valid fields of usage.
var usageNames = []string{"calls", "input", "output", "cacheRead", "cacheWrite", "cost"}

func newByPath(events map[string]string) (dialect, error) {
	p := &byPath{usage: map[string][]string{}}
	for name, path := range events {
		steps := strings.Split(path, ".")
		kind, _ := strings.CutPrefix(name, "usage.")
		switch {
		case path == "":
			return nil, fmt.Errorf("the path of %.40q is empty", name)
		case name == "text":
			p.text = steps
		case name == "final":
			p.final = steps
		case name == "error":
			p.failure = steps
		case kind != name && strings.Contains(" "+strings.Join(usageNames, " ")+" ", " "+kind+" "):
			p.usage[kind] = steps
		default:
			return nil, fmt.Errorf("lines of agents have no %.40q; write dialect, or the paths of text, final, error and usage.{%s}", name, strings.Join(usageNames, ","))
		}
	}
	if p.text == nil && p.final == nil {
		return nil, fmt.Errorf("nothing says where in a line the answer is; write the path of text or final")
	}
	return p, nil
}

func (*byPath) reportsEnd() bool { return false }

func (p *byPath) line(raw []byte, s *turnState) bool {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return false
	}
	known := false
	if text, ok := lookup(v, p.text).(string); ok {
		known = true
		s.answer.Delta(text)
	}
	if final, ok := lookup(v, p.final).(string); ok {
		known = true
		s.answer.Final(final)
	}
	if message := message(lookup(v, p.failure)); message != "" {
		known = true
		s.err = newAgentError(message)
	}
	return p.reportUsage(v, s) || known
}

// reportUsage reports the usage in a line, and whether there is any.
func (p *byPath) reportUsage(v any, s *turnState) bool {
	u, found := s.usage, false
	for name, into := range map[string]*int64{
		"calls": &u.Calls, "input": &u.Tokens.Input, "output": &u.Tokens.Output, "cacheRead": &u.Tokens.CacheRead, "cacheWrite": &u.Tokens.CacheWrite,
	} {
		if f, ok := lookup(v, p.usage[name]).(float64); ok && f >= 0 && f < 1<<53 {
			*into, found = int64(f), true
		}
	}
	if f, ok := lookup(v, p.usage["cost"]).(float64); ok {
		u.Cost, found = dollars(f), true
	}
	if found {
		s.report(u)
	}
	return found
}

// lookup returns the value at a path in a JSON value, or nil.
func lookup(v any, path []string) any {
	if len(path) == 0 {
		return nil
	}
	for _, step := range path {
		switch in := v.(type) {
		case map[string]any:
			v = in[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// message returns the text of an error, which may be a string or an object with a message.
func message(v any) string {
	switch e := v.(type) {
	case string:
		return e
	case map[string]any:
		m, _ := e["message"].(string)
		if m == "" {
			return "the agent reports an error without a message"
		}
		return m
	}
	return ""
}
