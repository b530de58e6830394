package agent

import (
	"regexp"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// eventPaths are the keys of Agent.Events that contain the path of a field in a line. Package drive has the same.
var eventPaths = []string{
	"text", "final", "error", "tool", "tool.id", "tool.args", "result", "result.id",
	"usage.calls", "usage.input", "usage.output", "usage.cacheRead", "usage.cacheWrite", "usage.cost",
}

// eventConditions are the keys of Agent.Events that contain conditions, each with the keys of which at least one is
// required with it, because it would have no effect otherwise.
var eventConditions = map[string][]string{
	"text.when": {"text"}, "final.when": {"final"}, "error.when": {"error"}, "tool.when": {"tool"}, "result.when": {"result"},
	"result.failed": {"result"}, "usage.when": eventPaths[slices.Index(eventPaths, "usage.calls"):],
}

// eventRequires are the keys of Agent.Events that require another one.
var eventRequires = map[string]string{"tool": "tool.id", "tool.id": "tool", "tool.args": "tool", "result": "result.id", "result.id": "result"}

// conditionsForm is the format of conditions: PATH=VALUE, with commas between several.
var conditionsForm = regexp.MustCompile(`^ *[^=,\s]+=[^,]*(, *[^=,\s]+=[^,]*)*$`)

// events checks the description of the agent's output.
func (c *checker) events(a *caisson.Agent) {
	if len(a.Events) > 0 && a.Driver != caisson.DriverJSONL {
		c.addf("events", "is for driver jsonl only")
	}
	if dialect, ok := a.Events["dialect"]; ok {
		c.oneOf("events.dialect", dialect, dialects...)
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

// isConditions reports whether s is a list of conditions.
func isConditions(s string) bool {
	return len(s) <= maxText && conditionsForm.MatchString(s) && safetext.Escape(s) == s
}

// conditionKeys returns the keys of eventConditions, sorted.
func conditionKeys() (keys []string) {
	for key := range sorted(eventConditions) {
		keys = append(keys, key)
	}
	return keys
}
