package agent

import (
	"regexp"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// eventPaths contains the keys of Agent.Events whose value is the path of a field in a line of the agent's output. Package
// drive has the same list.
var eventPaths = []string{
	"text", "final", "error", "tool", "tool.id", "tool.args", "result", "result.id",
	"usage.calls", "usage.input", "usage.output", "usage.cacheRead", "usage.cacheWrite", "usage.cost",
}

// eventConditions maps each key of Agent.Events whose value is a list of conditions on a line of the agent's output to other
// keys, of which at least one must be set, too, because conditions have no effect on their own.
var eventConditions = map[string][]string{
	"text.when": {"text"}, "final.when": {"final"}, "error.when": {"error"}, "tool.when": {"tool"}, "result.when": {"result"},
	"result.failed": {"result"}, "usage.when": eventPaths[slices.Index(eventPaths, "usage.calls"):],
}

// eventRequires maps keys of Agent.Events to the key that must be set, too.
var eventRequires = map[string]string{"tool": "tool.id", "tool.id": "tool", "tool.args": "tool", "result": "result.id", "result.id": "result"}

// conditionsForm is the format of a list of conditions on the fields of a line of output: PATH=VALUE, separated by commas.
var conditionsForm = regexp.MustCompile(`^ *[^=,\s]+=[^,]*(, *[^=,\s]+=[^,]*)*$`)

// events checks Agent.Events, which describes the format of the agent's output.
func (c *checker) events(a *caisson.Agent) {
	if len(a.Events) > 0 && a.Driver != caisson.DriverJSONL {
		c.addf("events", "is for driver jsonl only")
	}
	if dialect, ok := a.Events["dialect"]; ok {
		c.oneOf("events.dialect", dialect, lineFormats...)
		if len(a.Events) > 1 {
			c.addf("events", "a dialect already defines the paths; remove the other keys")
		}
		return
	}
	has := func(key string) bool { return a.Events[key] != "" }
	if len(a.Events) > 0 && !has("text") && !has("final") {
		c.addf("events", "does not say where the answer is; add the path of text or final")
	}
	for key, value := range sorted(a.Events) {
		field := "events." + key
		needs, isCondition := eventConditions[key]
		switch {
		case isCondition && !slices.ContainsFunc(needs, has):
			c.addf(field, "has no effect without the path of %s; add it, or leave the condition out", needs[0])
		case isCondition && !isConditions(value):
			c.addf(field, "%.100q is not a condition such as type=message; several have commas between them", value)
		case isCondition:
		case !slices.Contains(eventPaths, key):
			c.addf(field, "is not known; known are dialect, %s, %s", strings.Join(eventPaths, ", "), strings.Join(conditionKeys(), ", "))
		case value == "":
			c.addf(field, "is empty; write the path of a field in a line, such as message.text, or leave it out")
		case eventRequires[key] != "" && !has(eventRequires[key]):
			c.addf("events."+eventRequires[key], "is missing; %s needs it", key)
		default:
			c.word(field, value)
		}
	}
}

// isConditions reports whether s is a list of conditions on the fields of a line of output, such as "type=text, role=user".
func isConditions(s string) bool {
	return len(s) <= maxText && conditionsForm.MatchString(s) && safetext.Escape(s) == s
}

// conditionKeys returns the keys of Agent.Events whose values are lists of conditions, such as "text.when", sorted.
func conditionKeys() (keys []string) {
	for key := range sorted(eventConditions) {
		keys = append(keys, key)
	}
	return keys
}
