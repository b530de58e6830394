package drive

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// byPath parses the output of agents whose catalog entry describes lines by paths of JSON fields, and by conditions on fields.
type byPath struct {
	paths map[string][]string    // paths of JSON fields, by key of "events" in the catalog entry
	when  map[string][]condition // conditions that must all hold for a line, by key of "events" in the catalog entry
}

// The keys of "events" in a catalog entry: those with the path of a JSON field as value, and those with a list of conditions.
var (
	eventPaths = []string{
		"text", "final", "error", "tool", "tool.id", "tool.args", "result", "result.id",
		"usage.calls", "usage.input", "usage.output", "usage.cacheRead", "usage.cacheWrite", "usage.cost",
	}
	eventConditions = []string{"text.when", "final.when", "error.when", "tool.when", "result.when", "result.failed", "usage.when"}
)

// A condition holds for lines in which the JSON field at path has the given value.
type condition struct {
	path  []string // names of fields and indexes of lists, from the outermost
	value string   // the value if it is a string, otherwise its JSON
}

// parseConditions parses a comma-separated list of conditions, such as "type=message, role=assistant".
func parseConditions(list string) (conditions []condition, err error) {
	for part := range strings.SplitSeq(list, ",") {
		path, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || path == "" {
			return nil, fmt.Errorf("%.100q is not a condition; write PATH=VALUE, and a comma between several", part)
		}
		conditions = append(conditions, condition{strings.Split(path, "."), value})
	}
	return conditions, nil
}

// holds reports whether the condition holds for the line v.
func (c condition) holds(v any) bool {
	switch field := lookup(v, c.path).(type) {
	case nil, map[string]any, []any:
		return false
	case string:
		return field == c.value
	default: // the field is a number, true or false
		text, err := json.Marshal(field)
		return err == nil && string(text) == c.value
	}
}

// newByPath returns the dialect that the paths and conditions in "events" of a catalog entry describe.
func newByPath(events map[string]string) (dialect, error) {
	p := &byPath{map[string][]string{}, map[string][]condition{}}
	for name, text := range events {
		switch {
		case text == "":
			return nil, fmt.Errorf("%.40q is empty", name)
		case slices.Contains(eventPaths, name):
			p.paths[name] = strings.Split(text, ".")
		case slices.Contains(eventConditions, name):
			var err error
			if p.when[name], err = parseConditions(text); err != nil {
				return nil, fmt.Errorf("%.40q: %w", name, err)
			}
		default:
			return nil, fmt.Errorf("events have no %.40q; write dialect, or: %s", name, strings.Join(append(slices.Clone(eventPaths), eventConditions...), ", "))
		}
	}
	if p.paths["text"] == nil && p.paths["final"] == nil {
		return nil, fmt.Errorf("nothing says where in a line the answer is; write the path of text or final")
	}
	return p, nil
}

// reportsEnd implements [dialect]: no line ends the turn.
func (*byPath) reportsEnd() bool { return false }

// line implements [dialect]: it updates s with one line, and reports whether the paths and conditions select anything in it.
func (p *byPath) line(raw []byte, s *turnState) bool {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return false
	}
	known := false
	if text, ok := p.field(v, "text").(string); ok {
		known = true
		s.answer.Delta(text)
	}
	if final, ok := p.field(v, "final").(string); ok {
		known = true
		s.answer.Final(final)
	}
	if name, ok := p.field(v, "tool").(string); ok {
		known = true
		s.toolStart(scalarText(lookup(v, p.paths["tool.id"])), name, lookup(v, p.paths["tool.args"]))
	}
	if result := p.field(v, "result"); result != nil {
		known = true
		s.toolResult(scalarText(lookup(v, p.paths["result.id"])), resultText(result), len(p.when["result.failed"]) > 0 && p.holds(v, "result.failed"))
	}
	if message := errorMessage(p.field(v, "error")); message != "" {
		known = true
		s.err = newAgentError(message)
	}
	return p.holds(v, "usage.when") && p.reportUsage(v, s) || known
}

// holds reports whether the line v meets all conditions that the catalog entry gives for key, such as "text.when", if any.
func (p *byPath) holds(v any, key string) bool {
	return !slices.ContainsFunc(p.when[key], func(c condition) bool { return !c.holds(v) })
}

// field returns the value in the line v at the path that the catalog entry gives for key, such as "text". It returns nil if there
// is no value, or if v does not meet the conditions that the entry gives under key with ".when" appended, such as "text.when".
func (p *byPath) field(v any, key string) any {
	if !p.holds(v, key+".when") {
		return nil
	}
	return lookup(v, p.paths[key])
}

// scalarText returns a string or number in JSON as a string, and "" for any other value. It is used for ids of tool calls.
func scalarText(v any) string {
	switch x := v.(type) {
	case string:
		return x
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return ""
}

// resultText returns the text of a tool's result: a string itself, the texts of a list of blocks, or an object as JSON.
func resultText(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	if _, isObject := v.(map[string]any); isObject {
		return string(raw)
	}
	return joinTexts(raw)
}

// reportUsage reports the usage in the line v to s. It returns false if the line has no usage.
func (p *byPath) reportUsage(v any, s *turnState) bool {
	u, found := s.usage, false
	for name, into := range map[string]*int64{
		"calls": &u.Calls, "input": &u.Tokens.Input, "output": &u.Tokens.Output, "cacheRead": &u.Tokens.CacheRead, "cacheWrite": &u.Tokens.CacheWrite,
	} {
		if f, ok := lookup(v, p.paths["usage."+name]).(float64); ok && f >= 0 && f < 1<<53 {
			*into, found = int64(f), true
		}
	}
	if f, ok := lookup(v, p.paths["usage.cost"]).(float64); ok {
		u.Cost, found = dollars(f), true
	}
	if found {
		s.report(u)
	}
	return found
}

// lookup returns the value at a path in a JSON value, or nil if there is no such value. An element of the path is the name of a
// field, or an index of a list, which counts from the end if it is negative.
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
			if i < 0 {
				i += len(in)
			}
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

// errorMessage returns the text of an error in JSON, which may be a string or an object with a field "message".
func errorMessage(v any) string {
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
